"""Which adjuster travels to small tables, and how it should begin there: on data that no result is reported on.

    python benchmarks/travel.py run [--work FOLDER]                  # what is missing in results/travel.jsonl
    python benchmarks/travel.py run --adjuster FILE [--adjuster …]   # adjusters that were learned elsewhere, too
    python benchmarks/travel.py margins                              # what a snapshot would see after a third
    python benchmarks/travel.py heads [--adjuster FILE] [--classes C]   # what each head gives, by margin
    python benchmarks/travel.py show                                 # the tables of docs/travel.md
    python benchmarks/pages.py                                       # puts them there

For each input an adjuster of GCE is learned by the demonstration's small convnet on scikit-learn's digits, from two
tasks in turn (40 % symmetric and 40 % pair noise); one more is learned from these and from two tasks on a table. They
serve on five other tables, which are drawn here, in perceptrons like those of `narl train`. The targets differ from the
sources in the number of classes, their sizes, the classifier, the schedule and the length of the training. With
one thread it takes half an hour; `--part K/N` runs every N-th of the places, so that processes can share it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import narl
from judges import Judges
from narl import AdjustedLoss, Adjuster, MetaStep, losses, models, noise
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench import digits
from narl.bench.tables import Table
from narl.train.environment import environment
from narl.train.methods.transferred import ROBUST_START

ROOT = Path(__file__).parent.parent
RESULTS, MARGINS = ROOT / "results" / "travel.jsonl", ROOT / "results" / "travel-margins.json"
NOISE = (("clean", 0.0), ("symmetric", 0.4), ("pair", 0.4), ("instance", 0.4))
SEEDS = (0, 1, 2)
EPOCHS, SNAPSHOTS, BATCH = 30, 3, 100
HIDDEN, RATE = (128, 128), 0.05
THIRD = ROBUST_START


@dataclass(frozen=True)
class Drawn:
    """A table: what scikit-learn draws it from, and for how many epochs it is trained on."""

    epochs: int
    rows: int
    columns: int
    classes: int
    options: dict[str, Any]

    def draw(self) -> tuple[Any, Any]:
        """Rows and classes; the same each time."""
        from sklearn.datasets import make_classification

        x, y = make_classification(self.rows, self.columns, n_classes=self.classes, flip_y=0, **self.options)
        return x, y


def _even(seed: int, informative: int, redundant: int, clusters: int, apart: float) -> dict[str, Any]:
    return {
        "n_informative": informative,
        "n_redundant": redundant,
        "n_clusters_per_class": clusters,
        "class_sep": apart,
        "random_state": seed,
    }


_UNEVEN = {"n_informative": 10, "n_clusters_per_class": 2, "weights": [0.5, 0.25, 0.15, 0.1], "random_state": 1}
TARGETS = {
    "even30": Drawn(20, 6000, 20, 30, _even(0, 15, 0, 1, 1.5)),
    "uneven4": Drawn(20, 4000, 30, 4, _UNEVEN),
    "drawn": Drawn(30, 2000, 25, 10, _even(2, 12, 3, 1, 1.5)),
    "clusters": Drawn(30, 3600, 16, 10, _even(4, 12, 2, 3, 3.0)),
    "broad": Drawn(28, 10_000, 20, 12, _even(7, 16, 0, 2, 2.0)),
}
LONG = ("broad",)  # more than 2,000 steps
SMALL = tuple(name for name in TARGETS if name not in LONG)
SOURCE = Drawn(EPOCHS, 3000, 18, 12, _even(6, 12, 0, 2, 2.0))


@dataclass(frozen=True)
class Variant:
    """How a target is trained: with a fixed loss, or an adjuster of some source, input and number of families."""

    source: str = ""
    input: str = "margin"
    options: tuple[tuple[str, Any], ...] = ()
    families: int = 3

    @property
    def file(self) -> str:
        """Of the adjuster."""
        families = "" if self.families == 3 else f"-{self.families}"
        return f"{self.source}-{self.input}{families}.safetensors"


def _served(
    source: str,
    input: str = "margin",
    start: float = THIRD,
    margin: str = "running",
    families: int = 3,
    **more: Any,
) -> Variant:
    return Variant(source, input, (("robust_start", start), ("margin", margin), *more.items()), families)


# By what the tables call them: first those about the beginning, then those about margins, input and source.
VARIANTS = {
    "CE": Variant(),
    "GCE": Variant(),
    "the untrained snapshot first": _served("digits", start=0.0, margin="latest"),
    "until, as in the paper": _served("digits", start=0.0, margin="latest", serves="until"),
    "GCE for a fifth": _served("digits", start=0.2, margin="latest"),
    "GCE for a third": _served("digits", margin="latest"),
    "GCE for a third, until": _served("digits", margin="latest", serves="until"),
    "GCE for a third, running margin": _served("digits"),
    "GCE for a third, until, running margin": _served("digits", serves="until"),
    "scaled": _served("digits", "scaled"),
    "rank": _served("digits", "rank"),
    "margin+progress": _served("digits", "margin+progress"),
    "one family": _served("digits", families=1),
    "five families": _served("digits", families=5),
    "four tasks": _served("both"),
    "four tasks, until": _served("both", serves="until"),
    "four tasks, the untrained snapshot first": _served("both", start=0.0),
}
PARTS = {
    "How to begin": tuple(VARIANTS)[:9],
    "Which input, and learned from what": ("GCE", "GCE for a third, running margin", *tuple(VARIANTS)[9:]),
}
MAIN = ("the untrained snapshot first", "GCE for a third, running margin", "four tasks", "four tasks, until")
FIRST = {"untrained snapshot": 0.3, "GCE": 0.7}  # and its q


@dataclass(frozen=True, eq=False)
class Problem:
    """A table with wrong labels, standardised, and rows to test on."""

    x: Tensor
    given: Tensor
    true: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    epochs: int

    @property
    def batches(self) -> int:
        """An epoch."""
        return math.ceil(len(self.given) / BATCH)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.batches * self.epochs

    @property
    def wrong(self) -> Tensor:
        """Which rows have a wrong label."""
        return self.given != self.true


def problem(table: Drawn, kind: str, rate: float, seed: int) -> Problem:
    """Three quarters to train on, with noise, and a quarter to test on."""
    from sklearn.model_selection import train_test_split

    x, y = table.draw()
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, stratify=y, random_state=seed)
    mean, std = x.mean(axis=0), x.std(axis=0)
    x, x_test = (((part - mean) / std).astype(np.float32) for part in (x, x_test))
    wrong: dict[str, Callable[[], Any]] = {
        "clean": lambda: y,
        "symmetric": lambda: noise.symmetric(y, rate, table.classes, seed=seed),
        "pair": lambda: noise.pair(y, rate, table.classes, seed=seed),
        "instance": lambda: noise.instance(y, rate, x, table.classes, seed=seed),
    }
    given = torch.tensor(np.asarray(wrong[kind]()))
    inputs, true, x_test, y_test = (torch.tensor(array) for array in (x, y, x_test, y_test))
    return Problem(inputs, given, true, x_test, y_test, table.classes, table.epochs)


# The sources


@dataclass(frozen=True, eq=False)
class Task:
    """What an adjuster learns from: noisy samples, clean ones, a classifier and its learning rate."""

    x: Tensor
    given: Tensor
    clean: tuple[Tensor, Tensor]
    model: Callable[[torch.Generator], nn.Module]
    learning_rate: float
    vary: Callable[[Tensor, torch.Generator], Tensor]


def _digits(kind: str) -> Task:
    task = digits.load(kind, 0)
    model = lambda generator: models.convnet(num_classes=10, in_channels=1, width=16, generator=generator)  # noqa: E731
    return Task(task.images, task.given, (task.clean_images, task.clean_labels), model, 0.03, digits.shifted)


def _table(kind: str) -> Task:
    made = problem(SOURCE, kind, 0.4, 0)
    rows = torch.cat([(made.y_test == label).nonzero().flatten()[:10] for label in range(made.classes)])
    model = lambda generator: models.mlp(made.x.shape[1], made.classes, hidden=(256, 256), generator=generator)  # noqa: E731
    clean = made.x_test[rows], made.y_test[rows]
    return Task(made.x, made.given, clean, model, 0.05, lambda x, generator: x)


SOURCES: dict[str, tuple[str, Callable[[], list[Task]]]] = {
    "digits": ("digits symmetric 0.4; digits pair 0.4", lambda: [_digits("symmetric"), _digits("pair")]),
    "both": (
        "digits symmetric 0.4; digits pair 0.4; a drawn table symmetric 0.4; a drawn table instance 0.4",
        lambda: [_digits("symmetric"), _digits("pair"), _table("symmetric"), _table("instance")],
    ),
}


def learned(variant: Variant, folder: Path) -> Path:
    """The file of a variant's snapshots; learned if it is not there."""
    path = folder / variant.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words, tasks = SOURCES[variant.source]
        packs.write(path, Pack(tuple(_learn(tasks(), variant.input, variant.families)), trained_on=words))
    return path


