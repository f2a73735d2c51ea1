"""Why an adjusted loss comes too late on small tables, and what makes it come in time.

    python benchmarks/small_tables.py signal                      # what the look-ahead sees, epoch by epoch
    python benchmarks/small_tables.py run choose                  # digits and two tables drawn here, to choose on
    python benchmarks/small_tables.py run report --data FOLDER    # letter.npz and penbased.npz, to report
    python benchmarks/small_tables.py show                        # the tables of docs/findings.md
    python benchmarks/small_tables.py page                        # puts them there

Every table has at most 3,000 rows to train on, ten checked ones of each class beside them, and a quarter to test on.
A run is what `narl.NoiseAwareClassifier` does with these options; results/small-tables.jsonl holds a line for each and
only what is missing is run. Nothing is chosen on the last two tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import train_test_split

import narl
from narl import losses, noise
from narl.bilevel.clean_losses import CLEAN_LOSSES
from narl.train.environment import environment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "small-tables.jsonl"
SIGNAL = ROOT / "results" / "small-tables-signal.json"
PAGE = ROOT / "docs" / "findings.md"
NOISES = (("symmetric", 0.4), ("pair", 0.3), ("instance", 0.3), ("clean", 0.0))
CHOOSE, REPORT = ("digits", "drawn", "clusters"), ("letter", "penbased")
SEEDS = range(3)
CHECKED = 10  # a class
EPOCHS = (1, 2, 3, 5, 8, 12, 20)

BEFORE = {"clean_loss": "ce", "robust_start": 0.0, "merge_even": False}
# By what a table calls them: the loss's adjuster and the method's options. None: a fixed loss.
VARIANTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "CE": ("ce", None),
    "GCE": ("gce", None),
    "A-GCE, as it was": ("gce", BEFORE),
    "clean loss 1 - p": ("gce", {**BEFORE, "clean_loss": "mae"}),
    "robust start": ("gce", {**BEFORE, "robust_start": 0.2}),
    "one family": ("gce", {**BEFORE, "families": 1}),
    "1 - p, robust start": ("gce", {**BEFORE, "clean_loss": "mae", "robust_start": 0.2}),
    "A-GCE": ("gce", {}),
}
ALONE: dict[str, tuple[str, dict[str, Any] | None]] = {
    "latest margin": ("gce", {**BEFORE, "margin": "latest"}),
    "rank of the margin": ("gce", {**BEFORE, "input": "rank"}),
    "slower adjuster, 0.001": ("gce", {**BEFORE, "adjuster_lr": 0.001}),
    "faster adjuster, 0.03": ("gce", {**BEFORE, "adjuster_lr": 0.03}),
    "plain look-ahead": ("gce", {**BEFORE, "virtual": "sgd"}),
    "every fifth step": ("gce", {**BEFORE, "every": 5}),
}
MORE: dict[str, tuple[str, dict[str, Any] | None]] = {
    f"{name}{was}": (loss, options)
    for loss, title in (("sl", "SL"), ("js", "JS"), ("polysoft", "PolySoft"))
    for name, was, options in ((title, "", None), (f"A-{title}", ", as it was", BEFORE), (f"A-{title}", "", {}))
}
EVERY = VARIANTS | ALONE | MORE


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to train on with given labels, checked ones, and ones to test on."""

    X: NDArray[np.float64]
    given: NDArray[np.int64]
    true: NDArray[np.int64]
    checked: NDArray[np.bool_]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]


def rows(table: str, folder: Path | None) -> tuple[NDArray[np.float64], NDArray[np.int64], int | None]:
    """Rows, classes, and of how many rows a problem is made."""
    if table == "digits":
        X, y = load_digits(return_X_y=True)
        return X, y, None
    if table == "drawn":
        X, y = make_classification(
            2000, 25, n_informative=12, n_redundant=3, n_classes=10, n_clusters_per_class=1, class_sep=1.5, flip_y=0,
            random_state=2,
        )  # fmt: skip
        return X, y, None
    if table == "clusters":
        X, y = make_classification(
            3600, 16, n_informative=12, n_redundant=2, n_classes=10, n_clusters_per_class=3, class_sep=3.0, flip_y=0,
            random_state=4,
        )  # fmt: skip
        return X, y, None
    if folder is None:
        raise SystemExit("letter and penbased need --data, the folder of letter.npz and penbased.npz")
    arrays = np.load(folder / f"{table}.npz")
    return arrays["x"].astype(np.float64), arrays["y"], 4000


