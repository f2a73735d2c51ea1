"""What the generators take besides labels: rates, seeds and the number of classes, checked."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import SupportsIndex

import numpy as np

from narl.errors import NoiseError, OptionError

# Above it a transition matrix takes more than 8 GiB: such labels are ids or hashes, not class indices.
MOST_CLASSES = 2**15


def checked_rate(rate: object) -> float:
    """``rate`` as a float in [0, 1]."""
    if not isinstance(rate, Real) or not 0 <= float(rate) <= 1:
        raise NoiseError(f"rate is {rate!r}, but a noise rate is a share from 0 to 1: write 0.4 for 40 %")
    return float(rate)


def checked_std(std: object) -> float:
    """``std`` as a finite float, at least 0."""
    if not isinstance(std, Real) or not math.isfinite(std) or float(std) < 0:
        raise NoiseError(f"std is {std!r}, but the spread of the flip rates is a finite number from 0 on: try 0.1")
    return float(std)


def checked_num_classes(num_classes: SupportsIndex) -> int:
    """``num_classes`` as an int, at least 1 and at most ``MOST_CLASSES``."""
    try:
        count = operator.index(num_classes)
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_CLASSES:
        raise OptionError(
            f"num_classes is {num_classes!r}, but it counts the classes: give an int from 1 to {MOST_CLASSES}"
        )
    return count


def check_other_classes(num_classes: int, rate: float) -> None:
    """Where labels are to move there must be another class."""
    if num_classes == 1 and rate > 0:
        raise NoiseError(
            f"rate is {rate}, but there is only one class, so no label can move: "
            f"give num_classes if there are more classes than the labels show, or rate 0"
        )


def generator(seed: int | np.random.Generator) -> np.random.Generator:
    """The numpy generator of ``seed``; a generator is taken as it is and moves on."""
    if isinstance(seed, np.random.Generator):
        return seed
    try:
        start = operator.index(seed)
    except TypeError:
        start = -1
    if start < 0:
        raise OptionError(f"seed is {seed!r}, but noise needs an int from 0 on or a numpy.random.Generator: try seed=0")
    return np.random.default_rng(start)
