"""Small data with wrong labels: cross entropy, a fixed robust loss and its adjusted form, five seeds each.

    python benchmarks/small_data.py run DATA [--jobs 2]   # runs what is missing in results/small-data
    python benchmarks/small_data.py show                  # prints the Markdown table of docs/small-data.md

DATA holds letter.npz and penbased.npz (arrays x and y; UCI, by way of OpenML) and the TREC questions with weak labels
as trec/train.jsonl and trec/test.jsonl (text, label, weak_label; from the WRENCH collection). The tables get 40 %
symmetric or pair noise here; the questions come with the labels of keyword rules, of which 54 % are right. Every method
trains with the defaults of `narl train`; the baselines get the same clean samples to choose their epoch by.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from narl import noise
from narl.data.read import Columns
from narl.train import planning, session
from narl.train.environment import environment
from narl.train.settings import Settings

RESULTS = Path(__file__).parent.parent / "results" / "small-data"
TASKS = ("letter-symmetric", "letter-pair", "penbased-symmetric", "penbased-pair", "trec-weak")
CLEAN = {"letter": 260, "penbased": 200, "trec": 180}
METHODS = ("CE", "GCE", "A-GCE", "A-SL", "A-PolySoft", "A-JS")
SEEDS = range(5)
RATE = 0.4


def settings_of(task: str, method: str, seed: int, data: Path, scratch: Path) -> Settings:
    """What is asked for; noisy tables are written to a scratch folder."""
    name, kind = task.split("-")
    if name == "trec":
        return Settings(
            data=str(data / "trec" / "train.jsonl"),
            test=str(data / "trec" / "test.jsonl"),
            columns=Columns(label="weak_label", true_label="label", text="text"),
            clean=str(CLEAN[name]),
            overlap="drop",
            method=method,
            seed=seed,
            device="cpu",
        )
    arrays = np.load(data / f"{name}.npz")
    given = getattr(noise, kind)(arrays["y"], RATE, seed=seed)
    path = scratch / f"{task}-{seed}.npz"
    np.savez(path, x=arrays["x"], y=given, y_true=arrays["y"])
    return Settings(data=str(path), test="0.2", clean=str(CLEAN[name]), method=method, seed=seed, device="cpu")


def one(task: str, method: str, seed: int, data: Path) -> None:
    """Train one and keep its result."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planning.plan(settings_of(task, method, seed, data, Path(folder)))
        outcome = session.start(plan, Path(folder, "run"), tensorboard=False)
    summary = outcome.summary
    kept = {
        name: summary[name] for name in ("method", "seed", "epochs", "last5", "best", "selected") if name in summary
    }
    about = plan.describe()
    decided = {"recipe": about["recipe"], "samples": about["samples"], "model_parameters": about["parameters"]}
    path = RESULTS / f"{task}-{method}-{seed}.json"
    path.write_text(json.dumps({"task": task, **kept, **decided, "environment": environment()}, indent=1) + "\n")


def run(data: Path, jobs: int) -> None:
    """Run what is missing."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    missing = [
        (task, method, seed)
        for seed in SEEDS
        for task in TASKS
        for method in METHODS
        if not (RESULTS / f"{task}-{method}-{seed}.json").exists()
    ]
    with ProcessPoolExecutor(jobs) as workers:
        for number, _ in enumerate(workers.map(one, *zip(*missing, strict=True), [data] * len(missing)), start=1):
            print(f"{number} of {len(missing)}", flush=True)


def show() -> None:
    """The table: mean and standard deviation over seeds, in per cent."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    print("| task | " + " | ".join(METHODS) + " |\n|---|" + "---|" * len(METHODS))
    for title, value in (("last 5 epochs", _last5), ("epoch chosen on clean samples", _selected)):
        for task in TASKS:
            cells = [_cell([value(row) for row in found if (row["task"], row["method"]) == (task, m)]) for m in METHODS]
            print(f"| {task}, {title} | " + " | ".join(cells) + " |")


def _last5(row: dict[str, Any]) -> float:
    return 100 * float(row["last5"]["test_accuracy"])


def _selected(row: dict[str, Any]) -> float:
    return 100 * float(row["selected"]["test_accuracy"])


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" + ("" if len(values) == len(SEEDS) else f" ({len(values)})")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.what == "show":
        show()
    elif options.data is None:
        parser.error("run needs the folder of the data")
    else:
        run(options.data, options.jobs)


if __name__ == "__main__":
    main()