def problem(table: str, kind: str, rate: float, seed: int, folder: Path | None = None) -> Problem:
    """A table with wrong labels."""
    X, y, size = rows(table, folder)
    if size is not None:
        X, _, y, _ = train_test_split(X, y, train_size=size, stratify=y, random_state=seed)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
    classes = int(y.max()) + 1
    order = np.random.default_rng(seed).permutation(len(y))
    checked = np.zeros(len(y), dtype=bool)
    for label in range(classes):
        checked[order[y[order] == label][:CHECKED]] = True
    scaled = ((X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)).astype(np.float32)
    wrong: dict[str, Any] = {
        "clean": lambda: y,
        "symmetric": lambda: noise.symmetric(y, rate, classes, seed=seed),
        "pair": lambda: noise.pair(y, rate, classes, seed=seed),
        "instance": lambda: noise.instance(y, rate, scaled, classes, seed=seed),
    }
    return Problem(X, np.where(checked, y, wrong[kind]()), y, checked, X_test, y_test)


def fitted(made: Problem, loss: str, options: dict[str, Any] | None, seed: int, **more: Any) -> Any:
    """A classifier; a fixed loss is not shown the checked rows, so that all train on the same ones."""
    learned = options is not None
    network = narl.NoiseAwareClassifier(
        loss,
        adjuster="learned" if learned else None,
        options=options or {},
        random_state=seed,
        device="cpu",
        **more,
    )
    if learned:
        return network.fit(made.X, made.given, clean=made.checked)
    rest = ~made.checked
    return network.fit(made.X[rest], made.given[rest])


def one(case: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Train one, and see what it is worth."""
    made = problem(case["table"], case["noise"], case["rate"], case["seed"], folder)
    network = fitted(made, *EVERY[case["variant"]], case["seed"])
    rest = ~made.checked
    wrong = made.given[rest] != made.true[rest]
    learned_by_heart = network.predict(made.X[rest])[wrong] == made.given[rest][wrong]
    right = network.predict(made.X_test) == made.y_test
    return {
        **case,
        "accuracy": round(float(right.mean()), 5),
        "worst_class": round(min(float(right[made.y_test == label].mean()) for label in np.unique(made.y_test)), 4),
        "by_heart": round(float(learned_by_heart.mean()), 4) if wrong.any() else None,
        "environment": environment("cpu"),
    }


def cases(tables: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Every run, the ones that matter most first."""
    main, two = ("GCE", "A-GCE, as it was", "A-GCE"), NOISES[:2]
    parts = ("CE", "clean loss 1 - p", "robust start", "1 - p, robust start")
    groups: list[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, float], ...]]]
    if tables == CHOOSE:
        groups = [((*main, parts[-1]), tables, two), (parts, tables[:1], two), (tuple(MORE), tables[:1], two)]
        groups += [(("one family", *ALONE), tables[:1], two), (("CE",), tables, two)]
    else:
        groups = [(main, tables, NOISES), (("CE",), tables, NOISES)]
    seen = set()
    for variants, own, kinds in groups:
        for seed, table, (kind, rate), variant in product(SEEDS, own, kinds, variants):
            if (seed, table, kind, variant) not in seen:
                seen.add((seed, table, kind, variant))
                yield {"table": table, "noise": kind, "rate": rate, "seed": seed, "variant": variant}


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(tables: tuple[str, ...], folder: Path | None) -> None:
    """Run what is missing."""
    keys = ("table", "noise", "rate", "seed", "variant")
    done = {tuple(row[key] for key in keys) for row in results()}
    missing = [case for case in cases(tables) if tuple(case.values()) not in done]
    for number, case in enumerate(missing, start=1):
        found = one(case, folder)
        with RESULTS.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{number} of {len(missing)}: {' '.join(map(str, case.values()))}: {found['accuracy']:.3f}", flush=True)


