"""All snapshots of an adjuster in one file: what is shipped, downloaded and taken along."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, final

from torch import Tensor

from narl._version import __version__
from narl.adjuster import files
from narl.adjuster.network import Adjuster
from narl.errors import AdjusterFileError

FORMAT = 4  # 1: of adjusters whose heads have no sizes; 2: that have no least steps; 3: no noise rate
_MOST = 1000  # snapshots; a file from elsewhere can promise anything


@final
@dataclass(frozen=True, eq=False)
class Pack:
    """Snapshots of one adjuster, and where they come from.

    Args:
        snapshots: in the order in which they were taken.
        name: of a release, such as ``"gce"``; empty before.
        version: of a release, such as ``"1"``; empty before.
        trained_on: data and tasks, in words.
        about: further plain values, such as which trainings it comes from.

    Example:
        >>> import tempfile
        >>> pack = Pack((Adjuster("gce", [5, 5]), Adjuster("gce", [5, 5])), trained_on="two points")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder, "gce.safetensors"), pack)
        ...     again = read(Path(folder, "gce.safetensors"))
        >>> again.loss, len(again.snapshots), again.trained_on, again.digest == pack.digest
        ('gce', 2, 'two points', True)
    """

    snapshots: tuple[Adjuster, ...]
    name: str = ""
    version: str = ""
    trained_on: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> str:
        """Name of the loss that is adjusted."""
        return self.snapshots[0].robust_loss.name

    @property
    def input(self) -> str:
        """What the adjuster sees: of margins, and which margins."""
        found: dict[str, None] = {}
        for one in self.snapshots:
            seen = f"{one.input}, {'latest' if one.running is None else 'running'}"
            seen += "" if one.noise_rate is None else f", noise rate {one.noise_rate}"
            if one.noise_rate is not None and one.data is None and one.least_steps:
                seen += f" ({one.least_steps}+ steps)"
            found[seen if one.data is None else f"on data of kind {one.data}: {seen}"] = None
        return "; ".join(found)

    @property
    def data(self) -> str:
        """What it is for, in words.

        Example:
            >>> for_any, for_tables = Adjuster("gce", [5, 5]), Adjuster("gce", [5, 5])
            >>> for_tables.data = "table"
            >>> Pack((for_any,)).data, Pack((for_tables,)).data, Pack((for_any, for_tables)).data
            ('any data', 'table', 'any data; special ones for table')
            >>> for_tables.least_steps = 900
            >>> Pack((for_any, for_tables)).data
            'any data; special ones for table (900+ steps)'
        """
        least = {one.data: one.least_steps for one in self.snapshots if one.data is not None}
        kinds = [kind + (f" ({least[kind]}+ steps)" if least[kind] else "") for kind in sorted(least)]
        if all(one.data is not None for one in self.snapshots):
            return ", ".join(kinds)
        return "any data" + (f"; special ones for {', '.join(kinds)}" if kinds else "")

    @property
    def digest(self) -> str:
        """What tells its snapshots from others; see :func:`digest`."""
        return digest(self.snapshots)


def digest(snapshots: Sequence[Adjuster], *, noise_rate: bool = True) -> str:
    """What tells snapshots from others: 16 digits that depend on what they compute and when they were taken.

    Whether they lie in one file or several, and what else is said about them, changes nothing.

    Args:
        snapshots: in order.
        noise_rate: whether it counts what they say about the noise rate.
    """
    found = hashlib.blake2b(digest_size=8)
    for snapshot in snapshots:
        # Families are fitted to the data that it serves on, and where it serves changes nothing about what it computes.
        header = replace(snapshot.header(), class_counts=[], least_steps=None)
        header = header if noise_rate else replace(header, noise_rate=None)
        found.update(json.dumps(header.to_json(), sort_keys=True).encode())
        for name, parameter in sorted(snapshot.named_parameters()):
            found.update(name.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def write(path: str | PathLike[str], pack: Pack) -> None:
    """Write a pack as safetensors, whole or not at all."""
    about = {
        "kind": files.PACK,
        "format": _format(pack),
        "version": __version__,
        "name": pack.name,
        "release": pack.version,
        "trained_on": pack.trained_on,
        "about": dict(pack.about),
        "snapshots": [snapshot.header().to_json() for snapshot in pack.snapshots],
    }
    tensors = {
        f"{number}.{name}": parameter
        for number, snapshot in enumerate(pack.snapshots)
        for name, parameter in snapshot.named_parameters()
    }
    files.write_tensors(path, about, tensors)


def _format(pack: Pack) -> int:
    """The oldest that has all of it."""
    if any(snapshot.noise_rate is not None for snapshot in pack.snapshots):
        return 4
    if any(snapshot.least_steps is not None for snapshot in pack.snapshots):
        return 3
    return 1 if all(snapshot.sizes is None for snapshot in pack.snapshots) else 2


def read(path: str | PathLike[str]) -> Pack:
    """The snapshots of a file: a pack, or an adjuster that is alone.

    Args:
        path: of the file.

    Raises:
        AdjusterFileError: it is neither, or damaged.
    """
    name = os.fspath(path)
    about, tensors = files.read_tensors(path)
    if about.get("kind") == files.KIND:
        return Pack((Adjuster.load(path),))
    if about.get("kind") != files.PACK:
        raise AdjusterFileError(
            f"{name} holds no adjusters: give a file that Adjuster.save or narl bench adjusters wrote"
        )
    files.check_format(about, FORMAT, name)
    headers = about.get("snapshots")
    if not isinstance(headers, list) or not 0 < len(headers) < _MOST or not all(isinstance(h, dict) for h in headers):
        raise AdjusterFileError(f"{name} does not say which snapshots it holds: make it again")
    own: list[dict[str, Tensor]] = [{} for _ in headers]
    for key, value in tensors.items():
        number, _, rest = key.partition(".")
        if not number.isdecimal() or int(number) >= len(own):
            raise AdjusterFileError(f"{name} holds {key!r}, of which its header says nothing: make it again")
        own[int(number)][rest] = value
    snapshots = tuple(
        Adjuster.restored(path, files.checked_header(header, name), part)
        for header, part in zip(headers, own, strict=True)
    )
    words = {key: about.get(key, "") for key in ("name", "release", "trained_on")}
    more = about.get("about", {})
    if not all(isinstance(value, str) for value in words.values()) or not isinstance(more, dict):
        raise AdjusterFileError(f"{name} has nonsense in its header: make it again")
    return Pack(snapshots, words["name"], words["release"], words["trained_on"], more)


def sha256(path: str | PathLike[str]) -> str:
    """Of the file's bytes, as ``sha256sum`` prints it."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise AdjusterFileError(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from error
