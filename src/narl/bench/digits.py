"""The demonstration's experiment: scikit-learn's digits with wrong labels, three losses, a small network.

Small enough for a laptop, real enough to see what the method does: handwritten digits, a convolutional network that
could memorise every wrong label, a clean set of 100 that is not trained on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl import losses, models, noise
from narl.adjuster import Adjuster, margin
from narl.bilevel import MetaStep
from narl.errors import OptionError, nearest

P = ParamSpec("P")
R = TypeVar("R")

RATE = 0.4
BATCH = 100
# Digits that people mistake for each other: 2 for 7, 3 for 8, 5 and 6 for each other, 7 for 1.
LOOKALIKES = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}

NOISES: dict[str, Callable[[Any, Any, int], Any]] = {
    "symmetric": lambda labels, images, seed: noise.symmetric(labels, RATE, 10, seed=seed),
    "asymmetric": lambda labels, images, seed: noise.asymmetric(labels, RATE, LOOKALIKES, 10, seed=seed),
    "pair": lambda labels, images, seed: noise.pair(labels, RATE, 10, seed=seed),
    "instance": lambda labels, images, seed: noise.instance(labels, RATE, images, 10, seed=seed),
}


@dataclass(frozen=True, eq=False)
class Task:
    """Digits to train on, with given and true labels; the clean set and the test set share no sample with them."""

    images: Tensor
    given: Tensor
    true: Tensor
    clean_images: Tensor
    clean_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def mislabelled(self) -> Tensor:
        """Which training samples have a wrong label, ``(N,)``."""
        return self.given != self.true


@dataclass(frozen=True, eq=False)
class Run:
    """One training: accuracies by epoch, and the model and, for the adjusted loss, the adjuster that came out."""

    method: str
    seed: int
    accuracies: list[float]
    seconds: float
    model: nn.Module
    adjuster: Adjuster | None = field(default=None)

    @property
    def test_accuracy(self) -> float:
        """Mean over the last five epochs: the result."""
        return float(np.mean(self.accuracies[-5:]))


def load(kind: str, seed: int) -> Task:
    """Digits with 40 % noise: 1,200 to train on, 10 clean ones a class, the rest to test on.

    Args:
        kind: ``"symmetric"``, ``"asymmetric"``, ``"pair"`` or ``"instance"``.
        seed: of the split and the noise.

    Returns:
        The task; images are ``(N, 1, 8, 8)``, float32, between 0 and 1.
    """
    from sklearn.datasets import load_digits

    if kind not in NOISES:
        raise OptionError(f"noise {kind!r} is unknown: {nearest(kind, NOISES)}")
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = [order[labels[order] == digit] for digit in range(10)]
    clean = np.concatenate([members[:10] for members in by_class])
    rest = order[~np.isin(order, clean)]
    train, test = rest[:1200], rest[1200:]
    given = NOISES[kind](labels[train], images[train], seed)
    return Task(
        *(torch.from_numpy(array) for array in (images[train], given, labels[train])),
        *(torch.from_numpy(array) for array in (images[clean], labels[clean], images[test], labels[test])),
    )


def _one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Batches are this small: more threads mostly wait for each other, and would round differently by machine."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return wrapped


@_one_thread
def train(
    task: Task,
    loss: str,
    *,
    adjusted: bool,
    seed: int,
    epochs: int = 30,
    margin_kind: str = "latest",
    learning_rate: float = 0.03,
    adjuster_decay: float = 1e-4,
    after_epoch: Callable[[float], None] = lambda accuracy: None,
) -> Run:
    """Train a small convnet with a fixed loss or with its adjusted form.

    Args:
        task: the data.
        loss: name of the loss; its hyperparameters are the defaults if it is not adjusted.
        adjusted: meta-learn the hyperparameters on the clean set, in every step.
        seed: of the initial weights, the order of the samples and their shifts.
        epochs: passes over the data, at a constant learning rate.
        margin_kind: the adjuster's input, ``"latest"`` or ``"running"``.
        learning_rate: of the classifier.
        adjuster_decay: weight decay of the adjuster.
        after_epoch: called with the test accuracy after each epoch.

    Returns:
        What came out.
    """
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    robust_loss = losses.get(loss)
    model = models.convnet(num_classes=10, in_channels=1, width=16, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4)
    meta = None
    if adjusted:
        counts = torch.bincount(task.given, minlength=10)
        adjuster = Adjuster(loss, counts, margin=margin_kind, generator=generator)
        # 1e-2 suits some hundred steps; the paper's 1e-3 is for 50,000.
        outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=adjuster_decay)
        meta = MetaStep(model, optimizer, adjuster, every=1, adjuster_optimizer=outer)

    accuracies = []
    for _ in range(epochs):
        for ids in torch.split(torch.randperm(len(task.given), generator=generator), BATCH):
            x, y = shifted(task.images[ids], generator), task.given[ids]
            if meta is not None:
                meta.step(x, y, (shifted(task.clean_images, generator), task.clean_labels), ids=ids)
            else:
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(robust_loss(model(x), y).mean())
                optimizer.step()
        accuracies.append(float((scores(model, task.test_images).argmax(1) == task.test_labels).float().mean()))
        after_epoch(accuracies[-1])
    method = f"A-{robust_loss.title}" if adjusted else robust_loss.title
    return Run(method, seed, accuracies, time.perf_counter() - began, model, adjuster if adjusted else None)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image ``(N, 1, 8, 8)`` moved by at most one pixel in each direction, zeros coming in."""
    count, _, height, width = images.shape
    down, right = torch.randint(0, 3, (2, count, 1, 1, 1), generator=generator)
    rows, columns = down + torch.arange(height).view(1, 1, -1, 1), right + torch.arange(width).view(1, 1, 1, -1)
    samples = torch.arange(count).view(-1, 1, 1, 1)
    return F.pad(images, (1, 1, 1, 1))[samples, 0, rows, columns]


