"""All layouts, and which of them a source has."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from narl.data.arrays import Arrays
from narl.data.cifar import CIFAR10, CIFAR100
from narl.data.folders import ClassFolders
from narl.data.hub import Hub
from narl.data.ilsvrc import Ilsvrc12Validation
from narl.data.published import Animal10N, Food101N, MiniWebVision, TinyImageNet
from narl.data.source import Layout, nearest_file
from narl.data.tables import TableFile
from narl.errors import DataError, UnknownNameError, nearest

AUTO = "auto"

# In the order in which they are tried: a folder of any kind is also a folder of class folders.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Hub(),
        TableFile("csv"),
        TableFile("tsv"),
        TableFile("jsonl"),
        TableFile("parquet"),
        Arrays(),
        CIFAR10,
        CIFAR100,
        TinyImageNet(),
        Animal10N(),
        Food101N(),
        MiniWebVision(),
        Ilsvrc12Validation(),
        ClassFolders(),
    )
}
# Names of file formats and contents, where the layout is called otherwise.
_MEANT = {
    **dict.fromkeys(("image", "images", "img", "jpg", "jpeg", "png", "folders", "imagefolder"), "'folder'"),
    **dict.fromkeys(("text", "texts", "txt"), "'csv' or 'jsonl'"),
    **dict.fromkeys(("json", "ndjson"), "'jsonl'"),
    **dict.fromkeys(("array", "numpy", "npy", "npz"), "'arrays'"),
}


def choose(path: str | PathLike[str], layout: str) -> tuple[Path, Layout]:
    """The source and the layout to read it with.

    Args:
        path: a file or folder that exists, or ``hub:NAME``.
        layout: a name from :data:`LAYOUTS`, or ``"auto"``: the first that the source looks like.
    """
    if layout != AUTO and layout not in LAYOUTS:
        raise UnknownNameError(f"unknown layout {layout!r}: {_nearest_layout(layout)}")
    source = Path(path)
    if not fspath(path) or "\0" in fspath(path):
        raise DataError(f"{fspath(path)!r} is no path: name a file or folder")
    if layout == "hub" or (layout == AUTO and LAYOUTS["hub"].matches(source)):
        return source, LAYOUTS["hub"]
    try:
        if not source.exists():
            raise DataError(f"there is no file or folder {source}: {nearest_file(source)}")
        if layout != AUTO:
            return source, LAYOUTS[layout]
        for candidate in LAYOUTS.values():
            if candidate.matches(source):
                return source, candidate
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from error
    raise DataError(
        f"{source} is of no known kind: give a folder, a .csv, .tsv, .jsonl, .parquet, .npz or .npy file, or say what "
        "it is with --layout"
    )


def _nearest_layout(name: str) -> str:
    meant = _MEANT.get(name.strip().strip(".").lower())
    known = ", ".join(sorted([AUTO, *LAYOUTS]))
    return nearest(name, [AUTO, *LAYOUTS]) if meant is None else f"did you mean {meant}? Known: {known}"
