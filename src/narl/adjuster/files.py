"""Adjusters as files: safetensors with a JSON header."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from narl._version import __version__
from narl.errors import AdjusterFileError

KIND = "adjuster"
FORMAT = 1


@dataclass(frozen=True)
class Header:
    """What a file says about its adjuster."""

    loss: str
    ranges: dict[str, list[float]]
    families: int
    class_counts: list[float]
    hidden: int
    margin: str


def write(path: str | PathLike[str], header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Write to a temporary file beside ``path``, then rename: a reader sees the old file or the new one."""
    about = {"kind": KIND, "format": FORMAT, "version": __version__, **asdict(header)}
    temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        save_file(dict(tensors), temporary, metadata={"narl": json.dumps(about)})
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise AdjusterFileError(
            f"cannot write the adjuster to {os.fspath(path)}: {error}; check that the folder exists and has space"
        ) from error


def read(path: str | PathLike[str]) -> tuple[Header, dict[str, Tensor]]:
    """The header and the tensors of a file, or an error that says why not."""
    name = os.fspath(path)
    try:
        with safe_open(name, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("narl", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise AdjusterFileError(f"there is no file {name}: check the path") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise AdjusterFileError(f"{name} is not a safetensors file or is damaged ({error}): save it again") from error
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise AdjusterFileError(f"{name} is not a narl adjuster: give a file that Adjuster.save wrote")
    if not isinstance(about.get("format"), int) or about["format"] > FORMAT:
        raise AdjusterFileError(
            f"{name} has format {about.get('format')}, written by narl {about.get('version')}; narl {__version__} "
            f"reads formats up to {FORMAT}: upgrade narl"
        )
    try:
        return Header(**{field: about[field] for field in Header.__dataclass_fields__}), tensors
    except KeyError as missing:
        raise AdjusterFileError(f"{name} has no {missing} in its header: save it again") from None


def check_contents(
    path: str | PathLike[str],
    hyperparameters: Iterable[str],
    ranges: Mapping[str, list[float]],
    expected: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    """Refuse a file whose hyperparameters or tensors are others than its header promises."""
    if list(ranges) != list(hyperparameters):
        raise AdjusterFileError(
            f"{os.fspath(path)} adjusts {', '.join(ranges)} but the registered loss has {', '.join(hyperparameters)}: "
            "register the loss that the adjuster was made for"
        )
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    wanted = {name: tuple(value.shape) for name, value in expected.items()}
    if shapes != wanted:
        raise AdjusterFileError(f"{os.fspath(path)} holds {shapes} but its header promises {wanted}: save it again")
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise AdjusterFileError(f"{os.fspath(path)} holds NaN or infinity in {', '.join(broken)}: save it again")
