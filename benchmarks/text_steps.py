"""Which adjusters serve on texts, in short trainings and long ones: on drawn texts, and on real ones.

    python benchmarks/text_steps.py run --losses gce sl          # what is missing in results/text-steps.jsonl
    python benchmarks/text_steps.py run --texts fortunes
    python benchmarks/text_steps.py show

A line is one `narl train`: cross entropy, a fixed loss, or a loss with an adjuster, which is the one for any data, from
nine tasks of CIFAR-10, with estimated noise rates or without; the one for tables; or the one for texts
(:mod:`text_adjusters`, which saw neither the drawn texts nor the fortunes). Nothing that results are reported on is
looked at.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import real_texts
from drawn_texts import drawn
from narl import losses, noise
from narl.adjuster.worth import ESTIMATED
from narl.bench.tables import Table
from narl.train import session
from narl.train.environment import environment
from narl.train.planning import plan
from narl.train.settings import Settings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "text-steps.jsonl"
ADJUSTERS = ROOT / "results" / "adjusters"
COUNTED = "any data, noise estimated"
FORMS = {
    "any data": "prepared",
    COUNTED: "prepared",
    "tables": "texts",
    "texts": "real-texts",
}
"""What an adjuster is for, and how the files of those are called."""
FIXED = "fixed"
LOSSES = ("gce", "sl", "polysoft", "js")
LABELS = {"weak": "labels by rules", "symmetric": "symmetric 0.4", "right": "right labels"}
BATCH = 100
Size = tuple[int, int]


@dataclass(frozen=True)
class Design:
    """Texts to choose on.

    Args:
        title: what they are.
        draws: of classes and seeds.
        sizes: texts and epochs.
        fixed: whether losses are trained as they are, too.
        about: whether there are only about so many texts.
    """

    title: str
    draws: tuple[tuple[int, int], ...]
    sizes: tuple[Size, ...]
    fixed: bool
    about: bool


DESIGNS = {
    "drawn": Design(
        "Drawn texts",
        ((4, 0), (6, 0), (12, 0)),
        ((1500, 15), (1500, 30), (4500, 10), (1500, 60), (4500, 30)),  # 225, 450, 450, 900 and 1,350 steps
        fixed=False,
        about=False,
    ),
    "fortunes": Design("Fortunes", ((6, 0), (6, 1)), ((1500, 15),), fixed=True, about=True),
}


@dataclass(frozen=True)
class Training:
    """What is trained on, how long, and with what: no loss is cross entropy.

    Example:
        >>> Training(4, 1500, 15, "weak", "sl", "tables").steps
        225
    """

    classes: int
    rows: int
    epochs: int
    labels: str
    loss: str = ""
    form: str = ""
    seed: int = 0
    texts: str = "drawn"

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.epochs * (self.rows // BATCH)


def trainings(texts: str, names: Sequence[str], kinds: Sequence[str]) -> Iterator[Training]:
    """All that are wanted, the short ones first."""
    design = DESIGNS[texts]
    forms = (*FORMS, FIXED) if design.fixed else tuple(FORMS)
    for (rows, epochs), labels, (classes, seed) in product(design.sizes, kinds, design.draws):
        yield Training(classes, rows, epochs, labels, seed=seed, texts=texts)
        for loss, form in product(names, forms):
            yield Training(classes, rows, epochs, labels, loss, form, seed, texts)


def trained(training: Training) -> dict[str, Any]:
    """A line of the results."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "texts.npz")
        np.savez(data, **_labelled(training))
        settings = Settings(
            data=str(data),
            labels=f"{data}:given_train",
            overlap="drop",
            method=_method(training),
            adjusters=(str(ADJUSTERS / f"{training.loss}-{FORMS[training.form]}.safetensors"),)
            if training.form in FORMS
            else (),
            options={"noise_rate": ESTIMATED} if training.form == COUNTED else {},
            model="text_cnn",
            epochs=training.epochs,
            batch_size=BATCH,
            seed=training.seed,
            device="cpu",
            threads=1,
        )
        outcome = session.start(plan(settings), Path(folder, "run"), tensorboard=False)
        lines = (outcome.folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["test_accuracy"] for line in lines]
    where = environment("cpu")
    method = outcome.summary["method"]
    return {
        **asdict(training),
        "method": method,
        "last5": round(sum(found[-5:]) / 5, 5),
        "best": max(found),
        "environment": where,
    }


