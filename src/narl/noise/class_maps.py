"""Which class is mistaken for which: published class maps and superclasses by name, or given one entry a class."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from narl.errors import NoiseError, UnknownNameError, nearest

ClassMap: TypeAlias = str | Mapping[int, int] | Sequence[int] | NDArray[Any] | Tensor
Superclasses: TypeAlias = str | Sequence[Hashable] | NDArray[Any] | Tensor

# One target a class: bird (2) -> airplane, cat (3) -> dog, deer (4) -> horse, truck (9) -> automobile.
CLASS_MAPS: Mapping[str, tuple[int, ...]] = {"cifar10": (0, 1, 0, 5, 7, 5, 6, 7, 8, 1)}

# One superclass a class; CIFAR-100's fine and coarse classes are each in alphabetical order. Ten classes a line.
# fmt: off
SUPERCLASSES: Mapping[str, tuple[int, ...]] = {
    "cifar100": (
        4, 1, 14, 8, 0, 6, 7, 7, 18, 3,
        3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
        6, 11, 5, 10, 7, 6, 13, 15, 3, 15,
        0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
        5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
        16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
        10, 3, 2, 12, 12, 16, 12, 1, 9, 19,
        2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
        16, 19, 2, 4, 6, 19, 5, 5, 8, 19,
        18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
    )
}
# fmt: on

Entry = TypeVar("Entry")


def class_map_size(class_map: ClassMap) -> int | None:
    """For how many classes a class map is; a mapping of some of them does not say."""
    return None if isinstance(class_map, Mapping) else len(_by_name(class_map, CLASS_MAPS, "class map"))


def superclasses_size(superclasses: Superclasses) -> int:
    """For how many classes the superclasses are given."""
    return len(_by_name(superclasses, SUPERCLASSES, "superclasses"))


def class_targets(class_map: ClassMap, num_classes: int) -> NDArray[np.int64]:
    """The class that each class is mistaken for, ``(c,)``; its own index where it stays."""
    if isinstance(class_map, Mapping):
        pairs = list(class_map.items())
    else:
        listed = _by_name(class_map, CLASS_MAPS, "class map")
        _check_length(class_map, len(listed), num_classes, "class map")
        pairs = list(enumerate(listed))
    targets = np.arange(num_classes)
    for source, target in pairs:
        targets[_class_index(source, num_classes)] = _class_index(target, num_classes)
    return targets


def superclass_ids(superclasses: Superclasses, num_classes: int) -> NDArray[np.int64]:
    """A number for each class's superclass, ``(c,)``: equal where the superclass is the same."""
    listed = _by_name(superclasses, SUPERCLASSES, "superclasses")
    _check_length(superclasses, len(listed), num_classes, "superclasses")
    numbers: dict[Hashable, int] = {}
    try:
        return np.array([numbers.setdefault(superclass, len(numbers)) for superclass in listed], dtype=np.int64)
    except TypeError as unhashable:
        raise NoiseError(f"superclasses hold an {unhashable}: give one number or name a class") from unhashable


def _by_name(
    given: str | Sequence[Entry] | NDArray[Any] | Tensor, known: Mapping[str, Sequence[Entry]], what: str
) -> list[Entry]:
    if isinstance(given, str):
        if given not in known:
            raise UnknownNameError(f"no {what} is called {given!r}: {nearest(given, known)}; or give one entry a class")
        return list(known[given])
    # The entries of arrays and tensors become plain numbers: tensors would not be equal as dictionary keys.
    entries = given.tolist() if isinstance(given, np.ndarray | Tensor) else given
    if not isinstance(entries, Sequence):
        raise NoiseError(
            f"{what} cannot be given as {type(given).__name__}: give a list with one entry a class, or one of these "
            f"names: {', '.join(sorted(known))}"
        )
    return list(entries)


def _check_length(given: object, length: int, num_classes: int, what: str) -> None:
    if length != num_classes:
        which = f"{what} {given!r}" if isinstance(given, str) else what
        raise NoiseError(
            f"{which} has {length} entries, but there are {num_classes} classes: "
            f"give one entry a class, or num_classes={length}"
        )


def _class_index(index: SupportsIndex, num_classes: int) -> int:
    try:
        number = operator.index(index)
    except TypeError:
        number = -1
    if not 0 <= number < num_classes:
        raise NoiseError(
            f"class map names class {index!r}, but there are {num_classes} classes, 0 … {num_classes - 1}: "
            f"correct the map, or give num_classes if there are more classes than the labels show"
        )
    return number
