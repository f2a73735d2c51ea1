"""Adjusters for tables, learned from whole trainings on tables that are drawn here.

    python benchmarks/table_adjusters.py learn gce [--generations 6] [--at-once 2]   # goes on where it was stopped
    python benchmarks/table_adjusters.py write gce --out adjusters                   # adjusters/gce-tables.safetensors
    python benchmarks/table_adjusters.py show

A small network knows a table's labels by heart after some hundred steps. What a look-ahead of one step finds good there
is not what is good at the end: it trusts all labels. Tables are small, though, so an adjuster can be judged by what a
whole training with it is worth. It has a form with few numbers, which are found by the cross-entropy method
(Rubinstein, 1999): candidates are drawn from a normal distribution, each is used on the same freshly drawn tables, and
the distribution moves to the best of them. The form, with the margin m, the progress t and κ = log(classes / 10),
before the sigmoid that every hyperparameter goes through:

    ramp = relu(z) - relu(z - (w + wc κ)),   z = a (m0 + mc κ + b t - m)
    logit of hyperparameter k = l_k + g_k ramp

and until t = start the same for all samples, s_k + g_k sc κ. An adjuster with two hidden units computes it exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import travel
from narl import AdjustedLoss, Adjuster, losses
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench.tables import Table
from narl.train.environment import environment

RESULTS = Path(__file__).parent.parent / "results" / "table-adjusters.jsonl"
CANDIDATES, ELITE, TABLES = 32, 8, 40
NOISE = (
    *(("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.3), ("symmetric", 0.4), ("symmetric", 0.6)),
    *(("pair", 0.2), ("pair", 0.4), ("instance", 0.2), ("instance", 0.4), ("instance", 0.6)),
)
MOST = 5.0  # points that one table can count for
INPUT = "margin+progress+classes"

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
# Of each hyperparameter: its logit at high margins, at the start, and which way the ramp goes.
OWN: dict[str, tuple[tuple[float, float, float | None], ...]] = {
    "gce": ((-3.3, 0.6, 1.0),),
    "js": ((-3.3, 0.0, 1.0),),
    "sl": ((3.0, -1.0, -1.0), (0.0, 2.0, None)),
    "polysoft": ((3.0, -0.9, -1.0), (2.0, 2.0, None)),
}

SECTION = """\
## On tables

There another adjuster serves, which was learned from whole trainings: {candidates} candidates in each of {generations}
generations were used on the same {tables} freshly drawn tables, each from the first step to the last, and the next
generation was drawn around the best of them. It has one family, sees the number of classes, and begins with
hyperparameters that depend on nothing else.

`narl train` takes it on tables by itself, and `narl.AdjustedLoss.pretrained(…, data="table")` asks for it.

