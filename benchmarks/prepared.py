"""Prepare an adjuster that was learned from tasks of ten classes for data with any number of them, of any sizes.

    python benchmarks/prepared.py adjusters/gce.safetensors adjusters/gce-prepared.safetensors
    python benchmarks/prepared.py adjusters/gce.safetensors adjusters/gce-lifted.safetensors --parts margins
    python benchmarks/prepared.py adjusters/gce.safetensors adjusters/gce-half.safetensors --lift 0.5
    python benchmarks/prepared.py adjusters/gce.safetensors adjusters/gce-estimated.safetensors --noise-rate estimated

Three things that were learned mean something else on other data. With ten classes the first two change nothing:

- **How low a margin is.** With more classes a right label can be further down: margins are lifted by the logarithm of
  their number (`Adjuster.lifted`), or by a part of it: where most labels are wrong, many of those far down are.
- **How strongly everybody is learned from at first**, by the snapshot of before the training. At p = 1 / c a robust
  loss pulls the less the more classes there are. Its first hyperparameter is set so that it pulls as with ten.
- **Which classes are small.** Families part classes however alike they are. The heads have learned what asymmetric
  noise makes of class sizes; elsewhere a class gets the one whose size is nearest to its own (`Adjuster.sizes`).

With ``--noise-rate`` it also says that its loss is to doubt no more labels than seem to be wrong, in trainings of 5,000
steps and more: what an adjuster sees does not tell how many that are, and in short trainings that cannot be estimated.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from narl.adjuster import Adjuster, packs
from narl.adjuster.packs import Pack
from narl.adjuster.worth import ESTIMATED
from narl.bench import runs
from narl.bench.runs import Run
from narl.losses import RobustLoss

SECTION = """\
## What was changed for other data

- It sees margins lifted by {lift}log(c / 10), c being the number of classes: with more of them a right label can be
  further down.
- With more than ten classes the snapshot of before the training, which gives all samples the same, is set so that a
  label pulls the classifier at the first step as strongly as with ten, or as nearly so as the hyperparameter's span
  allows (with 200 classes {pull:.2f} of what cross entropy does, with ten {pull_of_ten:.2f}).
- Its three heads are for classes of {sizes} times the mean class, as asymmetric noise
  made them. A class gets the head whose size is nearest to its own; where classes are alike, that is the middle one.

With ten classes the first two change nothing.
"""

DOUBTS = """\
## How many labels are wrong