def _method(training: Training) -> str:
    if not training.loss:
        return "CE"
    title = losses.get(training.loss).title
    return title if training.form == FIXED else f"T-{title}"


def _labelled(training: Training) -> dict[str, Any]:
    if training.texts == "fortunes":
        kind = {"weak": "rules", "symmetric": "symmetric 0.4", "right": "right"}[training.labels]
        rng = np.random.default_rng(training.seed)
        return real_texts.drawn(
            real_texts.collection(training.texts), rng, kind, training.classes, training.rows
        ).arrays()
    made = drawn(training.classes, training.classes, training.rows)
    given = {"weak": made["weak_train"], "right": made["y_train"]}.get(training.labels)
    if given is None:
        right = torch.from_numpy(made["y_train"])
        given = noise.symmetric(right, 0.4, num_classes=training.classes, seed=training.seed).numpy()
    return {**{name: made[name] for name in made if name != "weak_train"}, "given_train": given}


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(wanted: Sequence[Training], at_once: int) -> None:
    """Train what has no line yet."""
    known = {_of(row) for row in results()}
    missing = [training for training in wanted if training not in known]
    if not missing:
        return
    with multiprocessing.Pool(at_once) as pool:
        for row in pool.imap_unordered(trained, missing):
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{row['texts']}, {row['classes']} classes, {row['labels']}, {row['rows']} x {row['epochs']}", end=": "
            )
            print(f"{row['loss'] or 'CE'} {row['form']} {100 * row['last5']:.1f}", flush=True)


def _of(row: dict[str, Any]) -> Training:
    """Which training a line is of."""
    return Training(**{name: row[name] for name in Training.__dataclass_fields__ if name in row})


def tables() -> list[Table]:
    """For each kind of texts and labels, a line a form and a column a length: means over what is drawn."""
    found = {_of(row): 100 * row["last5"] for row in results()}
    made = []
    for texts, labels in product(DESIGNS, LABELS):
        lines = []
        wanted = list(trainings(texts, LOSSES, (labels,)))
        for loss, form in dict.fromkeys((one.loss, one.form) for one in wanted):
            shown = [_mean(found, wanted, loss, form, size) for size in DESIGNS[texts].sizes]
            lines += [(_words(loss, form), *shown)] if any(cell != "–" for cell in shown) else []
        if lines:
            about = "about " if DESIGNS[texts].about else ""
            heads = (
                f"{about}{rows:,} texts, {about}{rows // BATCH * epochs:,} steps"
                for rows, epochs in DESIGNS[texts].sizes
            )
            made.append(Table(f"{DESIGNS[texts].title}, {LABELS[labels]}", ("", *heads), tuple(lines), (_note(texts),)))
    return made


def _mean(found: dict[Training, float], wanted: Sequence[Training], loss: str, form: str, size: Size) -> str:
    own = [one for one in wanted if (one.loss, one.form, (one.rows, one.epochs)) == (loss, form, size)]
    return f"{np.mean([found[one] for one in own]):.1f}" if all(one in found for one in own) else "–"


def _words(loss: str, form: str) -> str:
    if not loss:
        return "CE"
    title = losses.get(loss).title
    return title if form == FIXED else f"T-{title}, for {form}"


def _note(texts: str) -> str:
    *classes, last = sorted({classes for classes, _ in DESIGNS[texts].draws})
    seeds = {seed for _, seed in DESIGNS[texts].draws}
    counted = f"{', '.join(map(str, classes))} and {last}" if classes else str(last)
    of = f"; {len(seeds)} draws" if len(seeds) > 1 else ""
    return f"Test accuracy, %, mean of the last five epochs; means of sets with {counted} classes{of}."


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--texts", choices=tuple(DESIGNS), default="drawn")
    parser.add_argument("--labels", nargs="+", choices=tuple(LABELS), default=list(LABELS))
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    if given.what == "run":
        run(list(trainings(given.texts, given.losses, given.labels)), given.at_once)
    print("\n\n".join(table.markdown() for table in tables()))


if __name__ == "__main__":
    main()
