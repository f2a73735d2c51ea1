"""What a run was asked to do: kept in its folder, so that it can be resumed, repeated and read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

from narl.data.read import Columns
from narl.errors import ConfigError, OptionError, nearest

ENGINES = ("auto", "eager")
PRECISIONS = ("auto", "float32", "bfloat16")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,59}")
# What metrics and summaries speak of already.
_TAKEN = ("test", "heldout", "train", "clean", "checked", "meta")


@final
@dataclass(frozen=True)
class Settings:
    """Everything that decides a run's result. None means: chosen by the data, see :mod:`narl.train.defaults`.

    Args:
        data: where the training samples are: a folder, a file, or ``hub:NAME``.
        layout: how ``data`` is laid out; ``"auto"`` finds out.
        columns: which columns of a table are what.
        labels: a file with other given labels, ``FILE`` or ``FILE:KEY``.
        clean: the clean set: ``"none"``, a number of samples to take out of the training set, a file or folder, or a
            file of sample ids.
        train_on_clean: train on the clean samples as well, with their checked labels; not on held-out ones.
        clean_share: of these clean samples in every batch, above 0 and below 1; None: see
            :func:`narl.train.checked.auto_share`.
        heldout: share of the clean set that is not learned from but chooses the best epoch.
        test: the test set: ``"auto"`` (the data's own, else a tenth of it), ``"none"``, a share, a file or folder.
        also_test: further test sets, a file or folder each by name: looked at after every epoch, they choose nothing.
        limit: train on so many samples only.
        overlap: what to do about samples that are in two of the sets: ``"refuse"``, ``"drop"`` or ``"allow"``.
        skip_unreadable: leave out images that cannot be decoded.
        method: name of the method, or ``package.module:name``.
        options: of the method.
        adjusters: files or a run, for methods that use learned adjusters.
        tune: choose the loss's hyperparameters by validation on the clean set.
        model: name of the model, or ``package.module:function``.
        image_size: side that images are brought to.
        text_length: tokens a text is cut to.
        augment: how training images are varied.
        epochs: passes over the training samples.
        batch_size: samples a step, of all processes together.
        clean_batch_size: clean samples a meta step.
        optimizer: ``"sgd"`` or ``"adamw"``.
        learning_rate: that the schedule starts from.
        momentum: of SGD.
        weight_decay: of either.
        schedule: ``"step"``, ``"cosine"`` or ``"constant"``.
        milestones: epochs after which the step schedule divides the learning rate by ten; empty: after two thirds and
            five sixths of the run.
        warmup: epochs during which the learning rate rises.
        patience: stop after so many epochs without a better one on the held-out clean samples.
        seed: of everything random.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` …
        engine: ``"auto"``: the fastest that does the same training; ``"eager"``: steps as they are written.
        precision: ``"float32"``, ``"bfloat16"``, or ``"auto"``: bfloat16 for images and texts on GPUs that have it.
        threads: of torch on the CPU; a resumed run uses as many, since rounding depends on it.
        workers: threads that decode images.
        memory_limit: bytes up to which decoded images are held in memory.

    Example:
        >>> Settings(data="letters.csv").clean
        'none'
    """

    data: str
    layout: str = "auto"
    columns: Columns = field(default_factory=Columns)
    labels: str | None = None
    clean: str = "none"
    train_on_clean: bool = False
    clean_share: float | None = None
    heldout: float | None = None
    test: str = "auto"
    also_test: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    overlap: str = "refuse"
    skip_unreadable: bool = False
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    adjusters: tuple[str, ...] = ()
    tune: bool = False
    model: str | None = None
    image_size: int | None = None
    text_length: int | None = None
    augment: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    clean_batch_size: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: str | None = None
    milestones: tuple[float, ...] = ()
    warmup: float = 0.0
    patience: int | None = None
    seed: int = 0
    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    workers: int | None = None
    memory_limit: int = 2**30

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before anything is read."""
        at_least = {"limit": 2, "epochs": 1, "batch_size": 2, "clean_batch_size": 1, "image_size": 1, "text_length": 1}
        at_least |= {"patience": 1, "threads": 1, "workers": 1, "memory_limit": 0, "seed": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OptionError(f"{_flag(name)} = {value!r} makes no sense: give a whole number of at least {least}")
        # More would fill the memory, or ask the system for more threads than it has, before anything could be said.
        for name, largest in {"image_size": 8192, "text_length": 65_536, "threads": 1024, "workers": 1024}.items():
            if getattr(self, name) is not None and getattr(self, name) > largest:
                raise OptionError(f"{_flag(name)} = {getattr(self, name)} is too large: give at most {largest:,}")
        for name, most in {"learning_rate": 1e6, "weight_decay": 1e6, "momentum": 1.0, "warmup": 1e6}.items():
            value = getattr(self, name)
            is_open = value is None and name != "warmup"  # which nobody decides later
            if not is_open and not (isinstance(value, (int, float)) and 0 <= value <= most):
                raise OptionError(f"{_flag(name)} = {value!r} makes no sense: give a number from 0 to {most:g}")
        for name in ("data", "layout", "clean", "test", "overlap", "device", "engine", "precision"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{_flag(name)} = {getattr(self, name)!r} is no text: write str(...)")
        for name, known in {"engine": ENGINES, "precision": PRECISIONS}.items():
            if getattr(self, name) not in known:
                raise OptionError(f"{_flag(name)} = {getattr(self, name)!r} is unknown: use {' or '.join(known)}")
        if self.learning_rate == 0:
            raise OptionError("--learning-rate = 0 learns nothing: give a number above 0")
        if self.heldout is not None and not (isinstance(self.heldout, (int, float)) and 0 <= self.heldout < 1):
            raise OptionError(
                f"--heldout = {self.heldout} is no share of the clean set: give a number from 0 to below 1"
            )
        share = self.clean_share
        if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1):
            raise OptionError(f"--clean-share = {share!r} is no share of a batch: give a number above 0 and below 1")
        if not _rising(self.milestones):
            raise OptionError(
                f"--milestones = {self.milestones!r} makes no sense: give a tuple of epochs above 0, each later than "
                "the one before"
            )
        _check_also(self.also_test, self.test)
        if self.seed >= 2**63:
            raise OptionError(f"--seed = {self.seed} is too large: use a number below 2**63")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """From what :meth:`to_json` gave, perhaps by way of a file.

        Example:
            >>> settings = Settings(data="x.csv", columns=Columns(label="class"))
            >>> Settings.from_json(settings.to_json()) == settings
            True
        """
        known = {entry.name for entry in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"no setting is called {unknown[0]!r}: {nearest(unknown[0], known)}")
        given = dict(values)
        try:
            columns: dict[str, Any] = dict(given.pop("columns", {}))
            columns |= {name: tuple(value) for name, value in columns.items() if isinstance(value, list)}
            given |= {name: tuple(given.get(name, ())) for name in ("adjusters", "milestones")}
            return cls(columns=Columns(**columns), **given)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"these settings are not a run's: {error}") from error


def _check_also(given: Any, test: str) -> None:
    """Refuse further test sets whose numbers could not be told from others."""
    if not isinstance(given, Mapping) or not all(isinstance(path, str) for path in given.values()):
        raise OptionError(f"--also-test = {given!r} is no path by name: give such as {{'ILSVRC12': 'val'}}")
    for name, path in given.items():
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            raise OptionError(
                f"--also-test has the name {name!r}: give a plain word of letters, digits, dots and hyphens, such as "
                "--also-test ILSVRC12=PATH"
            )
        if name.lower() in _TAKEN:
            raise OptionError(f"--also-test cannot call a set {name!r}, which stands for another one: rename it")
        if not path:
            raise OptionError(f"--also-test {name}= says of no data where it is: give its path")
    if len({name.lower() for name in given}) < len(given):
        raise OptionError(f"--also-test has two sets of one name ({', '.join(given)}): rename one")
    if given and test == "none":
        raise OptionError("--also-test is beside a test set, and --test none has none: give that one with --test")


def _rising(epochs: Any) -> bool:
    """Whether these are finite numbers above 0, each larger than the one before."""
    if not isinstance(epochs, tuple) or any(
        isinstance(one, bool) or not isinstance(one, (int, float)) for one in epochs
    ):
        return False
    return all(earlier < later for earlier, later in pairwise((0, *epochs, float("inf"))))


def _flag(name: str) -> str:
    return "--memory" if name == "memory_limit" else "--" + name.replace("_", "-")
