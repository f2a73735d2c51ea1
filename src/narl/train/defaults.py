"""What a run does where nobody said: by the kind of data, its size and the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from narl.errors import OptionError
from narl.train import engine, methods
from narl.train.adjusters import load_adjusters, without_clean
from narl.train.settings import Settings

_SMALL = 50_000


@final
@dataclass(frozen=True)
class Defaults:
    """Of one kind of data."""

    epochs: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    augment: str


_BY_KIND = {
    # The paper's protocol, half as long.
    "image": Defaults(60, "sgd", 0.1, 5e-4, "step", "crop+flip"),
    "text": Defaults(30, "adamw", 1e-3, 1e-4, "cosine", "none"),
    "table": Defaults(30, "sgd", 0.05, 5e-4, "cosine", "none"),
}

_LEARNING_RATES = {"sgd": 0.05, "adamw": 1e-3}
_WEIGHT_DECAYS = {"sgd": 5e-4, "adamw": 1e-4}


def of_kind(kind: str) -> Defaults:
    """The defaults for images, texts or tables.

    Example:
        >>> of_kind("image").optimizer
        'sgd'
    """
    return _BY_KIND[kind]


def method_of(settings: Settings, kind: str | None = None) -> str:
    """The method where none was named: adjusted with a clean set, transferred with adjusters, else what is shipped.

    Args:
        settings: as asked for.
        kind: of the data; None: not known yet.

    Example:
        >>> method_of(Settings(data="x.csv", clean="100")), method_of(Settings(data="x.csv"))
        ('A-GCE', 'T-SL')
    """
    if settings.method is not None:
        return settings.method
    if settings.adjusters:
        return f"T-{load_adjusters(settings.adjusters)[0].robust_loss.title}"
    return "A-GCE" if settings.clean != "none" else without_clean(kind=kind)[0]


def adjusters_of(settings: Settings, kind: str | None = None) -> tuple[str, ...]:
    """The adjusters that the method uses: those that were named, or else the one that is shipped for its loss.

    Args:
        settings: as asked for.
        kind: of the data; None: not known yet.

    Example:
        >>> adjusters_of(Settings(data="x.csv", method="CE"))
        ()
    """
    spec = methods.get(method_of(settings, kind))
    if settings.adjusters or not spec.needs_adjuster or spec.loss is None:
        return settings.adjusters
    adjuster = without_clean(spec.loss, kind)[1]
    return () if adjuster is None else (adjuster,)


def heldout_of(settings: Settings) -> float:
    """Share of the clean set that chooses the epoch instead of being learned from.

    None of it unless asked for, or needed to stop early: learning from all of it and taking the last epoch did as well.

    Example:
        >>> heldout_of(Settings(data="x.csv", clean="100")), heldout_of(Settings(data="x.csv", clean="100", patience=3))
        (0.0, 0.25)
    """
    if settings.clean == "none":
        return 0.0
    if settings.heldout is not None:
        return settings.heldout
    if settings.patience is None and not settings.tune:
        return 0.0
    # Methods that learn nothing from clean samples have all of them to choose by, unless they are trained on.
    learns = methods.get(method_of(settings)).learns_from_clean(settings.options)
    return 0.25 if settings.train_on_clean or learns else 0.0


@final
@dataclass(frozen=True)
class Recipe:
    """What was decided: the settings' open points filled in. Kept with the run, so that later defaults change nothing.

    Args:
        method: name of the method.
        heldout: share of the clean set that chooses the epoch.
        epochs: passes over the training samples.
        batch_size: samples a step.
        optimizer: ``"sgd"`` or ``"adamw"``.
        learning_rate: that the schedule starts from.
        momentum: of SGD.
        weight_decay: of the classifier.
        schedule: of the learning rate.
        augment: how training images are varied.
        device: where to compute.
        threads: of torch on the CPU.
        precision: of convolutions and matrix products.
        clean_share: of checked samples in every batch; None: each comes up as often as any other.
    """

    method: str
    heldout: float
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    augment: str
    device: str
    threads: int
    precision: str = "float32"
    clean_share: float | None = None


def decide(settings: Settings, *, kind: str, samples: int, device: str, threads: int, channels: int = 3) -> Recipe:
    """Decide every open point.

    Args:
        settings: as asked for.
        kind: of the data.
        samples: to train on.
        device: that was found.
        threads: that torch uses by itself.
        channels: of images.

    Returns:
        What the run will do.

    Example:
        >>> recipe = decide(Settings(data="x.csv"), kind="table", samples=1000, device="cpu", threads=8)
        >>> recipe.optimizer, recipe.batch_size, recipe.threads
        ('sgd', 100, 1)
    """
    by_kind = of_kind(kind)
    optimizer = (settings.optimizer or by_kind.optimizer).lower()
    if optimizer not in _LEARNING_RATES:
        raise OptionError(f"no optimiser is called {settings.optimizer!r}: use sgd or adamw")
    if settings.momentum is not None and optimizer != "sgd":
        raise OptionError(f"--momentum is of sgd, {optimizer} has none: leave it out")
    own = optimizer == by_kind.optimizer
    if kind != "image" and settings.augment not in (None, "none"):
        raise OptionError(f"--augment {settings.augment} is for images, this data is a {kind}: leave it out")
    if (settings.image_size and kind != "image") or (settings.text_length and kind != "text"):
        flag = "--image-size" if settings.image_size and kind != "image" else "--text-length"
        raise OptionError(f"{flag} means nothing for a {kind}: leave it out")
    epochs = settings.epochs or by_kind.epochs
    if settings.milestones and settings.milestones[-1] >= epochs:
        raise OptionError(
            f"--milestones {settings.milestones[-1]:g} is not inside a run of {epochs} epochs: give an earlier one, or "
            "train longer with --epochs"
        )
    return Recipe(
        method=methods.get(method_of(settings, kind)).name,
        heldout=heldout_of(settings),
        epochs=epochs,
        batch_size=settings.batch_size or (100 if samples <= _SMALL or kind != "table" else 1000),
        optimizer=optimizer,
        learning_rate=settings.learning_rate or (by_kind.learning_rate if own else _LEARNING_RATES[optimizer]),
        momentum=_given(settings.momentum, 0.9 if optimizer == "sgd" else 0.0),
        weight_decay=_given(settings.weight_decay, by_kind.weight_decay if own else _WEIGHT_DECAYS[optimizer]),
        schedule=settings.schedule or by_kind.schedule,
        # Grey images are mostly writing and scans, which nobody meets mirrored.
        augment=settings.augment or ("crop" if kind == "image" and channels == 1 else by_kind.augment),
        device=device,
        # Small networks on small batches: more threads mostly wait for each other.
        threads=settings.threads or (threads if kind == "image" else 1),
        precision=_precision(settings, kind, device),
    )


def _precision(settings: Settings, kind: str, device: str) -> str:
    """Half precision only where it gains: not for small networks on numbers, nor for a difference of logits."""
    exact = kind == "table" or settings.options.get("tangent") == "difference"
    return "float32" if exact and settings.precision == "auto" else engine.precision_of(settings.precision, device)


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
