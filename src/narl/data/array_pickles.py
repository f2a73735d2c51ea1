"""Pickles of numpy arrays, read without running anything that they may ask for."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from narl.data.source import nearest_file
from narl.errors import DataError

_TYPE = re.compile(r"[biuf][1248]")
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, or in a file of ``torch.save``, of numbers, texts, lists and numpy arrays.

    Raises:
        DataError: the file is missing or damaged, or asks for anything but arrays.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}: {nearest_file(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        read = _load(content)
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:  # what damaged bytes make of an unpickler: UnpicklingError, EOFError, KeyError, …
        raise DataError(f"{path} is damaged ({type(error).__name__}): get the published file again") from error
    if not isinstance(read, dict):
        raise DataError(f"{path} holds no dictionary: give the published file")
    plain = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in read.items()}
    return {key: value.array(path) if isinstance(value, _Array) else value for key, value in plain.items()}


def _load(content: bytes) -> object:
    stream: BinaryIO = io.BytesIO(content)
    if zipfile.is_zipfile(stream):  # what torch.save writes
        with zipfile.ZipFile(stream) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            stream = io.BytesIO(archive.read(name))
    stream.seek(0)
    read = _ArraysOnly(stream, encoding="latin1").load()
    if read == _TORCH_MAGIC:  # what it wrote before: its version and the machine's, then the object
        read = [_ArraysOnly(stream, encoding="latin1").load() for _ in range(3)][-1]
    return read


class _ArraysOnly(pickle.Unpickler):
    """Gives stand-ins for the few names that pickled arrays use: nothing of numpy, or of anybody, is called."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _Array
        if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
            return _from_buffer
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _Type
        if (module, name) == ("_codecs", "encode"):
            return _to_bytes
        raise DataError(f"asks for {module}.{name}, but only arrays are read from pickles: give the published file")


class _Type:
    """Stands for ``numpy.ndarray``, and for a dtype once it is called with its code."""

    def __init__(self, code: str = "", *_: object) -> None:
        self.code = str(code).lstrip("<>|=")
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = str(state[1])


class _Array:
    """Stands for an array until its bytes are there."""

    def __init__(self, *_: object) -> None:
        self.parts: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        self.parts = (shape, kind, bool(fortran), content)

    def array(self, path: Path) -> NDArray[Any]:
        try:
            shape, kind, fortran, content = self.parts
            raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
            if not isinstance(kind, _Type) or not _TYPE.fullmatch(kind.code) or kind.order not in "<>|=":
                raise ValueError("no plain numbers")
            code = kind.code if kind.order == "|" else kind.order + kind.code
            return np.frombuffer(raw, dtype=code).reshape(tuple(shape), order="F" if fortran else "C")
        except (TypeError, ValueError, UnicodeEncodeError) as error:
            raise DataError(f"{path} holds a damaged array: get the published file again") from error


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any, *_: object) -> _Array:
    array = _Array()
    array.parts = (shape, kind, order == "F", content)
    return array


def _to_bytes(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise DataError(
            f"asks for the encoding {encoding!r}, but only arrays are read from pickles: give the published file"
        )
    return text.encode("latin1")
