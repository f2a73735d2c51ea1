r"""Taylor cross entropy, added from outside the package, and its adjusted form A-Taylor-CE.

python examples/taylor_ce.py

Cross entropy is a series, :math:`-\log p = \sum_{i \ge 1} (1 - p)^i / i`. Its first t terms are a robust loss: MAE for
t = 1, cross entropy for many. An adjuster gives real numbers, so t is one here: between two orders the next term counts
in part.

.. math:: \ell(z, y) = \sum_{i \ge 1} \min(\max(t - i + 1, 0), 1)\, \frac{(1 - p_y)^i}{i}

Reference: Feng, Shu, Lin, Lv, Li, An. Can cross entropy loss be robust to label noise? IJCAI 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

import narl
from narl.losses import Hyperparameter, RobustLoss, over_labels, register
from narl.train import methods

MOST = 20
T = Hyperparameter("t", low=1.0, high=float(MOST), start=6.0, default=2.0, span=(1.0, 8.0))


def taylor_ce(logits: Tensor, targets: Tensor, t: float | Tensor) -> Tensor:
    """One value a sample; t is one number or one a sample, smaller is more robust."""
    return over_labels(_curve, logits, targets, (T, t))


def _curve(log_p: Tensor, t: Tensor) -> Tensor:
    wrong = -torch.expm1(log_p)  # 1 - p, exact for p near 1
    value, power = torch.zeros_like(log_p), torch.ones_like(log_p)
    for i in range(1, MOST + 1):
        power = power * wrong
        value = value + (t - i + 1).clamp(0, 1) * power / i
    return value


register(RobustLoss("taylor-ce", taylor_ce, (T,), title="Taylor-CE"))
adjusted = methods.get("A-Taylor-CE")  # for the command line: --method taylor_ce:adjusted


def main(epochs: int = 20) -> None:
    """Digits, 40 % of them with the label of any other digit; 100 checked ones."""
    from narl.bench import digits

    task = digits.load("symmetric", seed=0)
    x, clean = task.images.flatten(1), (task.clean_images.flatten(1), task.clean_labels)
    model = narl.models.mlp(64, 10, hidden=(64,), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    adjuster = narl.Adjuster("taylor-ce", class_counts=torch.bincount(task.given, minlength=10), generator=generator)
    faster = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
    meta = narl.MetaStep(model, optimizer, adjuster, adjuster_optimizer=faster)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), 100):
            meta.step(x[rows], task.given[rows], clean=clean)

    with torch.no_grad():
        accuracy = (model(task.test_images.flatten(1)).argmax(dim=1) == task.test_labels).float().mean()
        t = adjuster(model(x), task.given)["t"]
    print(f"test accuracy {accuracy:.1%}; t from {t.min():.1f} to {t.max():.1f}")


if __name__ == "__main__":
    main()
