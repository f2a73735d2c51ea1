"""What is known about a method before it is built: its name, what it needs, and its options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, final

from narl.errors import CleanBatchError, OptionError, nearest
from narl.models.committee import Networks
from narl.train.methods.base import Method, Setting

_ONE = Networks()
_NONE = ("none", "auto")  # as a command line says it
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@final
@dataclass(frozen=True)
class Option:
    """One option of a method.

    Args:
        default: its value if it is not given. With a default of None, None is a value, also written
            ``none`` or ``auto``.
        description: what it does, in a few words.
        kind: ``float``, ``int``, ``bool``, ``str``, or ``object`` for anything; the default's if omitted.
        choices: the only values that it can take, if there are only some.
        low: smallest value of a number.
        high: largest value of a number.
        words: what it can be besides.

    Example:
        >>> Option(0.7, "more is more robust", low=0, high=1).checked("q", 1.5)
        Traceback (most recent call last):
        narl.errors.OptionError: q = 1.5 is outside [0, 1]: choose a value inside; 0.7 is the default
    """

    default: Any
    description: str = ""
    kind: type[Any] | None = None
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the kind."""
        if self.kind is None:
            object.__setattr__(self, "kind", object if self.default is None else type(self.default))

    def checked(self, name: str, value: Any) -> Any:
        """The value, as its kind, or an error that calls the option by this name."""
        if self.default is None and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
            return None
        if isinstance(value, str) and value in self.words:
            return value
        if (self.kind is bool and not isinstance(value, bool)) or (self.kind is str and not isinstance(value, str)):
            raise self._wrong_kind(name, value)
        if self.kind is int or self.kind is float:
            value = self._number(name, value)
        if self.choices and value not in self.choices:
            raise OptionError(f"{name} = {value!r} is unknown: {nearest(str(value), self.choices)}")
        return value

    def read(self, name: str, text: str) -> Any:
        """The value that a command line writes so."""
        word = text.strip().lower()
        kinds: dict[Any, Callable[[str], Any]] = {bool: lambda word: _BOOLEANS[word], int: int, float: float}
        if self.kind not in kinds or (self.default is None and word in _NONE) or word in self.words:
            return self.checked(name, word if word in self.words else text)
        try:
            value = kinds[self.kind](word)
        except (ValueError, KeyError):
            raise self._wrong_kind(name, text) from None
        return self.checked(name, value)

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            raise self._wrong_kind(name, value)
        try:
            number = int(value) if isinstance(value, Integral) and self.kind is int else float(value)
        except OverflowError:
            raise self._wrong_kind(name, value) from None
        if isinstance(number, float) and not math.isfinite(number):
            raise self._wrong_kind(name, value)
        if not self.low <= number <= self.high:
            default = "" if self.default is None else f"; {self.default} is the default"
            inside = "choose a value inside" + (f", or {' or '.join(self.words)}" if self.words else "")
            raise OptionError(f"{name} = {value} is outside {self._span}: {inside}{default}")
        return number

    @property
    def range(self) -> str:
        """The values that it can take, in words; empty if that says no more than its kind."""
        if self.choices:
            return " or ".join(self.choices)
        if math.isinf(self.low) and math.isinf(self.high):
            return " or ".join(self.words)
        return " or ".join([self._span, *self.words])

    @property
    def _span(self) -> str:
        return f"[{self.low:g}, {self.high:g}]".replace("inf", "∞")

    def _wrong_kind(self, name: str, value: object) -> OptionError:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        wanted = " or ".join([kinds.get(self.kind or object, "a value"), *self.words])
        default = f"; {self.default} is the default" if self.default is not None else " or none"
        return OptionError(f"{name} = {value!r} is not {wanted}: give {wanted}{default}")