def _learn(tasks: Sequence[Task], input: str, families: int) -> Iterator[Adjuster]:
    """An adjuster before, along and at the end of the training of a classifier a task, which move it in turn.

    Each task has families of its own, by its labels, so that all heads learn; shorter tasks make their steps at even
    distances.
    """
    generator = torch.Generator().manual_seed(0)
    adjuster = Adjuster("gce", [120] * 10, families=families, input=input, generator=generator)
    outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
    metas = []
    for task in tasks:
        own = copy.deepcopy(adjuster).refit(torch.bincount(task.given))
        own.hidden, own.heads = adjuster.hidden, adjuster.heads
        model = task.model(generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=0.9, weight_decay=5e-4)
        metas.append((MetaStep(model, optimizer, own, every=1, adjuster_optimizer=outer), own))
    yield _taken(adjuster, 0.0)
    steps = [len(task.given) // BATCH * EPOCHS for task in tasks]
    orders = [_batches(task, generator) for task in tasks]
    done, due = [0] * len(tasks), 1
    for step in range(max(steps)):
        for number, (task, (meta, own)) in enumerate(zip(tasks, metas, strict=True)):
            if (step + 1) * steps[number] // max(steps) <= done[number]:
                continue
            done[number] += 1
            ids = next(orders[number])
            own.progress.fill_(step / max(steps))
            x = task.vary(task.x[ids], generator)
            meta.step(x, task.given[ids], (task.vary(task.clean[0], generator), task.clean[1]))
        if step + 1 >= max(steps) * due / SNAPSHOTS:
            yield _taken(adjuster, due / SNAPSHOTS)
            due += 1


def _batches(task: Task, generator: torch.Generator) -> Iterator[Tensor]:
    whole = len(task.given) // BATCH * BATCH
    while True:
        yield from torch.split(torch.randperm(len(task.given), generator=generator)[:whole], BATCH)


def _taken(adjuster: Adjuster, when: float) -> Adjuster:
    snapshot = copy.deepcopy(adjuster)
    snapshot.taken = when
    return snapshot


# What they are worth


class Networks:
    """Perceptrons that begin alike and are trained side by side on the same batches: much faster than in turn."""

    def __init__(self, columns: int, classes: int, count: int, generator: torch.Generator) -> None:
        first = models.mlp(columns, classes, hidden=HIDDEN, generator=generator)
        layers = [layer for layer in first.modules() if isinstance(layer, nn.Linear)]
        self.weights = [layer.weight.detach().T.repeat(count, 1, 1).requires_grad_() for layer in layers]
        self.biases = [layer.bias.detach().repeat(count, 1, 1).requires_grad_() for layer in layers]
        self.count = count

    def __call__(self, x: Tensor) -> Tensor:
        """Logits, ``(count, N, c)``."""
        values = x.expand(self.count, -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values.relu() if number else values, weight)
        return values


def side_by_side(
    made: Problem, loss: str, fixed: Sequence[str], adjusted: Sequence[AdjustedLoss], seed: int
) -> list[dict[str, Any]]:
    """Train with cross entropy, with a loss as it is, or with its adjusted forms, and see what each is worth.

    Args:
        made: the table.
        loss: name of the loss.
        fixed: names of losses without adjuster: ``"CE"`` and the loss's own.
        adjusted: the others; they come after the fixed ones.
        seed: of weights and batches.
    """
    generator, robust = torch.Generator().manual_seed(seed), losses.get(loss)
    networks = Networks(made.x.shape[1], made.classes, len(fixed) + len(adjusted), generator)
    optimizer = torch.optim.SGD([*networks.weights, *networks.biases], lr=RATE, momentum=0.9, weight_decay=5e-4)
    steps, batches = made.steps, _whole_epochs(len(made.given), generator)
    judges = Judges(adjusted, len(made.given)) if adjusted else None
    right: list[Tensor] = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        ids = next(batches)
        labels, logits = made.given[ids], networks(made.x[ids])
        values = [
            losses.ce(logits[k], labels) if name == "CE" else robust(logits[k], labels) for k, name in enumerate(fixed)
        ]
        if judges is not None:
            own = logits[len(fixed) :]
            judges.turn(step / steps)
            values.append(judges.losses(torch.tensor(step / steps), own, labels, ids))
        optimizer.zero_grad()
        torch.autograd.backward(torch.cat(values).sum() / len(ids))
        optimizer.step()
        left = steps - 1 - step
        if left % made.batches == 0 and left < 5 * made.batches:
            with torch.no_grad():
                right.append((networks(made.x_test).argmax(2) == made.y_test).double().mean(1))
    with torch.no_grad():
        followed = networks(made.x).argmax(2) == made.given
    by_heart = followed[:, made.wrong].double().mean(1)
    return [
        {"last5": round(float(mean), 5), "by_heart": round(float(known), 4) if bool(made.wrong.any()) else None}
        for mean, known in zip(torch.stack(right).mean(0), by_heart, strict=True)
    ]


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(folder: Path, given: Sequence[Path], part: tuple[int, int]) -> None:
    """Train what is missing: the study's variants, or those of given adjusters, each beside CE and its fixed loss."""
    if given:
        asked = _given(given)
    else:
        files = {name: learned(one, folder / "learned") for name, one in VARIANTS.items() if one.source}
        asked = {"gce": (files, {name: dict(VARIANTS[name].options) for name in files})}
    where = environment("cpu")
    order = [(seed, table) for tables in (SMALL, LONG) for seed in SEEDS for table in tables]
    places = [(seed, table, *noisy) for seed, table in order for noisy in NOISE]
    for loss, (files, options) in asked.items():
        fixed = ["CE", losses.get(loss).title]
        for seed, table, kind, rate in places[part[0] :: part[1]]:
            place = {"table": table, "noise": kind, "rate": rate, "seed": seed}
            done = {row["variant"] for row in results() if place.items() <= row.items()}
            missing = [name for name in fixed if name not in done], [name for name in files if name not in done]
            if not any(missing):
                continue
            made = problem(TARGETS[table], kind, rate, seed)
            counts = torch.bincount(made.given, minlength=made.classes)
            snapshots = {name: packs.read(files[name]).snapshots for name in missing[1]}
            criteria = [AdjustedLoss(snapshots[name], counts, **options[name]) for name in missing[1]]
            found = side_by_side(made, loss, missing[0], criteria, seed)
            for name, row in zip((*missing[0], *missing[1]), found, strict=True):
                of = {"adjuster": packs.digest(snapshots[name]), "options": options[name]} if name in files else {}
                settings = {
                    "loss": fixed[1],
                    "epochs": made.epochs,
                    "batch_size": BATCH,
                    "hidden": list(HIDDEN),
                    "learning_rate": RATE,
                }
                with RESULTS.open("a") as file:
                    kept = {**place, "variant": name, **row, "settings": settings | of, "environment": where}
                    file.write(json.dumps(kept) + "\n")
            print(f"{table} {kind} seed {seed}: " + ", ".join(f"{row['last5']:.3f}" for row in found), flush=True)


def _given(paths: Sequence[Path]) -> dict[str, tuple[dict[str, Path], dict[str, dict[str, Any]]]]:
    """Adjusters of files by their loss, to be served as T-* serves them on tables."""
    found: dict[str, tuple[dict[str, Path], dict[str, dict[str, Any]]]] = {}
    for path in paths:
        pack = packs.read(path)
        files, options = found.setdefault(pack.loss, ({}, {}))
        name = f"{path.stem}: {pack.input.rpartition(': ')[2]} ({pack.digest[:6]})"
        own = any(snapshot.data == "table" for snapshot in pack.snapshots)
        files[name] = path
        options[name] = {"robust_start": 0.0, "data": "table"} if own else {"robust_start": ROBUST_START}
    return found


def margins(folder: Path) -> None:
    """After a third of a training: how far wrong labels are learned, and what the next snapshot would make of them."""
    pack = packs.read(learned(VARIANTS["GCE for a third"], folder / "learned")).snapshots
    snapshot = next(one for one in pack if one.taken)
    found = []
    for name, table in TARGETS.items():
        for (kind, rate), seed in ((noisy, seed) for noisy in NOISE[1:] for seed in SEEDS):
            made = problem(table, kind, rate, seed)
            judge = copy.deepcopy(snapshot).spread().refit(torch.bincount(made.given, minlength=made.classes))
            for called, q in FIRST.items():
                margin = _after_a_third(made, q, seed)
                hyperparameters = _q(judge, margin, made.given)
                row = {"table": name, "noise": kind, "rate": rate, "seed": seed, "first": called}
                for part, rows in (("wrong", made.wrong), ("right", ~made.wrong)):
                    row[part] = {
                        "agrees": round(float((margin[rows] > 0).float().mean()), 4),
                        "margin": round(float(margin[rows].median()), 3),
                        "q": round(float(hyperparameters[rows].mean()), 4),
                    }
                found.append(row)
    MARGINS.write_text(json.dumps({"rows": found, "environment": environment("cpu")}, indent=1) + "\n")


def heads(files: Sequence[Path], classes: int) -> list[Table]:
    """What each snapshot's heads give at some margins, with so many classes of one size."""
    at = torch.tensor([-8.0, -4.0, -3.0, -2.0, 0.0, 3.0])
    made = []
    for path in files:
        lines = []
        for one in packs.read(path).snapshots:
            snapshot = copy.deepcopy(one).refit([100] * classes)
            snapshot.progress.fill_(one.taken or 0.0)
            for name, values in snapshot.curves(at).items():
                for head, own in enumerate(values.detach().unbind(1)):
                    lines.append(
                        (f"{one.taken or 0:.2f}", name, str(head), *(f"{value:.2f}" for value in own.tolist()))
                    )
        heading = ("taken", "hyperparameter", "head", *(f"{margin:g}" for margin in at.tolist()))
        made.append(Table(path.stem, heading, tuple(lines), ()))
    return made


def _after_a_third(made: Problem, q: float, seed: int) -> Tensor:
    """The rows' margins when a third of the steps is done."""
    generator = torch.Generator().manual_seed(seed)
    model = models.mlp(made.x.shape[1], made.classes, hidden=HIDDEN, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    batches = _whole_epochs(len(made.given), generator)
    for step in range(round(made.steps / 3)):
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / made.steps)) / 2
        ids = next(batches)
        optimizer.zero_grad()
        torch.autograd.backward(losses.gce(model(made.x[ids]), made.given[ids], q).mean())
        optimizer.step()
    with torch.no_grad():
        return narl.margin(model(made.x), made.given)