It does not see that, so in trainings of {steps:,} steps and more it is estimated: labels are doubted by Bayes' rule and
by what was learned, all in all no more than seem to be wrong (`narl.adjuster.worth.LabelWorth`).
`noise_rate="ignored"` leaves that out.
"""

RESULTS = Path(__file__).parent.parent / "results"
PARTS = ("margins", "start", "sizes")
TEN = 10
COUNTING = 5000
"""Steps of a training from which on noise rates are estimated: with fewer it gains on some data and loses on other."""
END = 0.01  # as near to a span's ends as it begins
KNOTS = (10, 20, 40, 80, 160, 320, 640, 1280)
"""Numbers of classes at which the first hyperparameter is computed; between them its logit is a line in log c."""


def pull(loss: RobustLoss, classes: int, **hyperparameters: float) -> float:
    """How strongly a label raises its logit where nothing is known yet, in units of what cross entropy does.

    Example:
        >>> from narl import losses
        >>> round(pull(losses.get("gce"), 10, q=0.3), 4), round(10**-0.3, 4)
        (0.5012, 0.5012)
    """
    logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(loss(logits, torch.tensor([0]), **hyperparameters).sum(), logits)
    return -float(slopes[0, 0]) / (1 - 1 / classes)


def as_strong(loss: RobustLoss, classes: int) -> float:
    """The first hyperparameter with which the loss, else as it starts, pulls as with ten classes, or the nearest.

    Example:
        >>> from narl import losses
        >>> round(as_strong(losses.get("gce"), 100), 3)  # 100 ** -0.15 is 10 ** -0.3
        0.15
    """
    start = {h.name: h.start for h in loss.hyperparameters}
    first = loss.hyperparameters[0]
    wanted = pull(loss, TEN, **start)
    low, high = first.span
    rises = pull(loss, classes, **{**start, first.name: high}) > pull(loss, classes, **{**start, first.name: low})
    for _ in range(60):
        middle = (low + high) / 2
        if (pull(loss, classes, **{**start, first.name: middle}) < wanted) == rises:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beginning(untrained: Adjuster) -> Adjuster:
    """The snapshot of before the training, as strong with many classes as with ten."""
    made = untrained.lifted()
    loss, spans = made.robust_loss, made.spans
    low, high = spans[loss.hyperparameters[0].name]
    shares = [min(max((as_strong(loss, c) - low) / (high - low), END), 1 - END) for c in KNOTS]
    levels = [math.log(share / (1 - share)) for share in shares]
    places = [math.log(classes / TEN) for classes in KNOTS]
    slopes = [
        (b - a) / (right - left) for (a, b), (left, right) in zip(pairwise(levels), pairwise(places), strict=True)
    ]
    with torch.no_grad():
        for part in (made.hidden.weight, made.hidden.bias, made.heads.weight):
            part.zero_()
        for unit, (place, bend) in enumerate(zip(places, np.diff([0.0, *slopes]), strict=False)):
            made.hidden.weight[unit, -1] = 1.0  # the number of classes is what an adjuster sees last
            made.hidden.bias[unit] = -place
            made.heads.weight[:: len(spans), unit] = float(bend)
    return made


def sizes_of(row: Sequence[Run]) -> tuple[float, ...]:
    """What sizes the heads were for, in multiples of the mean class: where noise made them differ, its mean over tasks.

    Families of other tasks differ by accident.
    """
    parted = [run for run in row if run.cell.task.noise == "asymmetric"]
    shares = [np.asarray(run.adjuster["centres"]) / np.mean(run.settings["class_counts"]) for run in parted]
    return tuple(round(float(share), 3) for share in np.mean(shares, axis=0))


def prepared(
    pack: Pack,
    sizes: tuple[float, ...] | None,
    start: bool = True,
    lift: float = 1.0,
    noise_rate: str | None = None,
) -> Pack:
    """The same for other data; see the top of this file.

    Args:
        pack: what was learned, the snapshot of before the training first.
        sizes: that the heads are for; None: families are found anew.
        start: whether the first snapshot is as strong with many classes as with ten.
        lift: how much of the logarithm of the number of classes margins are lifted by.
        noise_rate: see :class:`narl.Adjuster`.
    """
    first, *learned = pack.snapshots
    if first.taken != 0 or first.heads.weight.any():
        raise SystemExit("the first snapshot must be of before the training")
    if len(first.class_counts) != TEN:
        raise SystemExit(f"it was learned with {len(first.class_counts)} classes: only with {TEN} is it known how")
    later = [snapshot.lifted() for snapshot in learned]
    for snapshot in later:
        snapshot.hidden.weight.data[:, -1] *= lift  # with ten classes that column counts for nothing
    made = [beginning(first) if start else first.lifted(), *later]
    for snapshot in made:
        snapshot.sizes, snapshot.noise_rate = sizes, noise_rate
        snapshot.least_steps = None if noise_rate is None else COUNTING
        snapshot.refit(snapshot.class_counts)
    about = dict(pack.about)
    if sizes is not None and start:
        about["section"] = SECTION.format(
            lift="" if lift == 1 else f"{lift:g} ",
            sizes=", ".join(f"{size:.2f}" for size in sizes),
            pull=_pull_of(made[0], 200),
            pull_of_ten=_pull_of(made[0], TEN),
        )
    if noise_rate is not None:
        about["section"] = "\n".join([*filter(None, [about.get("section")]), DOUBTS.format(steps=COUNTING)])
    return replace(pack, snapshots=tuple(made), about=about)


def _pull_of(first: Adjuster, classes: int) -> float:
    """Of what everybody gets at first."""
    fitted = copy.deepcopy(first).refit([1] * classes).requires_grad_(False)
    values = {name: float(curve[0, 0]) for name, curve in fitted.curves(torch.zeros(1)).items()}
    return pull(fitted.robust_loss, classes, **values)


def main() -> None:
    """Read, prepare, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path, help="what narl bench adjusters has written")
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="some of the three; margins always are"
    )
    parser.add_argument("--lift", type=float, default=1.0, help="part of log(c / 10) that margins are lifted by")
    parser.add_argument("--noise-rate", choices=(ESTIMATED,), help="have it doubt as many labels as seem to be wrong")
    given = parser.parse_args()
    pack = packs.read(given.source)
    row = [run for run in runs.read(RESULTS) if run.cell.slug in pack.about["cells"]]
    sizes = sizes_of(row) if "sizes" in given.parts else None
    packs.write(given.target, prepared(pack, sizes, "start" in given.parts, given.lift, given.noise_rate))


if __name__ == "__main__":
    main()
