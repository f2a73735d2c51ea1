"""What it brings a learned loss to know how many labels are wrong: on drawn tables that no result is reported on.

    python benchmarks/noise_rates.py run [--loss sl …] [--seeds 2]   # what is missing in results/noise-rates.jsonl
    python benchmarks/noise_rates.py show

Cross entropy, each loss as its paper has it, and its adjuster for any data in three forms: as it is; with the noise
rate estimated while training; with the rate that the labels were made with (`AdjustedLoss(noise_rate=…)`). One table
has 200 classes and too many rows to be learned by heart, one is learned by heart soon, where the estimate is too low.
Perceptrons of two layers, side by side (:mod:`travel`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import travel
from narl import AdjustedLoss, losses
from narl.adjuster import packs
from narl.adjuster.worth import IGNORED
from narl.bench.tables import Table
from narl.train.environment import environment
from travel import Drawn

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "noise-rates.jsonl"
LOSSES = ("gce", "sl", "polysoft", "js")
NOISE = (("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.4), ("symmetric", 0.6), ("pair", 0.2), ("pair", 0.4))
FORMS = {"": IGNORED, ", noise estimated": "estimated", ", noise given": "given"}


def _clusters(informative: int, seed: int) -> dict[str, Any]:
    return {
        "n_informative": informative,
        "n_redundant": 0,
        "n_clusters_per_class": 2,
        "class_sep": 2.0,
        "random_state": seed,
    }


TABLES = {
    "200 classes": Drawn(12, 60_000, 20, 200, _clusters(16, 0)),
    "10 classes, by heart": Drawn(60, 8000, 16, 10, _clusters(12, 2)),
}


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(chosen: Sequence[str], seeds: int) -> None:
    """Train what is missing."""
    for seed in range(seeds):
        for table in TABLES:
            for kind, rate in NOISE:
                for loss in chosen:
                    place = {"table": table, "noise": kind, "rate": rate, "seed": seed, "loss": loss}
                    if not any(place.items() <= row.items() for row in results()):
                        _train(place)


def _train(place: dict[str, Any]) -> None:
    made = travel.problem(TABLES[place["table"]], place["noise"], place["rate"], place["seed"])
    counts = torch.bincount(made.given, minlength=made.classes)
    loss = place["loss"]
    pack = packs.read(ROOT / "results" / "adjusters" / f"{loss}-prepared.safetensors")
    rates = [place["rate"] if how == "given" else how for how in FORMS.values()]
    criteria = [AdjustedLoss(pack.snapshots, counts, noise_rate=rate) for rate in rates]
    found = travel.side_by_side(made, loss, ["CE", losses.get(loss).title], criteria, place["seed"])
    row = {
        **place,
        "last5": [one["last5"] for one in found],
        "by_heart": [one["by_heart"] for one in found],
        "estimated": round(float(criteria[1].noise_rate or 0.0), 4),
        "at_random": round(float(criteria[1].worth.at_random), 4),  # type: ignore[union-attr]
        "adjuster": pack.digest,
        "environment": environment("cpu"),
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    said = " ".join(f"{100 * last5:.1f}" for last5 in row["last5"])
    print(f"{place['table']}, {place['noise']} {place['rate']}, seed {place['seed']}, {loss}: {said}", flush=True)


def tables() -> list[Table]:
    """For each table what the losses are worth beside cross entropy, and what was estimated."""
    return [_table(table) for table in TABLES if any(row["table"] == table for row in results())]


def _table(table: str) -> Table:
    own = [row for row in results() if row["table"] == table]
    columns = [("right labels" if kind == "clean" else f"{kind} {rate}") for kind, rate in NOISE]
    lines = [("CE, %", *(_mean([100 * row["last5"][0] for row in own if _of(row, *at)], "") for at in NOISE))]
    for loss in LOSSES:
        title = losses.get(loss).title
        for number, name in enumerate((title, *(f"T-{title}{how}" for how in FORMS)), 1):
            ahead = [
                [100 * (row["last5"][number] - row["last5"][0]) for row in own if row["loss"] == loss and _of(row, *at)]
                for at in NOISE
            ]
            lines.append((name, *(_mean(values, "+") for values in ahead)))
    lines.append(("estimated", *(_mean([100 * row["estimated"] for row in own if _of(row, *at)], "") for at in NOISE)))
    seeds = len({row["seed"] for row in own})
    drawn = TABLES[table]
    note = (
        f"Points over cross entropy, test accuracy, mean of the last five epochs; estimated: share of wrong labels, %, "
        f"mean over the losses. {drawn.rows:,} rows, three quarters of them to train on, {drawn.epochs} epochs, seeds: "
        f"{seeds}."
    )
    return Table(f"The noise rate, drawn table: {table}", ("", *columns), tuple(lines), (note,))


def _of(row: dict[str, Any], kind: str, rate: float) -> bool:
    return bool(row["noise"] == kind and row["rate"] == rate)


def _mean(values: Sequence[float], sign: str) -> str:
    return f"{np.mean(values):{sign}.1f}" if values else "–"


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--loss", choices=LOSSES, action="append")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    if given.what == "show":
        print("\n\n".join(table.markdown() for table in tables()))
    else:
        torch.set_num_threads(1)
        run(given.loss or LOSSES, given.seeds)


if __name__ == "__main__":
    main()