def _whole_epochs(rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.split(torch.randperm(rows, generator=generator), BATCH)


@torch.no_grad()
def _q(judge: Adjuster, margin: Tensor, labels: Tensor) -> Tensor:
    return judge.curves(margin)["q"].gather(1, judge.of_class[labels].unsqueeze(1)).squeeze(1)


# What is shown


def tables() -> list[Table]:
    """What a snapshot would see, and what each variant is worth."""
    return [
        margin_table(),
        *(accuracy_table(title, names) for title, names in PARTS.items()),
        *_of_others(),
        by_table(),
    ]


def margin_table() -> Table:
    """Of results/travel-margins.json: means over noises and seeds."""
    found = json.loads(MARGINS.read_text())["rows"] if MARGINS.exists() else []
    lines = []
    for table in TARGETS:
        for first in FIRST:
            own = [row for row in found if (row["table"], row["first"]) == (table, first)]
            if own:
                wrong, right = _parts(own, "wrong"), _parts(own, "right")
                shown = (f"{100 * wrong['agrees']:.0f} %", f"{wrong['margin']:+.1f}", f"{right['margin']:+.1f}")
                lines.append((table, first, *shown, f"{wrong['q']:.2f}", f"{right['q']:.2f}"))
    heading = ("table", "trained with", "wrong labels learned", "margin: wrong", "right", "q: wrong", "right")
    note = "Medians of margins; q by the first learned snapshot. Means over three kinds of 40 % noise and three seeds."
    return Table("After a third of the training", heading, tuple(lines), (note,))


def _parts(rows: Sequence[dict[str, Any]], part: str) -> dict[str, float]:
    return {name: statistics.mean(row[part][name] for row in rows) for name in rows[0][part]}


def accuracy_table(title: str, names: Sequence[str]) -> Table:
    """Differences over the small tables, with their standard errors over seeds; the worst cell; the long table."""
    noisy, lines = tuple(kind for kind, _ in NOISE[1:]), []
    for name in names:
        other = _fixed_form(name)
        small = [_over(name, "CE", SMALL, ("clean",)), *(_over(name, other, SMALL, (kind,)) for kind in noisy)]
        small.append(_over(name, other, SMALL, noisy))
        cells = [_over(name, other, (table,), (kind,)) for table in TARGETS for kind in noisy]
        worst = "–" if None in cells else f"{min(cell[0] for cell in cells if cell is not None):+.1f}"
        lines.append((name, *map(_signed, small), worst, _signed(_over(name, other, LONG, noisy))))
    kinds = (f"{kind} {rate:g}" for kind, rate in NOISE[1:])
    heading = ("", "right labels: over CE", *kinds, "the three", "worst cell", "the long table, the three")
    note = (
        "Points of test accuracy, mean of the last five epochs: over CE, then over the fixed loss. Means of the four "
        "small tables; ± standard error over seeds."
    )
    return Table(title, heading, tuple(lines), (note,))


def _fixed_form(name: str) -> str:
    """The loss that an adjuster adjusts."""
    if name in VARIANTS:
        return "GCE"
    return next(str(row["settings"]["loss"]) for row in _rows() if row["variant"] == name)


def _of_others() -> list[Table]:
    """Of adjusters that were given."""
    names = list(dict.fromkeys(row["variant"] for row in results() if row["variant"] not in VARIANTS))
    return [accuracy_table("Adjusters from elsewhere", names)] if names else []


def by_table() -> Table:
    """Accuracy of the main ones, by table and noise."""
    names = ("CE", "GCE", *MAIN)
    lines = tuple(
        (table, "right" if not rate else f"{kind} {rate:g}", *(_cell(name, table, kind) for name in names))
        for table in TARGETS
        for kind, rate in NOISE
    )
    return Table("By table", ("table", "labels", *names), lines, ("Mean ± standard deviation over seeds.",))


@functools.cache
def _rows() -> list[dict[str, Any]]:
    return results()


@functools.cache
def _values(name: str, table: str, kind: str) -> dict[int, float]:
    """Accuracy by seed."""
    place = (name, table, kind)
    return {r["seed"]: 100 * r["last5"] for r in _rows() if (r["variant"], r["table"], r["noise"]) == place}


def _over(name: str, other: str, tables: Sequence[str], kinds: Sequence[str]) -> tuple[float, float] | None:
    """Mean difference over the seeds that there are everywhere, and its standard error; None without any."""
    pairs = [(_values(name, table, kind), _values(other, table, kind)) for table in tables for kind in kinds]
    seeds = [seed for seed in SEEDS if pairs and all(seed in ours and seed in theirs for ours, theirs in pairs)]
    by_seed = [statistics.mean(ours[seed] - theirs[seed] for ours, theirs in pairs) for seed in seeds]
    if not by_seed:
        return None
    error = statistics.stdev(by_seed) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else math.nan
    return statistics.mean(by_seed), error


def _signed(value: tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    return f"{value[0]:+.1f}" + (" (one seed)" if math.isnan(value[1]) else f" ± {value[1]:.1f}")


def _cell(name: str, table: str, kind: str) -> str:
    values = list(_values(name, table, kind).values())
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" if values else "–"


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "margins", "heads", "show"))
    parser.add_argument("--work", type=Path, default=Path("bench-runs/travel"), help="where learned adjusters are kept")
    parser.add_argument("--adjuster", type=Path, action="append", default=[], help="a file of an adjuster to judge")
    parser.add_argument("--classes", type=int, default=10, help="of what heads are shown for")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th of what is missing, from the K-th on")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "run":
        first, of = map(int, asked.part.split("/"))
        run(asked.work, asked.adjuster, (first, of))
    elif asked.what == "margins":
        margins(asked.work)
    elif asked.what == "heads":
        sources = dict.fromkeys(one for one in VARIANTS.values() if one.source and not asked.adjuster)
        files = asked.adjuster or sorted({learned(one, asked.work / "learned") for one in sources})
        print("\n\n".join(table.text() for table in heads(files, asked.classes)))
    else:
        print("\n\n".join(table.text() for table in tables()))


if __name__ == "__main__":
    main()
