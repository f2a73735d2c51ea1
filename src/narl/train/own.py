"""Python objects by name: how a method or a model from outside the package reaches the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from narl.errors import OptionError, UnknownNameError, nearest


def load_object(path: str) -> object:
    """What ``package.module:name`` names.

    The current directory is looked in first, as ``python -m`` does, and stays on Python's path, so that the module can
    import its neighbours later.

    Args:
        path: the module as in an import statement, a colon, and a name in it.

    Returns:
        The object.

    Raises:
        OptionError: not of this form, or the module cannot be imported.
        UnknownNameError: the module has no such name.

    Example:
        >>> load_object("math:tau")
        6.283185307179586
        >>> load_object("math:tua")
        Traceback (most recent call last):
        narl.errors.UnknownNameError: module 'math' has no 'tua': did you mean 'tau'? Known: acos, ...
    """
    module_name, colon, name = path.partition(":")
    parts = module_name.split(".")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in parts):
        raise OptionError(
            f"{path!r} names no Python object: write package.module:name, such as my_module:MyMethod for MyMethod in "
            "my_module.py"
        )
    folder = str(Path.cwd())
    if not {folder, ""} & set(sys.path):
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be younger than Python's list of the folder
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise OptionError(
                f"there is no module {error.name!r}, asked for as {path!r}: run the command from the folder that "
                f"{parts[0]} is in, or install it"
            ) from None
        raise OptionError(f"module {module_name!r} needs {error.name!r}, which is missing: install it") from error
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OptionError(f"module {module_name!r} cannot be imported ({reason}): correct it") from error
    if not hasattr(module, name):
        public = [known for known in dir(module) if not known.startswith("_")]
        raise UnknownNameError(f"module {module_name!r} has no {name!r}: {nearest(name, public)}")
    found: object = getattr(module, name)
    return found
