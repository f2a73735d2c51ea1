"""Adjusters that are judged by what whole trainings with them are worth: their form, and a search for its numbers.

The form has few numbers, which are found by the cross-entropy method (Rubinstein, 1999): candidates are drawn from a
normal distribution, each is used on the same freshly drawn tasks from the first step to the last, and the distribution
moves to the best of them. With the margin m, the progress t and κ = log(classes / 10), before the sigmoid that every
hyperparameter goes through:

    ramp = relu(z) - relu(z - (w + wc κ)),   z = a (m0 + mc κ + b t - m)
    logit of hyperparameter k = l_k + g_k ramp

and until t = start the same for all samples, s_k + g_k sc κ. An adjuster with two hidden units computes it exactly.

With heads for classes of some sizes, σ is the logarithm of a head's size as a multiple of the mean class: then
m0 + ms σ stands for m0, ramp + h σ for the ramp, and sc κ + hs σ for sc κ. Each head has two hidden units of its own.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narl import Adjuster, losses
from narl.bench.tables import Table
from narl.train.environment import environment

MOST = 5.0  # points that one task can bring
INPUT = "margin+progress+classes"
Numbers = dict[str, float]
Worth = Callable[[int, list[Numbers], np.random.Generator], list[dict[str, Any]]]

# Where the search begins: mean and standard deviation of each number, and its ends.
COMMON = {
    "log a": (0.4, 0.5, -1.2, 1.5),
    "m0": (0.5, 0.7, -4.0, 3.0),
    "mc": (-0.3, 0.4, -3.0, 3.0),
    "b": (0.8, 1.0, -2.0, 4.0),
    "w": (4.0, 1.0, 0.5, 9.0),
    "wc": (-1.0, 0.6, -3.0, 1.0),
    "start": (0.15, 0.1, 0.01, 0.5),
    "sc": (-0.8, 0.7, -3.0, 1.0),
}
# With heads for classes of some sizes: of how much more or less is doubted in large classes.
BY_SIZE = {"ms": (0.3, 0.5, -3.0, 3.0), "h": (2.0, 0.8, -2.0, 6.0), "hs": (0.7, 0.4, -2.0, 4.0)}
# Of each hyperparameter: its logit at high margins, at the start, and which way the ramp goes.
OWN: dict[str, tuple[tuple[float, float, float | None], ...]] = {
    "gce": ((-3.3, 0.6, 1.0),),
    "js": ((-3.3, 0.0, 1.0),),
    "sl": ((3.0, -1.0, -1.0), (0.0, 2.0, None)),
    "polysoft": ((3.0, -0.9, -1.0), (2.0, 2.0, None)),
}


def beginning(loss: str, *, by_size: bool = False) -> dict[str, tuple[float, float, float, float]]:
    """Mean, standard deviation, lowest and highest value of each number of a loss's form.

    Args:
        loss: its name.
        by_size: whether heads are for classes of some sizes.

    Example:
        >>> list(beginning("sl"))[-5:]
        ['l1', 's1', 'l2', 's2', 'g2']
    """
    found = COMMON | (BY_SIZE if by_size else {})
    for number, (level, start, way) in enumerate(OWN[loss], 1):
        found[f"l{number}"] = (level, 0.7, -4.6, 4.6)
        found[f"s{number}"] = (start, 0.6, -4.6, 4.6)
        if way is None:
            found[f"g{number}"] = (0.0, 0.6, -1.5, 1.5)
    return found


@torch.no_grad()
def made(loss: str, numbers: Numbers, sizes: tuple[float, ...] | None = None) -> tuple[Adjuster, Adjuster]:
    """The adjuster of these numbers: as it is at the start, and from then on.

    Args:
        loss: its name.
        numbers: of the form.
        sizes: of the classes that heads are for, as multiples of the mean class; None: one head for all. They are known
            to the classes only when the adjuster is fitted to data.
    """
    by_size = {name: numbers[name] for name in BY_SIZE} if sizes else dict.fromkeys(BY_SIZE, 0.0)
    log_sizes = _exact(sizes or (1.0,)).log()
    heads = len(log_sizes)
    first, then = (Adjuster(loss, [1, 1], heads, 2 * heads, "running", input=INPUT) for _ in range(2))
    ways = _exact([numbers[f"g{k}"] if way is None else way for k, (_, _, way) in enumerate(OWN[loss], 1)])
    levels, starts = (_exact([numbers[f"{of}{k}"] for k in range(1, len(ways) + 1)]) for of in "ls")
    a = math.exp(numbers["log a"])
    slopes = [-a, a * numbers["b"], a * numbers["mc"]]
    then.hidden.weight.copy_(torch.tensor([slopes, [*slopes[:2], slopes[2] - numbers["wc"]]]).repeat(heads, 1))
    kinks = a * (numbers["m0"] + by_size["ms"] * log_sizes)
    then.hidden.bias.copy_(torch.stack([kinks, kinks - numbers["w"]], dim=1).flatten())
    own_units = torch.kron(torch.eye(heads), torch.tensor([[1.0, -1.0]]))  # (heads, units)
    then.heads.weight.copy_((own_units.unsqueeze(1) * ways[:, None]).flatten(0, 1))
    then.heads.bias.copy_((levels + ways * by_size["h"] * log_sizes.unsqueeze(1)).flatten())
    # κ + 10 is above 0 for any number of classes: a unit that passes it on.
    first.hidden.weight.zero_()
    first.hidden.weight[0, 2] = 1.0
    first.hidden.bias.zero_()
    first.hidden.bias[0] = 10.0
    first.heads.weight.zero_()
    first.heads.weight[:, 0] = (numbers["sc"] * ways.float()).repeat(heads)
    levels = starts - 10 * numbers["sc"] * ways
    first.heads.bias.copy_((levels + ways * by_size["hs"] * log_sizes.unsqueeze(1)).flatten())
    first.taken, then.taken = 0.0, numbers["start"]
    for snapshot in (first, then):
        snapshot.sizes = sizes
    return first, then


def _exact(values: Sequence[float]) -> Tensor:
    """In float64, so that an adjuster's float32 numbers are rounded once."""
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Search:
    """A search for the numbers of a loss's form, whose generations are kept in a file: it goes on where it was stopped.

    Args:
        loss: name of the loss.
        path: where generations are kept, those of several losses in one file.
        begin: where it begins: mean, standard deviation, lowest and highest value of each number.
        candidates: how many are drawn for a generation.
        elite: how many of them the distribution moves to.
        over_both: whether a candidate counts by how far it is ahead of the better of cross entropy and the fixed loss,
            not of the fixed loss alone.
        least: points that one task can cost.
    """

    loss: str
    path: Path
    begin: Mapping[str, tuple[float, float, float, float]]
    candidates: int
    elite: int
    over_both: bool = False
    least: float = -MOST

    def results(self) -> list[dict[str, Any]]:
        """The generations so far."""
        return results(self.path, self.loss)

    def learn(self, generations: int, worth: Worth, device: str) -> None:
        """Make the generations that are missing.

        Args:
            generations: how many there are to be.
            worth: of a generation's number, its candidates, the last of which is the distribution's mean, and a
                generator to draw tasks by: what each task came to, its ``noise`` and the ``last5`` of cross entropy,
                of the fixed loss and of each candidate.
            device: what is trained on.
        """
        mean, spread, low, high = (np.array(column) for column in zip(*self.begin.values(), strict=True))
        done = self.results()
        if done:
            mean, spread = (np.array([done[-1][part][name] for name in self.begin]) for part in ("mean", "spread"))
        for generation in range(len(done), generations):
            began, rng = time.perf_counter(), np.random.default_rng([generation, list(OWN).index(self.loss)])
            numbers = np.clip(mean + spread * rng.standard_normal((self.candidates, len(mean))), low, high)
            numbers = np.vstack([numbers, np.clip(mean, low, high)])
            named = [dict(zip(self.begin, map(float, row), strict=True)) for row in numbers]
            tasks = worth(generation, named, rng)
            ahead = np.clip(self._points(tasks), self.least, MOST).mean(axis=0)[: self.candidates]
            best = numbers[: self.candidates][np.argsort(-ahead, kind="stable")[: self.elite]]
            of_mean = self._summary(tasks)
            mean = (0.8 * best.mean(axis=0) + 0.2 * mean).round(4)  # as it is kept, so that nothing changes if stopped
            spread = np.maximum(0.7 * best.std(axis=0) + 0.3 * spread, 0.03).round(4)
            row = {
                "loss": self.loss,
                "generation": generation,
                "mean": dict(zip(self.begin, map(float, mean), strict=True)),
                "spread": dict(zip(self.begin, map(float, spread), strict=True)),
                "mean_before": of_mean,
                "seconds": round(time.perf_counter() - began),
                "environment": environment(device),
            }
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{self.loss}, generation {generation}: {json.dumps(of_mean)}", flush=True)

    def _points(self, tasks: Sequence[dict[str, Any]]) -> NDArray[Any]:
        """By how many points each candidate is ahead of what it is to be ahead of, on each task."""
        last5: NDArray[Any] = 100 * np.array([row["last5"] for row in tasks])
        rivals = last5[:, :2] if self.over_both else last5[:, 1:2]
        found: NDArray[Any] = last5[:, 2:] - rivals.max(axis=1, keepdims=True)
        return found

    def _summary(self, tasks: Sequence[dict[str, Any]]) -> dict[str, float | None]:
        """What the distribution's mean, the last candidate, was worth on tasks that were drawn after it was decided."""
        noisy = np.array([row["noise"] != "clean" for row in tasks])
        last5 = 100 * np.array([row["last5"] for row in tasks])
        ahead, over_ce = last5[:, -1] - last5[:, 1], last5[:, -1] - last5[:, 0]
        return {
            "over_fixed": round(float(ahead[noisy].mean()), 2),
            "ahead_of_fixed": round(float((ahead[noisy] > 0).mean()), 2),
            "over_ce": round(float(over_ce[noisy].mean()), 2),
            "clean_over_fixed": None if noisy.all() else round(float(ahead[~noisy].mean()), 2),
            "clean_over_ce": None if noisy.all() else round(float(over_ce[~noisy].mean()), 2),
            "clean_tables": int((~noisy).sum()),
        }


def results(path: Path, loss: str) -> list[dict[str, Any]]:
    """The generations of a loss that are kept in a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["loss"] == loss]


def lines_of(loss: str, done: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A search's lines of :func:`table`."""
    lines = []
    for row in done:
        found = row["mean_before"]
        names = ("over_fixed", "over_ce", "clean_over_fixed", "clean_over_ce")
        ahead, *others = ("–" if found[name] is None else f"{found[name]:+.1f}" for name in names)
        share = f"{100 * found['ahead_of_fixed']:.0f} %"
        lines.append((losses.get(loss).title, str(row["generation"] + 1), ahead, share, *others))
    return lines


def table(title: str, lines: Sequence[tuple[str, ...]], tasks: str) -> Table:
    """How searches went, generation by generation, on so many ``tasks``, such as ``"40 tables"``."""
    clean = ("right labels: over the fixed loss", "right labels: over CE")
    heading = ("loss", "generation", "over the fixed loss", f"{tasks.split()[-1]} ahead of it", "over CE", *clean)
    note = (
        f"Points of test accuracy, mean of the last five epochs, over {tasks} that are drawn for the generation; of "
        "the candidates' mean before the generation moves it."
    )
    return Table(title, heading, tuple(lines), (note,))