def signal() -> None:
    """What a look-ahead sees of a label: how much the clean loss falls along the gradient of its cross entropy.

    The classifier's perceptron is trained on digits with GCE, q = 0.7. After some epochs the cross entropy of every
    label is differentiated along the gradient of the clean loss, brought to length 1. Where that is above 0, a step
    that trusts the label more lowers the clean loss, and q falls.
    """
    found = []
    for (kind, rate), seed in product(NOISES[:2], SEEDS):
        made = problem("digits", kind, rate, seed)
        mean, std = made.X.mean(axis=0), np.where(made.X.std(axis=0) > 0, made.X.std(axis=0), 1)
        x = torch.tensor((made.X - mean) / std, dtype=torch.float32)
        y, right = torch.tensor(made.given), torch.tensor(made.given == made.true)
        checked = torch.tensor(made.checked)
        generator = torch.Generator().manual_seed(seed)
        model = narl.models.mlp(x.shape[1], 10, hidden=(256, 256), generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        rest = (~checked).nonzero().flatten()
        for epoch in range(1, EPOCHS[-1] + 1):
            for ids in torch.split(rest[torch.randperm(len(rest), generator=generator)], 100):
                optimizer.zero_grad()
                torch.autograd.backward(losses.gce(model(x[ids]), y[ids], 0.7).mean())
                optimizer.step()
            if epoch not in EPOCHS:
                continue
            with torch.no_grad():
                against = narl.margin(model(x[rest]), y[rest]) < 0
            row = {"noise": kind, "seed": seed, "epoch": epoch}
            for name, clean_loss in CLEAN_LOSSES.items():
                slopes = _slopes(model, clean_loss, (x[checked], y[checked]), (x[rest], y[rest]))
                row[name] = {
                    "wrong": round(float(slopes[against & ~right[rest]].mean()), 3),
                    "right": round(float(slopes[against & right[rest]].mean()), 3),
                }
            found.append(row)
    SIGNAL.write_text(json.dumps({"rows": found, "environment": environment("cpu")}, indent=1) + "\n")


def _slopes(model: Any, clean_loss: Any, clean: tuple[Any, Any], noisy: tuple[Any, Any]) -> Any:
    """Every label's cross entropy, differentiated along the clean loss's gradient of length 1."""
    weights = dict(model.named_parameters())
    gradients = torch.autograd.grad(clean_loss(model(clean[0]), clean[1]), list(weights.values()))
    length = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()

    def values(at: dict[str, Any]) -> Any:
        return losses.ce(torch.func.functional_call(model, at, (noisy[0],)), noisy[1])

    along = {name: gradient / length for name, gradient in zip(weights, gradients, strict=True)}
    return torch.func.jvp(values, ({name: weight.detach() for name, weight in weights.items()},), (along,))[1]


def signal_table() -> str:
    """Mean over the seeds."""
    found = json.loads(SIGNAL.read_text())["rows"]
    columns = [(kind, name, part) for kind, _ in NOISES[:2] for name in CLEAN_LOSSES for part in ("right", "wrong")]
    called = {"ce": "cross entropy", "mae": "1 − p"}
    head = [f"{kind}, {called[name]}: {part}" for kind, name, part in columns]
    lines = ["| epoch | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for epoch in EPOCHS:
        own = [row for row in found if row["epoch"] == epoch]
        means = [
            statistics.mean(row[name][part] for row in own if row["noise"] == kind) for kind, name, part in columns
        ]
        lines.append(f"| {epoch} | " + " | ".join(f"{mean:+.2f}".replace("-", "−") for mean in means) + " |")
    return "\n".join(lines)


def accuracy_table(tables: tuple[str, ...]) -> str:
    """Test accuracy in per cent, mean and standard deviation over the seeds."""
    found = [row for row in results() if row["table"] in tables]
    columns = [
        (table, kind, rate)
        for table in tables
        for kind, rate in NOISES
        if any((row["table"], row["noise"]) == (table, kind) for row in found)
    ]
    head = [f"{table}, {kind}{f' {rate:g}' if rate else ''}" for table, kind, rate in columns]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for variant in EVERY:
        own = [row for row in found if row["variant"] == variant]
        if own:
            cells = [[100 * row["accuracy"] for row in own if (row["table"], row["noise"]) == c[:2]] for c in columns]
            lines.append(f"| {variant} | " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f"±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" + ("" if len(values) == len(SEEDS) else f" ({len(values)})")


def shown() -> dict[str, str]:
    """The tables by their marks in the page."""
    return {"signal": signal_table(), "choose": accuracy_table(CHOOSE), "report": accuracy_table(REPORT)}


def page() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text()
    for name, made in shown().items():
        mark, end = f"<!-- small-tables-{name} -->\n", "<!-- end -->"
        start = text.index(mark) + len(mark)
        text = text[:start] + "\n" + made + "\n\n" + text[text.index(end, start) :]
    PAGE.write_text(text)


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("signal", "run", "show", "page"))
    parser.add_argument("which", choices=("choose", "report"), nargs="?", default="choose")
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "run":
        run(CHOOSE if asked.which == "choose" else REPORT, asked.data)
    elif asked.what == "signal":
        signal()
    elif asked.what == "page":
        page()
    else:
        print("\n\n".join(shown().values()))


if __name__ == "__main__":
    main()