{table}
"""


def beginning(loss: str) -> dict[str, tuple[float, float, float, float]]:
    """Mean, standard deviation, lowest and highest value of each number of a loss's form.

    Example:
        >>> list(beginning("sl"))[-5:]
        ['l1', 's1', 'l2', 's2', 'g2']
    """
    found = dict(COMMON)
    for number, (level, start, way) in enumerate(OWN[loss], 1):
        found[f"l{number}"] = (level, 0.7, -4.6, 4.6)
        found[f"s{number}"] = (start, 0.6, -4.6, 4.6)
        if way is None:
            found[f"g{number}"] = (0.0, 0.6, -1.5, 1.5)
    return found


@torch.no_grad()
def made(loss: str, numbers: dict[str, float]) -> tuple[Adjuster, Adjuster]:
    """The adjuster of these numbers: as it is at the start, and from then on."""
    first, then = (Adjuster(loss, [1, 1], families=1, hidden=2, margin="running", input=INPUT) for _ in range(2))
    ways = [numbers[f"g{k}"] if way is None else way for k, (_, _, way) in enumerate(OWN[loss], 1)]
    own = range(1, len(ways) + 1)
    steps = torch.tensor(ways).unsqueeze(1)
    a = math.exp(numbers["log a"])
    slopes = [-a, a * numbers["b"], a * numbers["mc"]]
    then.hidden.weight.copy_(torch.tensor([slopes, [*slopes[:2], slopes[2] - numbers["wc"]]]))
    then.hidden.bias.copy_(torch.tensor([a * numbers["m0"], a * numbers["m0"] - numbers["w"]]))
    then.heads.weight.copy_(torch.cat([steps, -steps], dim=1))
    then.heads.bias.copy_(torch.tensor([numbers[f"l{k}"] for k in own]))
    # κ + 10 is above 0 for any number of classes: a unit that passes it on.
    first.hidden.weight.copy_(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    first.hidden.bias.copy_(torch.tensor([10.0, 0.0]))
    first.heads.weight.copy_(torch.cat([numbers["sc"] * steps, torch.zeros_like(steps)], dim=1))
    levels = [numbers[f"s{k}"] - 10 * numbers["sc"] * way for k, way in zip(own, ways, strict=True)]
    first.heads.bias.copy_(torch.tensor(levels))
    first.taken, then.taken = 0.0, numbers["start"]
    return first, then


def drawn(rng: np.random.Generator) -> tuple[travel.Drawn, str, float, int]:
    """A table, the noise of its labels, and a seed."""
    while True:
        classes = int(rng.choice([2, 3, 5, 8, 10, 15, 20, 30, 40]))
        rows, epochs = int(rng.integers(1500, 8000)), int(rng.integers(12, 35))
        informative = int(rng.integers(max(5, math.ceil(math.log2(2 * classes)) + 1), 20))
        clusters = min(int(rng.integers(1, 4)), 2**informative // classes)
        redundant, idle = int(rng.integers(0, 5)), int(rng.integers(0, 15))
        options: dict[str, Any] = {
            "n_informative": informative,
            "n_redundant": redundant,
            "n_clusters_per_class": clusters,
            "class_sep": float(rng.uniform(1, 3)),
            "random_state": int(rng.integers(10**6)),
        }
        if rng.random() < 0.35:
            shares = 0.7 * rng.dirichlet(np.full(classes, 3.0)) + 0.3 / classes
            options["weights"] = (shares / shares.sum()).tolist()
        kind, rate = NOISE[int(rng.integers(len(NOISE)))]
        seed = int(rng.integers(10**6))
        if rows * epochs <= 150_000:
            return travel.Drawn(epochs, rows, informative + redundant + idle, classes, options), kind, rate, seed


Job = tuple[str, list[dict[str, float]], travel.Drawn, str, float, int]


def worth(job: Job) -> dict[str, Any]:
    """What whole trainings on a table are worth: with cross entropy, with the fixed loss, and with each candidate."""
    torch.set_num_threads(1)
    loss, candidates, table, kind, rate, seed = job
    problem = travel.problem(table, kind, rate, seed)
    counts = torch.bincount(problem.given, minlength=problem.classes)
    criteria = [AdjustedLoss(made(loss, numbers), counts) for numbers in candidates]
    found = travel.side_by_side(problem, loss, ["CE", losses.get(loss).title], criteria, seed)
    return {"noise": kind, "rate": rate, "classes": table.classes, "last5": [row["last5"] for row in found]}


def results(loss: str) -> list[dict[str, Any]]:
    """The generations so far."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [row for row in map(json.loads, lines) if row["loss"] == loss]


def learn(loss: str, generations: int, at_once: int) -> None:
    """Make the generations that are missing."""
    begin = beginning(loss)
    mean, spread, low, high = (np.array(column) for column in zip(*begin.values(), strict=True))
    done = results(loss)
    if done:
        mean, spread = (np.array([done[-1][part][name] for name in begin]) for part in ("mean", "spread"))
    with multiprocessing.Pool(at_once) as pool:
        for generation in range(len(done), generations):
            began, rng = time.perf_counter(), np.random.default_rng([generation, list(OWN).index(loss)])
            numbers = np.clip(mean + spread * rng.standard_normal((CANDIDATES, len(mean))), low, high)
            numbers = np.vstack([numbers, np.clip(mean, low, high)])
            named = [dict(zip(begin, map(float, row), strict=True)) for row in numbers]
            jobs: list[Job] = [(loss, named, *drawn(rng)) for _ in range(TABLES)]
            tables = []
            for row in pool.imap_unordered(worth, jobs):
                tables.append(row)
                if len(tables) % 10 == 0:
                    print(f"{loss}, generation {generation}: {len(tables)} of {TABLES} tables", flush=True)
            ahead = _points(tables)
            best = numbers[:CANDIDATES][np.argsort(-np.clip(ahead, -MOST, MOST).mean(axis=0)[:CANDIDATES])[:ELITE]]
            of_mean = _summary(tables)
            mean = (0.8 * best.mean(axis=0) + 0.2 * mean).round(4)  # as it is kept, so that nothing changes if stopped
            spread = np.maximum(0.7 * best.std(axis=0) + 0.3 * spread, 0.03).round(4)
            row = {
                "loss": loss,
                "generation": generation,
                "mean": dict(zip(begin, map(float, mean), strict=True)),
                "spread": dict(zip(begin, map(float, spread), strict=True)),
                "mean_before": of_mean,
                "seconds": round(time.perf_counter() - began),
                "environment": environment("cpu"),
            }
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{loss}, generation {generation}: {json.dumps(of_mean)}", flush=True)


