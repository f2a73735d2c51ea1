"""Classifiers of scikit-learn on wrongly labelled data: plain ones, cleanlab's CleanLearning, narl's.

python examples/sklearn_digits.py                          # digits, 20 and 40 % of the labels wrong, one seed
python examples/sklearn_digits.py --data letter            # letter recognition, fetched from OpenML
python examples/sklearn_digits.py --data letter.npz        # the same from a file with arrays x and y

All train on the same rows with the same labels, of which ten a class have been checked and are right. Only the last
line is told which. CleanLearning, where it is installed (pip install cleanlab), finds wrong labels by cross-validation,
leaves them out and trains once more. "network" is one and the same everywhere; "cross entropy" is narl's classifier
without anything against noise.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import fetch_openml, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import narl

CHECKED = 10  # a class


def load(name: str) -> tuple[Any, Any]:
    """Rows and classes ``0 … c - 1``."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
    elif name == "letter":
        X, y = fetch_openml("letter", version=1, return_X_y=True, as_frame=False)
    else:
        arrays = np.load(name)
        X, y = arrays["x"], arrays["y"]
    return np.asarray(X, dtype=np.float64), np.unique(y, return_inverse=True)[1]


def classifiers(seed: int, num_classes: int) -> dict[str, Callable[[], Any]]:
    """By what a table calls them."""

    def network(**options: Any) -> narl.NoiseAwareClassifier:
        return narl.NoiseAwareClassifier(random_state=seed, device="cpu", **options)

    def linear() -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))

    found: dict[str, Callable[[], Any]] = {
        "logistic regression": linear,
        "random forest": lambda: RandomForestClassifier(200, random_state=seed),
        "network, cross entropy": lambda: network(loss="ce"),
    }
    if importlib.util.find_spec("cleanlab") is not None:
        from cleanlab.classification import CleanLearning

        found["CleanLearning, logistic regression"] = lambda: CleanLearning(linear(), seed=seed)
        found["CleanLearning, network"] = lambda: CleanLearning(network(loss="ce"), seed=seed)
    found["narl, fixed loss"] = lambda: network(adjuster=None)
    found["narl, shipped adjuster"] = network
    found["narl, with the checked samples"] = network
    return found


def compare(
    name: str, rate: float, seed: int, rows: int | None = None, only: str | None = None
) -> list[dict[str, Any]]:
    """Accuracy on true labels of rows that nobody trained on, and seconds, of every classifier, or of one."""
    X, y = load(name)
    if rows is not None and rows < len(y):
        X, _, y, _ = train_test_split(X, y, train_size=rows, stratify=y, random_state=seed)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
    num_classes = len(np.unique(y))
    order = np.random.default_rng(seed).permutation(len(y))
    checked = np.zeros(len(y), dtype=bool)
    for label in range(num_classes):
        checked[order[y[order] == label][:CHECKED]] = True
    given = np.where(checked, y, narl.noise.symmetric(y, rate, num_classes, seed=seed))
    found = []
    for words, make in classifiers(seed, num_classes).items():
        if only not in (None, words):
            continue
        began = time.perf_counter()
        told = {"clean": checked} if "checked" in words else {}
        fitted = make().fit(X, given, **told)
        row = {"classifier": words, "accuracy": float((fitted.predict(X_test) == y_test).mean())}
        found.append({**row, "seconds": round(time.perf_counter() - began, 2), "rows": len(y)})
    return found


def main() -> None:
    """Print what every classifier reaches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rows", type=int, help="of so many rows, three quarters are trained on")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    if importlib.util.find_spec("cleanlab") is None:
        print("cleanlab is not installed, so CleanLearning is left out: pip install cleanlab")
    for rate in asked.rates:
        print(f"{asked.data}, {rate:.0%} of the labels wrong:")
        runs = [compare(asked.data, rate, seed, asked.rows) for seed in range(asked.seeds)]
        for rows in zip(*runs, strict=True):
            accuracy = 100 * np.array([row["accuracy"] for row in rows])
            print(f"  {rows[0]['classifier']:36} {accuracy.mean():5.1f} %  {rows[0]['seconds']:6.1f} s")


if __name__ == "__main__":
    main()
