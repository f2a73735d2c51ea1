"""The demonstration over kinds of noise, losses and margins, three seeds each: what it shows and what it does not.

python benchmarks/demo.py run      # runs what is missing in results/demo, about a minute each
python benchmarks/demo.py show     # prints the Markdown tables of docs/demo.md
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from narl.bench import digits
from narl.train.environment import environment

RESULTS = Path(__file__).parent.parent / "results" / "demo"
CASES = [
    *(
        (noise, "gce", margin)
        for noise in ("pair", "symmetric", "asymmetric", "instance")
        for margin in ("latest", "running")
    ),
    *(("pair", loss, "latest") for loss in ("sl", "polysoft", "js")),
]


TRIALS: dict[str, dict[str, Any]] = {
    "as in the demonstration": {},
    "learning rate 0.1": {"learning_rate": 0.1},
    "no weight decay of the adjuster": {"adjuster_decay": 0.0},
}


def trials() -> list[dict[str, Any]]:
    """Cross entropy and adjusted GCE under pair noise with other settings, three seeds each."""
    rows = []
    for name, options in TRIALS.items():
        for seed in range(3):
            task = digits.load("pair", seed)
            plain = digits.train(task, "ce", adjusted=False, seed=seed, **options)
            adjusted = digits.train(task, "gce", adjusted=True, seed=seed, **options)
            accuracies = {run.method: run.test_accuracy for run in (plain, adjusted)}
            rows.append({"trial": name, "seed": seed, **accuracies, **digits.verdict(adjusted, task).means()})
    return rows


def run() -> None:
    """Run the cases that have no result yet."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for noise, loss, margin in CASES:
        path = RESULTS / f"{noise}-{loss}-{margin}.json"
        if path.exists():
            continue
        print(path.name, file=sys.stderr, flush=True)
        options = ["--noise", noise, "--loss", loss, "--margin", margin, "--seeds", "3", "--json"]
        picture = ["--picture", str(RESULTS / "unused.png")]
        output = subprocess.check_output([sys.executable, "-m", "narl", "demo", *options, *picture], text=True)
        result = json.loads(output)
        del result["picture"]
        path.write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "unused.png").unlink(missing_ok=True)
    path = RESULTS / "trials.json"
    if not path.exists():
        print(path.name, file=sys.stderr, flush=True)
        path.write_text(json.dumps({"rows": trials(), "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print one row a case."""
    print("| noise 40 % | margin | CE | fixed loss | adjusted loss | on clean / mislabelled samples | AUROC |")
    print("|---|---|---|---|---|---|---|")
    for noise, loss, margin in CASES:
        result = json.loads((RESULTS / f"{noise}-{loss}-{margin}.json").read_text())
        cells = [f"{row['method']} {100 * row['mean']:.1f} ± {100 * row['std']:.1f}" for row in result["summary"]]
        means = result["summary"][2]["hyperparameters"]
        learned = ", ".join(f"{name} {m['clean']:.2f} / {m['mislabelled']:.2f}" for name, m in means.items())
        print(f"| {noise} | {margin} | {' | '.join(cells)} | {learned} | {result['audit']['auroc']:.3f} |")
    rows = json.loads((RESULTS / "trials.json").read_text())["rows"]
    print("\n| pair noise | CE | A-GCE | q on clean / mislabelled samples |")
    print("|---|---|---|---|")
    for name in TRIALS:
        mine = [row for row in rows if row["trial"] == name]
        cells = [_spread([row[method] for row in mine]) for method in ("CE", "A-GCE")]
        q = " / ".join(f"{statistics.mean(row['q'][kind] for row in mine):.2f}" for kind in ("clean", "mislabelled"))
        print(f"| {name} | {' | '.join(cells)} | {q} |")
    print("\n" + ", ".join(f"{key} {value}" for key, value in result["environment"].items()))


def _spread(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"


if __name__ == "__main__":
    {"run": run, "show": show}[sys.argv[1] if len(sys.argv) > 1 else "show"]()