def _points(tables: Sequence[dict[str, Any]]) -> NDArray[Any]:
    """By how many points each candidate is ahead of the fixed loss on each table."""
    last5: NDArray[Any] = 100 * np.array([row["last5"] for row in tables])
    found: NDArray[Any] = last5[:, 2:] - last5[:, 1:2]
    return found


def _summary(tables: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """What the distribution's mean, the last candidate, was worth on tables that were drawn after it was decided."""
    ahead, noisy = _points(tables)[:, -1], np.array([row["noise"] != "clean" for row in tables])
    last5 = 100 * np.array([row["last5"] for row in tables])
    over_ce = last5[:, -1] - last5[:, 0]
    return {
        "over_fixed": round(float(ahead[noisy].mean()), 2),
        "ahead_of_fixed": round(float((ahead[noisy] > 0).mean()), 2),
        "over_ce": round(float(over_ce[noisy].mean()), 2),
        "clean_over_fixed": None if noisy.all() else round(float(ahead[~noisy].mean()), 2),
        "clean_over_ce": None if noisy.all() else round(float(over_ce[~noisy].mean()), 2),
        "clean_tables": int((~noisy).sum()),
    }


def write(loss: str, out: Path) -> Path:
    """The file of what the newest generation came to."""
    done = results(loss)
    if not done:
        raise SystemExit(f"nothing was learned of {loss} yet: table_adjusters.py learn {loss}")
    out.mkdir(parents=True, exist_ok=True)
    snapshots = made(loss, done[-1]["mean"])
    for snapshot in snapshots:
        snapshot.data = "table"
    words = "drawn tables of 2 to 40 classes: right labels; symmetric, pair and instance noise of 0.2 to 0.6"
    table = _table("Each generation on tables of its own", _lines(loss, done))
    section = SECTION.format(candidates=CANDIDATES, generations=len(done), tables=TABLES, table=table.markdown())
    packs.write(out / f"{loss}-tables.safetensors", Pack(snapshots, trained_on=words, about={"section": section}))
    return out / f"{loss}-tables.safetensors"


def tables() -> list[Table]:
    """How the search went."""
    lines = [line for loss in OWN for line in _lines(loss, results(loss))]
    return [_table("Adjusters for tables, learned from whole trainings", lines)]


def _lines(loss: str, done: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines = []
    for row in done:
        found = row["mean_before"]
        names = ("over_fixed", "over_ce", "clean_over_fixed", "clean_over_ce")
        ahead, *others = ("–" if found[name] is None else f"{found[name]:+.1f}" for name in names)
        share = f"{100 * found['ahead_of_fixed']:.0f} %"
        lines.append((losses.get(loss).title, str(row["generation"] + 1), ahead, share, *others))
    return lines


def _table(title: str, lines: Sequence[tuple[str, ...]]) -> Table:
    clean = ("right labels: over the fixed loss", "right labels: over CE")
    heading = ("loss", "generation", "over the fixed loss", "tables ahead of it", "over CE", *clean)
    note = (
        f"Points of test accuracy, mean of the last five epochs, over {TABLES} tables that are drawn for the "
        "generation; of the candidates' mean before the generation moves it."
    )
    return Table(title, heading, tuple(lines), (note,))


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("learn", "write", "show"))
    parser.add_argument("loss", nargs="?", choices=tuple(OWN))
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("adjusters"))
    given = parser.parse_args()
    if given.what == "show":
        print("\n\n".join(table.markdown() for table in tables()))
        return
    if given.loss is None:
        parser.error(f"{given.what} needs a loss: one of {', '.join(OWN)}")
    if given.what == "learn":
        learn(given.loss, given.generations, given.at_once)
    else:
        print(write(given.loss, given.out))


if __name__ == "__main__":
    main()
