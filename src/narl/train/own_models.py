"""Calling a function that makes a model: with what it asks for, by name, and reproducible random weights."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from narl.errors import NarlError, OptionError, nearest


def made_by(name: str, maker: object, offered: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """The model that a user's function or class makes.

    Args:
        name: what the user calls it.
        maker: the function or class.
        offered: arguments that it may ask for, by name.
        options: arguments that the user gave.

    Returns:
        The model.

    Raises:
        OptionError: it is no function, wants what there is not, fails, or returns something else.

    Example:
        >>> made_by("torch.nn:Linear", nn.Linear, {"in_features": 4, "num_classes": 3}, {"out_features": 3})
        Linear(in_features=4, out_features=3, bias=True)
    """
    if not callable(maker):
        raise OptionError(f"{name} is a {type(maker).__name__}: name a function or class that makes an nn.Module")
    given = arguments(name, maker, offered, options)
    try:
        model = maker(**given)
    except NarlError:
        raise
    except Exception as error:
        raise OptionError(f"{name} failed to make a model ({reason(error)}): correct it") from error
    if not isinstance(model, nn.Module):
        raise OptionError(f"{name} returned a {type(model).__name__}: it must return an nn.Module")
    return model


def arguments(
    name: str, maker: Callable[..., Any], offered: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the offered arguments that a function names, and all options, which it must take.

    Args:
        name: what the user calls the function.
        maker: the function. ``**kwargs`` take options, but none of what is merely offered.
        offered: arguments that it may ask for, by name.
        options: arguments that the user gave.

    Returns:
        What to call it with.

    Raises:
        OptionError: an option that it does not have, or an argument that is not to be had.

    Example:
        >>> arguments("net", lambda num_classes, width=8: None, {"num_classes": 3, "length": 5}, {"width": 4})
        {'num_classes': 3, 'width': 4}
    """
    try:
        parameters = list(inspect.signature(maker).parameters.values())
    except (TypeError, ValueError):
        raise OptionError(f"{name} has no signature to be read: wrap it in a Python function") from None
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in named and not takes_any:
            raise OptionError(f"{name} has no option {option!r}: {nearest(option, named - offered.keys())}")
    given = {key: value for key, value in offered.items() if key in named} | dict(options)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [key for key in needed if key not in given]
    if missing:
        raise OptionError(
            f"{name} wants {', '.join(map(repr, missing))}, which this data does not have: it can have "
            f"{', '.join(sorted(offered))}"
        )
    return given


@contextlib.contextmanager
def global_state_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, torch's global random state follows from the generator; afterwards it is what it was.

    Args:
        generator: advances by one number.

    Example:
        >>> def draw():
        ...     with global_state_from(torch.Generator().manual_seed(0)):
        ...         return torch.rand(1)
        >>> torch.equal(draw(), draw())
        True
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if started else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def reason(error: Exception) -> str:
    """The kind of a foreign error and its first line.

    Example:
        >>> reason(KeyError("width"))
        "KeyError: 'width'"
    """
    first = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
