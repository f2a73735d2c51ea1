"""Adjusters as files: safetensors with a JSON header."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from narl._version import __version__
from narl.adjuster.margins import parsed
from narl.adjuster.worth import ESTIMATED
from narl.atomic import replacing
from narl.errors import AdjusterFileError
from narl.losses import RobustLoss

KIND = "adjuster"
PACK = "adjusters"
FORMAT = 5
"""1: sees the margin itself; 2: something else; 3: its heads have sizes; 4: has least steps; 5: a noise rate."""


@dataclass(frozen=True)
class Header:
    """What a file says about its adjuster."""

    loss: str
    ranges: dict[str, list[float]]
    families: int
    class_counts: list[float]
    hidden: int
    margin: str
    input: str = "margin"
    taken: float | None = None
    data: str | None = None
    sizes: list[float] | None = None
    least_steps: int | None = None
    noise_rate: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def format(self) -> int:
        """The oldest that has all of it: what older versions can read stays readable."""
        if self.noise_rate is not None:
            return 5
        if self.least_steps is not None:
            return 4
        if self.sizes is not None:
            return 3
        return 1 if self.input == "margin" else 2


def write(path: str | PathLike[str], header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Write the file whole or not at all: a reader sees the old one or the new one."""
    write_tensors(path, {"kind": KIND, "format": header.format, "version": __version__, **header.to_json()}, tensors)


def write_tensors(path: str | PathLike[str], about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with what is said about them, whole or not at all."""
    if not Path(path).name or Path(path).is_dir():
        raise AdjusterFileError(f"cannot write the adjuster to {os.fspath(path)!r}: it is a folder; add a file name")
    try:
        learned = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        with replacing(Path(path)) as file:
            file.write(save(learned, metadata={"narl": json.dumps(about)}))
    except (OSError, SafetensorError) as error:
        raise AdjusterFileError(
            f"cannot write the adjuster to {os.fspath(path)}: {error}; check that the folder exists and has space"
        ) from error


def read(path: str | PathLike[str]) -> tuple[Header, dict[str, Tensor]]:
    """The header and the tensors of a file, or an error that says why not."""
    name = os.fspath(path)
    about, tensors = read_tensors(path)
    if about.get("kind") == PACK:
        raise AdjusterFileError(
            f"{name} holds all snapshots of an adjuster: narl.AdjustedLoss.pretrained and narl transfer --from take it"
        )
    if about.get("kind") != KIND:
        raise AdjusterFileError(f"{name} is not a narl adjuster: give a file that Adjuster.save wrote")
    check_format(about, FORMAT, name)
    return checked_header(about, name), tensors


def read_tensors(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says about itself, and its tensors."""
    name = os.fspath(path)
    if Path(path).is_dir():
        raise AdjusterFileError(f"{name} is a folder: give the adjuster's file")
    try:
        with safe_open(name, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("narl", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise AdjusterFileError(f"there is no file {name}: check the path") from None
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise AdjusterFileError(f"{name} is not a safetensors file or is damaged ({error}): save it again") from error
    return about if isinstance(about, dict) else {}, tensors


def check_format(about: Mapping[str, Any], newest: int, name: str) -> None:
    """Refuse a file of a newer narl."""
    if not isinstance(about.get("format"), int) or about["format"] > newest:
        raise AdjusterFileError(
            f"{name} has format {about.get('format')}, written by narl {about.get('version')}; narl {__version__} "
            f"reads formats up to {newest}: upgrade narl"
        )


def check_contents(path: str | PathLike[str], header: Header, tensors: Mapping[str, Tensor], loss: RobustLoss) -> None:
    """Refuse a file whose header contradicts the registered loss, or whose tensors contradict the header."""
    name = os.fspath(path)
    adjusted = [hyperparameter.name for hyperparameter in loss.hyperparameters]
    if list(header.ranges) != adjusted:
        raise AdjusterFileError(
            f"{name} adjusts {', '.join(header.ranges)} but the registered {loss.name!r} has {', '.join(adjusted)}: "
            "register the loss that the adjuster was made for"
        )
    for hyperparameter in loss.hyperparameters:
        low, high = header.ranges[hyperparameter.name]
        if not hyperparameter.low <= low < high <= hyperparameter.high:
            raise AdjusterFileError(
                f"{name} gives {hyperparameter.name} the range [{low}, {high}], but {loss.name!r} takes "
                f"[{hyperparameter.low:g}, {hyperparameter.high:g}]: save it again"
            )
    outputs = header.families * len(adjusted)
    seen = parsed(header.input)
    assert seen is not None  # a checked header
    promised = {
        "hidden.weight": (header.hidden, 1 + len(seen[1])),
        "hidden.bias": (header.hidden,),
        "heads.weight": (outputs, header.hidden),
        "heads.bias": (outputs,),
    }
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    if shapes != promised:
        raise AdjusterFileError(f"{name} holds {shapes} but its header promises {promised}: save it again")
    broken = [key for key, value in tensors.items() if not value.is_floating_point() or not value.isfinite().all()]
    if broken:
        raise AdjusterFileError(f"{name} holds NaN, infinity or no floats in {', '.join(broken)}: save it again")


def checked_header(about: Mapping[str, Any], name: str) -> Header:
    """The header with every field of its kind: a file from elsewhere can hold anything."""
    # Files of before there was a choice, of no training, for any data, any length, with families that are found anew.
    unsaid = dict.fromkeys(("taken", "data", "sizes", "least_steps", "noise_rate"))
    about = {"input": "margin", **unsaid, **about}
    missing = [field for field in Header.__dataclass_fields__ if field not in about]
    if missing:
        raise AdjusterFileError(f"{name} has no {', '.join(missing)} in its header: save it again")
    header = Header(**{field: about[field] for field in Header.__dataclass_fields__})
    kinds = {
        "loss": isinstance(header.loss, str),
        "ranges": isinstance(about["ranges"], dict)
        and all(_numbers(ends) and len(ends) == 2 for ends in header.ranges.values()),
        "families": _positive(header.families),
        "class_counts": _numbers(header.class_counts),
        "hidden": _positive(header.hidden),
        "margin": header.margin in ("latest", "running"),
        "input": isinstance(header.input, str) and parsed(header.input) is not None,
        "taken": header.taken is None or (type(header.taken) in (int, float) and 0 <= header.taken <= 1),
        "data": header.data is None or isinstance(header.data, str),
        "sizes": header.sizes is None or (_ascending(header.sizes) and len(header.sizes) == header.families),
        "least_steps": header.least_steps is None or _positive(header.least_steps),
        "noise_rate": header.noise_rate in (None, ESTIMATED),
    }
    wrong = [f"{field} = {about[field]!r}" for field, right in kinds.items() if not right]
    if wrong:
        raise AdjusterFileError(f"{name} has nonsense in its header ({'; '.join(wrong)[:200]}): save it again")
    return header


def _numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _ascending(values: list[float]) -> bool:
    return _numbers(values) and all(0 < low < high for low, high in pairwise([*values, math.inf]))


def _positive(value: object) -> bool:
    return type(value) is int and value > 0