@final
@dataclass(frozen=True, eq=False)
class MethodSpec:
    """A method that can be chosen by name.

    Args:
        name: how it is chosen and how tables write it; case is ignored when it is looked up.
        make: ``(setting, **options) -> Method``.
        description: one line for a list of methods.
        needs_clean: whether it needs a clean set.
        uses_clean: whether it makes use of a clean set if there is one; what needs one uses it.
        ignores_clean: says of options whether it makes no use of it with them; None: it always does.
        needs_adjuster: whether it needs a learned adjuster, as the option ``adjusters``.
        loss: name of the loss that it uses, if it uses a registered one.
        options: by name.
        candidates: settings of the options among which validation on the clean set may choose.
        networks: how many it trains, or a function of its options, all of them by name, that says it.

    Example:
        >>> from narl.train import methods
        >>> spec = methods.get("A-GCE")
        >>> spec.needs_clean, spec.loss, spec.options["margin"].default
        (True, 'gce', 'running')
    """

    name: str
    make: Callable[..., Method]
    description: str = ""
    needs_clean: bool = False
    uses_clean: bool = False
    ignores_clean: Callable[[Mapping[str, Any]], bool] | None = None
    needs_adjuster: bool = False
    loss: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    candidates: tuple[Mapping[str, float], ...] = ()
    networks: Networks | Callable[[Mapping[str, Any]], Networks] = _ONE

    def __post_init__(self) -> None:
        """What needs a clean set uses it."""
        object.__setattr__(self, "uses_clean", self.uses_clean or self.needs_clean)

    def learns_from_clean(self, options: Mapping[str, Any]) -> bool:
        """Whether it makes use of a clean set with these options.

        Example:
            >>> from narl.train import methods
            >>> [methods.get("MentorNet").learns_from_clean(o) for o in ({}, {"curriculum": "predefined"})]
            [True, False]
        """
        return self.uses_clean and not (self.ignores_clean is not None and self.ignores_clean(options))

    def grid(self) -> tuple[dict[str, float], ...]:
        """Settings of the options for validation to choose from; empty if there is no choice."""
        return tuple(dict(candidate) for candidate in self.candidates)

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, the given ones checked and the others at their defaults."""
        for name in options:
            if name not in self.options:
                known = nearest(name, self.options) if self.options else "it has none"
                raise OptionError(f"{self.name} has no option {name!r}: {known}")
        given = {name: self.options[name].checked(name, value) for name, value in options.items()}
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def networks_for(self, options: Mapping[str, Any]) -> Networks:
        """How many networks it trains with these options.

        Example:
            >>> from narl.train import methods
            >>> methods.get("A-GCE").networks_for({})
            Networks(count=1, averaged=False)
        """
        return self.networks if isinstance(self.networks, Networks) else self.networks(self.checked(options))

    def build(self, setting: Setting, **options: Any) -> Method:
        """The method, ready for its first step.

        Args:
            setting: what there is to work with.
            options: by name; those not given have their defaults.

        Returns:
            The method.
        """
        complete = self.checked(options)
        if self.needs_clean and setting.clean is None:
            raise CleanBatchError(
                f"{self.name} learns from samples whose labels are right, and there is no clean set: give one, or "
                "choose a method that needs none"
            )
        method = self.make(setting, **complete)
        if not isinstance(method, Method):
            raise OptionError(f"{self.name} made a {type(method).__name__}: it must make a narl.train.methods.Method")
        method.name = self.name
        return method


def spec_of(given: object, name: str | None = None) -> MethodSpec:
    """What is known about a method that comes as a class or a function.

    A class or function is called with the setting and its options, which are its keyword arguments: their defaults
    tell the options' kinds. ``needs_clean``, ``uses_clean`` and ``networks`` are read from it, if it has them, and the
    first line of its docstring describes it.

    Args:
        given: a :class:`MethodSpec`, a :class:`Method` subclass, or a function ``(setting, **options) -> Method``.
        name: how to call it, instead of by its own name.

    Returns:
        The specification.

    Raises:
        OptionError: nothing that makes a method.

    Example:
        >>> def careful(setting, *, strength=0.5):
        ...     \"\"\"Trains carefully.\"\"\"
        >>> spec = spec_of(careful)
        >>> spec.name, spec.description, spec.options["strength"].default
        ('careful', 'Trains carefully.', 0.5)
    """
    if isinstance(given, MethodSpec):
        return given if name is None else replace(given, name=name)
    called: str = name or getattr(given, "__name__", None) or repr(given)
    if not callable(given) or (isinstance(given, type) and not issubclass(given, Method)):
        what = "a class" if isinstance(given, type) else f"a {type(given).__name__}"
        raise OptionError(
            f"{called} is {what}, no method: give a subclass of narl.train.methods.Method, a MethodSpec, or a "
            "function (setting, **options) that returns a method"
        )
    if inspect.isabstract(given):
        missing = ", ".join(sorted(getattr(given, "__abstractmethods__", ())))
        raise OptionError(f"{called} is abstract: write its {missing}")
    return MethodSpec(
        name=called,
        make=given,
        description=next(iter((given.__doc__ or "").strip().splitlines()), ""),
        needs_clean=bool(getattr(given, "needs_clean", False)),
        uses_clean=bool(getattr(given, "uses_clean", False)),
        options=_options_of(given, called),
        networks=getattr(given, "networks", _ONE),
    )


def _options_of(given: Callable[..., object], name: str) -> dict[str, Option]:
    try:
        setting, *rest = inspect.signature(given).parameters.values()
    except ValueError:
        raise OptionError(f"{name} takes no setting: give it the arguments (setting, *, option=default, …)") from None
    wrong = [p.name for p in rest if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if setting.default is not setting.empty or wrong:
        raise OptionError(
            f"{name}'s arguments must be the setting and options with defaults, but "
            f"{', '.join(wrong) + ' has none' if wrong else setting.name + ' has one'}"
        )
    return {p.name: Option(p.default) for p in rest if p.default is not p.empty}
