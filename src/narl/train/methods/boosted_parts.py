"""The parts of boosted methods, and the options that set them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from narl.errors import OptionError
from narl.train.methods.guesses import DOUBTS
from narl.train.methods.spec import Option

_MIXUP = {"image": 4.0, "table": 1.0, "text": 0.0}


_TENTH, _HALF, _LEAST = 0.1, 0.5, 200


def first_boosted(total_steps: int) -> int:
    """The first step that is boosted: after a tenth, but not before a network could know something.

    A network that has hardly begun is wrong with confidence, and would learn from its own guesses.

    Example:
        >>> [first_boosted(steps) for steps in (100, 1000, 24_000)]
        [50, 200, 2400]
    """
    return max(round(_TENTH * total_steps), min(_LEAST, round(_HALF * total_steps)))


@final
@dataclass(frozen=True)
class Parts:
    """What a boosted method does beside its adjusted loss; 0 switches a part off.

    Args:
        mixup: α of mixup's Beta distribution; None: by the kind of data.
        strong: weight of strong views; None: 1 for images.
        consistency: weight of the guesses for doubted labels.
        takeover: how much of a doubted label's own weight its guess takes.
        temperature: of the guesses' sharpening.
        confidence: smallest probability with which a guess counts.
        suspicion: smallest suspicion with which a label is doubted.
        certain: whether a doubted label is held for wrong altogether, instead of as much as it is doubted.
        unsure: what becomes of a doubted label whose guess does not count: ``"keep"`` or ``"drop"``.
        doubt: what suspicion goes by: ``"margin"``, ``"loss"`` or ``"posterior"``, see
            :mod:`narl.train.methods.guesses`.
        memory: weight of the past in what labels are doubted by: in a margin's average each time its sample comes up,
            in what is counted of the noise each epoch.
        ema: weight of the past in the average of a network's weights.
        networks: how many are trained; of two, each guesses for the other.
        balance: weight of the prior of the classes.
        prior: ``"uniform"``, ``"given"``: as often as labels are given, or None: the second only for uneven classes.
        boost_from: share of the steps before which the loss is the plain adjusted one; None: :func:`first_boosted`.
        ramp: share of the steps after that in which the weight of the guesses rises from 0.
        judge: whose margins the adjuster sees: ``"guess"`` or ``"own"``.
        believed: share of every batch that is drawn by how far labels are believed.
    """

    mixup: float | None = None
    strong: float | None = None
    consistency: float = 1.0
    takeover: float = 1.0
    temperature: float = 0.5
    confidence: float = 0.5
    suspicion: float = 0.5
    certain: bool = False
    unsure: str = "keep"
    doubt: str = "margin"
    memory: float = 0.9
    ema: float = 0.999
    networks: int = 1
    balance: float = 1.0
    prior: str | None = None
    boost_from: float | None = None
    ramp: float = 0.0
    judge: str = "guess"
    believed: float = 0.0

    def for_kind(self, kind: str | None) -> Parts:
        """With what is open decided by the kind of data, or one clear error for what such data cannot have."""
        if kind == "text" and self.mixup:
            raise OptionError("texts cannot be mixed: leave mixup out, or give mixup=0")
        if kind != "image" and self.strong:
            raise OptionError(f"strong views are for images, and these are {_NAMED[kind]}: leave strong out")
        mixup = _MIXUP.get(kind or "table", 0.0) if self.mixup is None else self.mixup
        strong = float(kind == "image") if self.strong is None else self.strong
        return replace(self, mixup=mixup, strong=strong)

    @property
    def guesses(self) -> bool:
        """Whether somebody has to guess."""
        return self.consistency > 0 or (self.judge == "guess" and bool(self.mixup or self.strong))

    @property
    def any(self) -> bool:
        """Whether the objective is more than the plain adjusted loss."""
        return bool(self.mixup or self.strong or self.consistency or self.balance)


_NAMED: dict[str | None, str] = {"table": "tables", "text": "texts", None: "data of another kind"}


OPTIONS: dict[str, Option] = {
    "mixup": Option(
        None,
        "α of the mixture of two samples; none: 4 for images, 1 for the numbers of tables, 0 for texts",
        float,
        low=0,
        high=1000,
    ),
    "strong": Option(None, "weight of strongly changed views; none: 1 for images", float, low=0, high=1000),
    "consistency": Option(1.0, "weight of the guesses for labels that are doubted", low=0, high=1000),
    "takeover": Option(1.0, "how much of a doubted label's own weight its guess takes", low=0, high=1),
    "temperature": Option(0.5, "of the guesses: below 1 they are sharpened", low=0, high=10),
    "confidence": Option(0.5, "probability from which on a guess counts", low=0, high=1),
    "suspicion": Option(0.5, "suspicion from which on a label is doubted", low=0, high=1),
    "certain": Option(False, "hold a doubted label for wrong altogether, not as much as it is doubted"),
    "unsure": Option("keep", "what becomes of a doubted label whose guess does not count", choices=("keep", "drop")),
    "doubt": Option(
        "margin",
        "suspicion by the margin's average over the epochs, by the loss, or by Bayes' rule with the label as evidence",
        choices=tuple(DOUBTS),
    ),
    "memory": Option(0.9, "weight of the past in what labels are doubted by", low=0, high=1),
    "ema": Option(0.999, "weight of the past in the averaged networks that guess and predict", low=0, high=1),
    "networks": Option(1, "networks that are trained; of two, each guesses for the other", low=1, high=2),
    "balance": Option(1.0, "weight of the prior that keeps all classes in use", low=0, high=1000),
    "prior": Option(
        None,
        "classes all alike, or as often as they are given; none: as given if the largest has 3 times the smallest",
        str,
        choices=("uniform", "given"),
    ),
    "boost_from": Option(
        None,
        "share of the steps before which the loss is the plain adjusted one; none: a tenth, at least 200 steps if that "
        "is not more than half",
        float,
        low=0,
        high=1,
    ),
    "ramp": Option(0.0, "share of the steps after that in which the guesses' weight rises from 0", low=0, high=1),
    "judge": Option(
        "guess", "whose margins the adjuster sees: of who guesses, or each row's own", choices=("guess", "own")
    ),
    "believed": Option(
        0.0, "share of every batch that is drawn by how far labels are believed; the rest is as usual", low=0, high=0.9
    ),
}
"""What :class:`Parts` has, as options of a method."""
