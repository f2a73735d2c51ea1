"""Small data with wrong labels: cross entropy, a fixed robust loss and its adjusted form, five seeds each.

    python benchmarks/small_data.py run DATA [--jobs 2] [--tasks letter penbased trec] [--device cpu]
        # runs what is missing in results/small-data.jsonl
    python benchmarks/small_data.py show
        # prints the Markdown tables of docs/small-data.md

DATA holds letter.npz and penbased.npz (arrays x and y; UCI, by way of OpenML) and the TREC questions with weak labels
as trec/train.jsonl and trec/test.jsonl (text, label, weak_label; from the WRENCH collection). The tables get 40 %
symmetric or pair noise here; the questions come with the labels of keyword rules, of which 54 % are right. Every method
trains with the defaults of `narl train`. A-* learn from the clean samples and end with the last epoch's model; the
fixed losses are given the same clean samples to choose their epoch by. "clean only" is cross entropy on the clean
samples alone, 300 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from narl import noise
from narl.data.read import Columns
from narl.train import planning, session
from narl.train.environment import environment
from narl.train.settings import Settings

RESULTS = Path(__file__).parent.parent / "results" / "small-data.jsonl"
TASKS = ("letter-symmetric", "letter-pair", "penbased-symmetric", "penbased-pair", "trec-weak")
CLEAN = {"letter": 260, "penbased": 200, "trec": 180}
METHODS = ("CE", "GCE", "A-GCE", "SL", "A-SL", "PolySoft", "A-PolySoft", "JS", "A-JS", "clean only")
CLEAN_ONLY = METHODS[-1]
SEEDS = range(5)
RATE = 0.4


def settings_of(task: str, method: str, seed: int, data: Path, scratch: Path, device: str) -> Settings:
    """What is asked for; noisy tables are written to a scratch folder."""
    name, kind = task.split("-")
    method = "CE" if method == CLEAN_ONLY else method
    if name == "trec":
        return Settings(
            data=str(data / "trec" / "train.jsonl"),
            test=str(data / "trec" / "test.jsonl"),
            columns=Columns(label="weak_label", true_label="label", text="text"),
            clean=str(CLEAN[name]),
            overlap="drop",
            method=method,
            seed=seed,
            device=device,
        )
    arrays = np.load(data / f"{name}.npz")
    given = getattr(noise, kind)(arrays["y"], RATE, seed=seed)
    path = scratch / f"{task}-{seed}.npz"
    np.savez(path, x=arrays["x"], y=given, y_true=arrays["y"])
    return Settings(data=str(path), test="0.2", clean=str(CLEAN[name]), method=method, seed=seed, device=device)


def one(task: str, method: str, seed: int, data: Path, device: str) -> dict[str, Any]:
    """Train one."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planning.plan(settings_of(task, method, seed, data, Path(folder), device))
        if method == CLEAN_ONLY:
            assert plan.sets.heldout is not None
            plan = replace(plan, sets=replace(plan.sets, train=plan.sets.heldout, heldout=None))
            plan = replace(plan, recipe=replace(plan.recipe, epochs=math.ceil(300 / plan.steps)))
        outcome = session.start(plan, Path(folder, "run"), tensorboard=False)
    summary = outcome.summary
    kept: dict[str, Any] = {
        name: summary[name] for name in ("seed", "epochs", "last5", "best", "selected") if name in summary
    }
    about = plan.describe()
    decided = {"recipe": about["recipe"], "samples": about["samples"], "model_parameters": about["parameters"]}
    return {"task": task, "method": method, **kept, **decided, "environment": environment(device)}


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(data: Path, jobs: int, wanted: list[str], device: str) -> None:
    """Run what is missing."""
    done = {(row["task"], row["method"], row["seed"]) for row in results()}
    cases = [(task, method, seed) for seed in SEEDS for task in TASKS for method in METHODS]
    missing = [case for case in cases if case[0].split("-")[0] in wanted and case not in done]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as workers:
        started = [workers.submit(one, *case, data, device) for case in missing]
        for number, finished in enumerate(as_completed(started), start=1):
            with RESULTS.open("a") as file:
                file.write(json.dumps(finished.result()) + "\n")
            print(f"{number} of {len(missing)}", flush=True)


def show() -> None:
    """Two tables, mean and standard deviation over seeds, in per cent."""
    found = results()
    for title, key in (("mean of the last five epochs", "last5"), ("epoch chosen by the clean samples", "selected")):
        rows = [row for row in found if key in row]
        methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
        print(f"\n{title}\n\n| | " + " | ".join(methods) + " |\n|---|" + "---|" * len(methods))
        for task in TASKS:
            cells = [
                _cell([_accuracy(row, key) for row in rows if (row["task"], row["method"]) == (task, m)])
                for m in methods
            ]
            print(f"| {task.replace('-', ', ')} | " + " | ".join(cells) + " |")


def _accuracy(row: dict[str, Any], key: str) -> float:
    return 100 * float(row[key]["test_accuracy"])


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
    parser.add_argument("--tasks", nargs="+", default=list(CLEAN), choices=list(CLEAN))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.what == "show":
        show()
    elif options.data is None:
        parser.error("run needs the folder of the data")
    else:
        run(options.data, options.jobs, options.tasks, options.device)


if __name__ == "__main__":
    main()
