"""scikit-learn's classifiers, cleanlab's CleanLearning and narl's, on digits and letter with wrong labels.

    python benchmarks/classifiers.py run [--letter letter.npz] [--seeds 5]
        # runs what is missing in results/classifiers.jsonl; needs cleanlab; without --letter it is fetched from OpenML
    python benchmarks/classifiers.py again --only "narl, with the checked samples" [--letter letter.npz]
        # runs one classifier's lines anew, or for the first time, without cleanlab: after a change of narl
    python benchmarks/classifiers.py speed
        # measures a fit against a bare loop with the same network, to results/classifiers-speed.json
    python benchmarks/classifiers.py page
        # puts both into docs/sklearn.md

What is run is examples/sklearn_digits.py; of letter, 4,000 rows, of which 3,000 are trained on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import narl
from narl.train.environment import environment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "classifiers.jsonl"
ROWS = {"digits": None, "letter": 4000}
PAGE = ROOT / "docs" / "sklearn.md"
SPEED = ROOT / "results" / "classifiers-speed.json"
RATES = (0.2, 0.4)


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def _example() -> Any:
    path = ROOT / "examples" / "sklearn_digits.py"
    spec = importlib.util.spec_from_file_location("sklearn_digits", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def again(only: str, letter: str) -> None:
    """Run one classifier's lines anew. Seconds stay: they compare lines that were taken at the same time."""
    example, found = _example(), results()
    about = {**environment(), "scikit-learn": version("scikit-learn")}
    known = {(row["data"], row["rate"], row["seed"]): row for row in found if row["classifier"] == only}
    for data, rate, seed in dict.fromkeys((row["data"], row["rate"], row["seed"]) for row in found):
        (fresh,) = example.compare(letter if data == "letter" else data, rate, seed, ROWS[data], only)
        row = known.get((data, rate, seed))
        if row is None:
            found.append({"data": data, "rate": rate, "seed": seed, **fresh, "environment": about})
        else:
            row |= {"accuracy": fresh["accuracy"], "environment": about}
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in found))
        print(f"{data}, {rate:.0%}, seed {seed}: {fresh['accuracy']:.3f}", flush=True)


def run(seeds: int, letter: str) -> None:
    """Run what is missing."""
    example = _example()
    done = {(row["data"], row["rate"], row["seed"]) for row in results()}
    about = {**environment(), "scikit-learn": version("scikit-learn"), "cleanlab": version("cleanlab")}
    for seed in range(seeds):
        for data, rows in ROWS.items():
            for rate in RATES:
                if (data, rate, seed) in done:
                    continue
                found = example.compare(letter if data == "letter" else data, rate, seed, rows)
                with RESULTS.open("a") as file:
                    for row in found:
                        line = {"data": data, "rate": rate, "seed": seed, **row, "environment": about}
                        file.write(json.dumps(line) + "\n")
                print(f"{data}, {rate:.0%}, seed {seed}", flush=True)


def table() -> str:
    """Mean and standard deviation over the seeds, in per cent, and the median of the seconds."""
    found = results()
    cases = [(data, rate) for data in ROWS for rate in RATES]
    head = [f"{data}, {rate:.0%}" for data, rate in cases]
    lines = ["| | " + " | ".join(head) + " | seconds, letter |", "|---|" + "---|" * (len(cases) + 1)]
    for name in dict.fromkeys(row["classifier"] for row in found):
        own = [row for row in found if row["classifier"] == name]
        cells = [_cell([100 * r["accuracy"] for r in own if (r["data"], r["rate"]) == case]) for case in cases]
        seconds = [row["seconds"] for row in own if row["data"] == "letter"]
        cells.append(f"{statistics.median(seconds):.0f}" if seconds else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def speed(rounds: int = 5, epochs: int = 4) -> None:
    """Processor time of fits, in bare loops with the same network, batches and number of steps."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10_000, 16)), rng.integers(0, 26, 10_000)
    clean = np.arange(len(y)) < 260

    def bare() -> None:
        x, t = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32), torch.tensor(y)
        model = narl.models.mlp(16, 26, hidden=(256, 256))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * 100)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(x)), 100):
                loss = torch.nn.functional.cross_entropy(model(x[rows]), t[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()

    def fitted(told: bool = False, **options: Any) -> None:
        network = narl.NoiseAwareClassifier(max_iter=epochs, random_state=0, device="cpu", **options)
        network.fit(X, y, clean=clean if told else None)

    cases: dict[str, Callable[[], None]] = {
        "bare loop": bare,
        "cross entropy": lambda: fitted(loss="ce"),
        "fixed loss": lambda: fitted(adjuster=None),
        "learned, every step": lambda: fitted(told=True, adjuster="learned", options={"every": 1}),
        "learned, every fifth": lambda: fitted(told=True, adjuster="learned", options={"every": 5}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, work in cases.items():
            began = time.process_time()
            work()
            seconds[name].append(time.process_time() - began)
    least = {name: min(times) for name, times in seconds.items()}
    ratios = {name: round(took / least["bare loop"], 2) for name, took in least.items()}
    found = {
        "ratios": ratios,
        "seconds": seconds,
        "rounds": rounds,
        "steps": epochs * 100,
        "environment": environment(),
    }
    SPEED.write_text(json.dumps(found, indent=1) + "\n")
    print(ratios)


def speed_table() -> str:
    """What a fit takes."""
    ratios = json.loads(SPEED.read_text())["ratios"]
    names = [name for name in ratios if name != "bare loop"]
    cells = " | ".join(f"{ratios[name]:.1f}" for name in names)
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n| {cells} |"


def page() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text()
    for name, made in (("classifiers", table()), ("speed", speed_table())):
        mark, end = f"<!-- {name} -->\n", "<!-- end -->"
        start = text.index(mark) + len(mark)
        text = text[:start] + made + "\n" + text[text.index(end, start) :]
    PAGE.write_text(text)


def main() -> None:
    """Run, measure or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "again", "speed", "page"))
    parser.add_argument("--only", default="narl, with the checked samples", help="the classifier to run again")
    parser.add_argument("--letter", default="letter", help="a file with arrays x and y, instead of OpenML's")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.seeds, asked.letter)
    elif asked.what == "again":
        again(asked.only, asked.letter)
    elif asked.what == "speed":
        speed()
    else:
        page()


if __name__ == "__main__":
    main()
