"""From how many steps on adjusters for tables serve on texts: drawn texts, few and many, short trainings and long ones.

    python benchmarks/text_steps.py run --losses gce sl          # what is missing in results/text-steps.jsonl
    python benchmarks/text_steps.py show

A line is one `narl train`: cross entropy, or a loss with an adjuster, either the one for any data, from nine tasks of
CIFAR-10, or the one for tables. Nothing that results are reported on is looked at.
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

from drawn_texts import drawn
from narl import losses, noise
from narl.bench.tables import Table
from narl.train import session
from narl.train.environment import environment
from narl.train.planning import plan
from narl.train.settings import Settings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "text-steps.jsonl"
ADJUSTERS = ROOT / "results" / "adjusters"
FORMS = {"any data": "prepared", "tables": "texts"}
"""What an adjuster is for, and how the files of those are called."""
CLASSES = (4, 6, 12)
SIZES = ((1500, 15), (1500, 30), (4500, 10), (1500, 60), (4500, 30))
"""Texts and epochs: 225, 450, 450, 900 and 1,350 steps."""
LABELS = {"weak": "labels by rules", "symmetric": "symmetric 0.4", "right": "right labels"}
BATCH = 100


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

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.epochs * (self.rows // BATCH)


def trainings(names: Sequence[str], kinds: Sequence[str]) -> Iterator[Training]:
    """All that are wanted, the short ones first."""
    for (rows, epochs), labels, classes in product(SIZES, kinds, CLASSES):
        yield Training(classes, rows, epochs, labels)
        for loss, form in product(names, FORMS):
            yield Training(classes, rows, epochs, labels, loss, form)


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
            method=f"T-{losses.get(training.loss).title}" if training.loss else "CE",
            adjusters=(str(ADJUSTERS / f"{training.loss}-{FORMS[training.form]}.safetensors"),)
            if training.loss
            else (),
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


def _labelled(training: Training) -> dict[str, Any]:
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
    known = [{name: row[name] for name in asdict(wanted[0])} for row in results()] if wanted else []
    missing = [training for training in wanted if asdict(training) not in known]
    if not missing:
        return
    with multiprocessing.Pool(at_once) as pool:
        for row in pool.imap_unordered(trained, missing):
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{row['classes']} classes, {row['labels']}, {row['rows']} x {row['epochs']}", end=": ")
            print(f"{row['loss'] or 'CE'} {row['form']} {100 * row['last5']:.1f}", flush=True)


def tables() -> list[Table]:
    """For each kind of labels, a line a form and a column a length of the training, in the mean over what is drawn."""
    by_cell: dict[tuple[str, str, str, tuple[int, int]], dict[int, float]] = {}
    for row in results():
        if row["seed"]:
            raise SystemExit("more than one seed: say here what is to be shown of them")
        key = row["labels"], row["loss"], row["form"], (row["rows"], row["epochs"])
        by_cell.setdefault(key, {})[row["classes"]] = 100 * row["last5"]
    names = [name for name in ("gce", "sl", "polysoft", "js") if any(key[1] == name for key in by_cell)]
    heads = tuple(f"{rows:,} texts, {rows // BATCH * epochs:,} steps" for rows, epochs in SIZES)
    made = []
    for labels, title in LABELS.items():
        lines = []
        for loss, form in [("", ""), *product(names, FORMS)]:
            cells = [by_cell.get((labels, loss, form, size), {}) for size in SIZES]
            shown = [f"{np.mean(list(cell.values())):.1f}" if len(cell) == len(CLASSES) else "–" for cell in cells]
            title_of = f"T-{losses.get(loss).title}, for {form}" if loss else "CE"
            lines += [(title_of, *shown)] if any(cells) else []
        counted = ", ".join(map(str, CLASSES[:-1]))
        note = (
            f"Test accuracy, %, mean of the last five epochs; means of sets with {counted} and {CLASSES[-1]} classes."
        )
        made += [Table(f"Drawn texts, {title}", ("", *heads), tuple(lines), (note,))] if lines else []
    return made


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--losses", nargs="+", default=["gce", "sl", "polysoft", "js"])
    parser.add_argument("--labels", nargs="+", choices=tuple(LABELS), default=list(LABELS))
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    if given.what == "run":
        run(list(trainings(given.losses, given.labels)), given.at_once)
    print("\n\n".join(table.markdown() for table in tables()))


if __name__ == "__main__":
    main()
