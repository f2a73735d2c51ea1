"""Class maps, superclasses and transition matrices as ``narl noise`` takes them: by the names of the classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narl.errors import NoiseError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray


def class_map(given: str, classes: Sequence[str]) -> str | dict[int, int]:
    """Which class is mistaken for which.

    Args:
        given: ``"cat:dog,truck:car"``; a .json file with ``{"cat": "dog"}``; or the name of a published map.
        classes: name of each class.

    Returns:
        What :func:`narl.noise.asymmetric` takes.

    Raises:
        NoiseError: for a class that does not exist, or that is mistaken for two.

    Example:
        >>> class_map("cat:dog, dog:cat", ["cat", "dog"])
        {0: 1, 1: 0}
    """
    from narl.noise.class_maps import CLASS_MAPS

    if given in CLASS_MAPS:
        return given
    if given.lower().endswith(".json"):
        pairs = _pairs(Path(given))
    else:
        parts = [part.partition(":") for part in given.split(",") if part.strip()]
        if not parts or not all(colon for _, colon, _ in parts):
            raise NoiseError(
                f"--map {given!r} is no class map: write --map 'cat:dog,truck:car', name a .json file such as "
                f'{{"cat": "dog"}}, or one of: {", ".join(sorted(CLASS_MAPS))}'
            )
        pairs = [(left.strip(), right.strip()) for left, _, right in parts]
    found: dict[int, int] = {}
    for left, right in pairs:
        source = _index(left, classes, "--map")
        if source in found:
            raise NoiseError(f"--map has the class {left!r} twice: a class is mistaken for one other; keep one")
        found[source] = _index(right, classes, "--map")
    return found


def superclasses(given: str, classes: Sequence[str]) -> str | list[str]:
    """The superclass of each class.

    Args:
        given: a .json file with ``{"pets": ["cat", "dog"]}`` or ``{"cat": "pets", "dog": "pets"}``; or the name of
            published ones.
        classes: name of each class.

    Returns:
        What :func:`narl.noise.hierarchical` takes.

    Raises:
        NoiseError: for a class that does not exist, has no superclass, or has two.
    """
    from narl.noise.class_maps import SUPERCLASSES

    if given in SUPERCLASSES:
        return given
    if not given.lower().endswith(".json"):
        raise NoiseError(
            f'--superclasses {given!r} is neither a .json file such as {{"pets": ["cat", "dog"]}} nor one of: '
            f"{', '.join(sorted(SUPERCLASSES))}"
        )
    found: dict[int, str] = {}
    for left, right in _pairs(Path(given)):
        members = [(entry, left) for entry in right] if isinstance(right, list) else [(left, right)]
        for name, superclass in members:
            index = _index(name, classes, given)
            if index in found:
                raise NoiseError(f"{given} has the class {name!r} twice: name each once")
            found[index] = str(superclass)
    missing = [name for index, name in enumerate(classes) if index not in found]
    if missing:
        raise NoiseError(f"{given} has no superclass for {missing[0]!r} ({len(missing)} missing): name every class")
    return [found[index] for index in range(len(classes))]


def matrix(path: Path, classes: Sequence[str]) -> NDArray[Any]:
    """A transition matrix from a file.

    Args:
        path: rows of numbers in a .csv, .npy or .json file, in the order of the classes; in JSON also
            ``{"cat": {"cat": 0.8, "dog": 0.2}}``, where what is not named is 0.
        classes: name of each class.

    Returns:
        ``(c, c)``, not checked to be probabilities.

    Raises:
        NoiseError: for a file that cannot be read, or a matrix for another number of classes.
    """
    import numpy as np

    ending = path.suffix.lower()
    table: Any
    if ending == ".npy":
        from narl.data.arrays import load_one

        table = load_one(path)
    elif ending == ".csv":
        table = [line.split(",") for line in _text(path).splitlines() if line.strip()]
    elif ending == ".json":
        table = _json(path)
        if isinstance(table, Mapping):
            return _by_name(table, classes, path)
    else:
        raise NoiseError(f"--matrix {path} is no matrix that is known: let the name end in .csv, .npy or .json")
    try:
        array = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise NoiseError(f"{path} is not a table of numbers: give {len(classes)} rows of {len(classes)}") from error
    if array.shape != (len(classes), len(classes)):
        raise NoiseError(f"{path} has shape {array.shape}, but there are {len(classes)} classes: give a row for each")
    return array


def _by_name(table: Mapping[str, Any], classes: Sequence[str], path: Path) -> NDArray[Any]:
    import numpy as np

    found = np.zeros((len(classes), len(classes)))
    for name, row in table.items():
        if not isinstance(row, Mapping):
            raise NoiseError(f'{path} has no row for {name!r}: write {{"{name}": {{"{name}": 0.8, "other": 0.2}}}}')
        for other, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise NoiseError(f"{path} has {value!r} from {name!r} to {other!r}: give a probability")
            found[_index(name, classes, str(path)), _index(other, classes, str(path))] = value
    return found


def _index(name: object, classes: Sequence[str], where: str) -> int:
    if str(name) not in classes:
        raise NoiseError(f"{where} names the class {str(name)[:60]!r}: {nearest(str(name)[:60], classes)[:300]}")
    return list(classes).index(str(name))


def _pairs(path: Path) -> list[tuple[str, Any]]:
    found = _json(path)
    if not isinstance(found, Mapping):
        raise NoiseError(f'{path} is no JSON object: write {{"cat": "dog"}}')
    return list(found.items())


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise NoiseError(f"{path} is not JSON ({str(error)[:100]}): correct it") from error


def _text(path: Path) -> str:
    from narl.data.source import as_utf8, nearest_file

    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NoiseError(f"there is no file {path}: {nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        raise NoiseError(f"{path} is not UTF-8 text: {as_utf8(path)}") from error
    except OSError as error:
        raise NoiseError(f"{path} cannot be read: {error.strerror or error}") from error
