"""Methods: ways to train a classifier on noisy labels, by name.

Every registered loss is a method with fixed hyperparameters (``GCE``), and, if it has hyperparameters, an adjusted one
(``A-GCE``) and a transferred one (``T-GCE``), each of which also has a boosted form (``A-GCE+``); losses that are
registered later are found as well. ``register`` makes one's own method known, and ``package.module:name`` names one
without that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from narl import losses
from narl.errors import DuplicateNameError, OptionError, UnknownNameError, nearest
from narl.losses import RobustLoss
from narl.train.methods import (
    adjusted,
    boosted,
    co_teaching,
    divide_mix,
    elr,
    elr_plus,
    fixed,
    forward,
    mentornet,
    meta_weight_net,
    mixup,
    transferred,
)
from narl.train.methods.base import LossMethod, Method, Move, Setting
from narl.train.methods.descent import descend
from narl.train.methods.spec import MethodSpec, Option, spec_of
from narl.train.own import load_object

__all__ = [
    "LossMethod",
    "Method",
    "MethodSpec",
    "Move",
    "Option",
    "Setting",
    "build",
    "descend",
    "get",
    "names",
    "register",
    "unregister",
]

_BASELINES = (forward, meta_weight_net, mixup, mentornet, co_teaching, elr, elr_plus, divide_mix)

_own: dict[str, MethodSpec] = {}


def names() -> tuple[str, ...]:
    """The names of all methods: fixed losses, baselines, adjusted losses, transferred ones, registered ones.

    Example:
        >>> names()
        ('CE', 'GCE', 'JS', 'MAE', 'PolySoft', 'SL', 'Forward', 'MW-Net', 'Mixup', ..., 'A-GCE', ...)
    """
    known = _known()
    return tuple(dict.fromkeys(spec.name for spec in known.values() if known[spec.name.lower()] is spec))


def get(name: str) -> MethodSpec:
    """The method of that name.

    Args:
        name: one of :func:`names`, case ignored, or ``package.module:name``: a :class:`Method` subclass, a
            :class:`MethodSpec` or a function ``(setting, **options) -> Method`` in a module of one's own.

    Returns:
        Its specification; ``get(spec.name)`` gives it again.

    Raises:
        UnknownNameError: no method has that name.

    Example:
        >>> get("mw-net").needs_clean
        True
        >>> get("A-GEC")
        Traceback (most recent call last):
        narl.errors.UnknownNameError: no method is called 'A-GEC': did you mean 'A-GCE'? Known: A-GCE, ...
    """
    if not isinstance(name, str):
        raise UnknownNameError(f"{name!r} is no method's name: give a string, {nearest('', names())}")
    if ":" in name:
        return spec_of(load_object(name), name)
    try:
        return _known()[name.strip().lower()]
    except KeyError:
        raise UnknownNameError(f"no method is called {name!r}: {nearest(name, names())}") from None


def boosted_form(name: str) -> str:
    """The boosted form of an adjusted or transferred loss, by name.

    Args:
        name: as in :func:`get`.

    Returns:
        Its name, which ends in a plus.

    Raises:
        OptionError: the method has no such form.

    Example:
        >>> boosted_form("a-gce")
        'A-GCE+'
        >>> boosted_form("Forward")
        Traceback (most recent call last):
        narl.errors.OptionError: Forward has no boosted form: only adjusted losses have one, A-*, which learn ...
    """
    spec = get(name)
    if spec.name.endswith("+") and spec.name[:2] in ("A-", "T-"):
        return spec.name
    if spec.name[:2] not in ("A-", "T-") or f"{spec.name}+".lower() not in _known():
        raise OptionError(
            f"{spec.name} has no boosted form: only adjusted losses have one, A-*, which learn from clean samples "
            "(--clean), and T-*, which use an adjuster (--adjuster); give one of the two, or leave --boost out"
        )
    return f"{spec.name}+"


def boosted_with(name: str, option: str) -> str | None:
    """The boosted form of a method, if that has such an option; None: it has none, or there is no such form.

    Example:
        >>> boosted_with("T-SL", "believed"), boosted_with("T-SL", "colour"), boosted_with("ELR", "alpha")
        ('T-SL+', None, None)
    """
    try:
        boosted = boosted_form(name)
    except OptionError:
        return None
    return boosted if option in get(boosted).options else None


def fixed_with(option: str) -> str | None:
    """The fixed loss that has such a hyperparameter; None: no loss has.

    Example:
        >>> fixed_with("q"), fixed_with("colour")
        ('GCE', None)
    """
    for name in losses.names():
        if any(hyperparameter.name == option for hyperparameter in losses.get(name).hyperparameters):
            return losses.get(name).title
    return None


def register(method: MethodSpec | type[Method] | Callable[..., Method]) -> MethodSpec:
    """Make a method known by its name.

    Args:
        method: a specification, a :class:`Method` subclass or a function ``(setting, **options) -> Method``; of the
            last two, the keyword arguments become the options.

    Returns:
        Its specification.

    Example:
        >>> class Halved(LossMethod):
        ...     \"\"\"Half the cross entropy.\"\"\"
        ...     def values(self, logits, y, ids):
        ...         return losses.ce(logits, y) / 2
        >>> register(Halved).description
        'Half the cross entropy.'
        >>> "Halved" in names()
        True
        >>> unregister("Halved")
    """
    spec = spec_of(method)
    if spec.name.lower() in _known() or ":" in spec.name:
        raise DuplicateNameError(
            f"a method called {spec.name!r} is known already: choose another name, or call "
            f"narl.train.methods.unregister({spec.name!r}) first to replace one of your own"
        )
    _own[spec.name.lower()] = spec
    return spec


def unregister(name: str) -> None:
    """Forget a method that was registered.

    Args:
        name: its name.

    Example:
        >>> unregister("CE")
        Traceback (most recent call last):
        narl.errors.OptionError: 'CE' was not registered but belongs to narl: only registered methods can be forgotten
    """
    spec = get(name)
    if _own.pop(spec.name.lower(), None) is None:
        raise OptionError(f"{name!r} was not registered but belongs to narl: only registered methods can be forgotten")


def build(name: str, setting: Setting, **options: Any) -> Method:
    """The method of that name, ready for its first step.

    Args:
        name: as in :func:`get`.
        setting: what there is to work with.
        options: of the method, by name.

    Returns:
        The method.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator())
        >>> build("gce", setting, q=0.5).name
        'GCE'
        >>> build("gce", setting, Q=0.5)
        Traceback (most recent call last):
        narl.errors.OptionError: GCE has no option 'Q': did you mean 'q'? Known: q
    """
    return get(name).build(setting, **options)


def _known() -> dict[str, MethodSpec]:
    """All methods by lower-case name; losses also by the name they are registered under."""
    registered = [losses.get(name) for name in losses.names()]
    titled = [(loss, _title(loss, registered)) for loss in registered]
    adjustable = [(loss, title) for loss, title in titled if loss.hyperparameters]
    found = {title.lower(): fixed.spec(loss, title) for loss, title in titled}
    found |= {module.SPEC.name.lower(): module.SPEC for module in _BASELINES}
    for prefix, spec_of_loss in (("a-", adjusted.spec), ("t-", transferred.spec)):
        for loss, title in adjustable:
            found.setdefault(f"{prefix}{title}".lower(), spec_of_loss(loss, title))
    for prefix, spec_of_loss in (("a-", adjusted.spec), ("t-", transferred.spec)):
        for loss, title in adjustable:
            found.setdefault(f"{prefix}{title}+".lower(), boosted.spec(spec_of_loss(loss, title)))
    for loss, title in titled:
        for prefix, end in (("", ""), ("a-", ""), ("t-", ""), ("a-", "+"), ("t-", "+")):
            if f"{prefix}{title}{end}".lower() in found:
                found.setdefault(f"{prefix}{loss.name}{end}", found[f"{prefix}{title}{end}".lower()])
    return {**found, **_own}


def _title(loss: RobustLoss, registered: list[RobustLoss]) -> str:
    """The loss's title, or its name where the title would mean another one as well."""
    taken = {word for other in registered if other is not loss for word in (other.name, other.title.lower())}
    return loss.name if loss.title.lower() in taken else loss.title