@torch.no_grad()
def scores(model: nn.Module, images: Tensor) -> Tensor:
    """Logits ``(N, c)`` in evaluation mode; the model goes back to the mode it was in."""
    was_training = model.training
    logits: Tensor = model.eval()(images)
    model.train(was_training)
    return logits


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an adjusted run says about its training samples, beside the truth.

    Margins and hyperparameters are those at the end of training, without shifts, ``(N,)`` each.
    """

    margins: Tensor
    hyperparameters: dict[str, Tensor]
    mislabelled: Tensor

    @property
    def auroc(self) -> float:
        """How well a low margin finds the mislabelled samples: 1 is perfect, 0.5 is chance."""
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(self.mislabelled.numpy(), -self.margins.numpy()))

    def means(self) -> dict[str, dict[str, float]]:
        """Mean of each hyperparameter over clean and over mislabelled samples."""
        return {
            name: {
                "clean": float(values[~self.mislabelled].mean()),
                "mislabelled": float(values[self.mislabelled].mean()),
            }
            for name, values in self.hyperparameters.items()
        }


def summary(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Runs and verdicts of all seeds as plain numbers.

    Args:
        runs: all of them.
        verdicts: one a seed, of its adjusted run.

    Returns:
        ``results``: a row a run; ``summary``: a row a method, over seeds; ``audit``: the margin's AUROC.
    """
    means = {run.seed: verdict.means() for run, verdict in zip(_adjusted(runs), verdicts, strict=True)}
    results = [
        {
            "method": run.method,
            "seed": run.seed,
            "test_accuracy": run.test_accuracy,
            "best_accuracy": max(run.accuracies),
            "accuracies": run.accuracies,
            "seconds": run.seconds,
            "hyperparameters": means[run.seed] if run.adjuster is not None else {},
        }
        for run in runs
    ]
    aurocs = [verdict.auroc for verdict in verdicts]
    return {
        "results": results,
        "summary": [_over_seeds([row for row in results if row["method"] == method]) for method in _methods(runs)],
        "audit": {"auroc": float(np.mean(aurocs)), "auroc_by_seed": aurocs},
    }


def _adjusted(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.adjuster is not None]


def _methods(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.method for run in runs))


def _over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    accuracies = [row["test_accuracy"] for row in rows]
    return {
        "method": rows[0]["method"],
        "seeds": len(rows),
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)) if len(rows) > 1 else 0.0,
        "hyperparameters": {
            name: {kind: float(np.mean([row["hyperparameters"][name][kind] for row in rows])) for kind in kinds}
            for name, kinds in rows[0]["hyperparameters"].items()
        },
    }


@torch.no_grad()
def verdict(run: Run, task: Task) -> Verdict:
    """Look at an adjusted run's training samples once more."""
    assert run.adjuster is not None
    logits = scores(run.model, task.images)
    hyperparameters = run.adjuster(logits, task.given, torch.arange(len(task.given)))
    return Verdict(margin(logits, task.given), hyperparameters, task.mislabelled)
