r"""A robust loss that leaves the learning rate whole, to see whether that helps: for ``tables/normalised.json``.

A virtual step looks one step ahead, and there smaller gradients often look better than right ones: the adjuster may
make all samples robust just to slow the training down. Here a batch's losses are divided by their mean weight,

.. math:: \ell_i = \frac{(1 - p_i^{q_i}) / q_i}{\frac1n \sum_j p_j^{q_j}}

where :math:`p^q` is by how much GCE's gradient is smaller than cross entropy's. What is left to learn is how samples
compare with each other.

    cd benchmarks && narl bench run tables/normalised.json --data CIFAR-10=DIR --labels CIFAR-10_human.pt --heldout 0.5
"""

from __future__ import annotations

import torch
from torch import Tensor

from narl import losses

_LEAST = 0.05  # gradients grow at most twentyfold


def normalised_gce(logits: Tensor, targets: Tensor, q: float | Tensor) -> Tensor:
    """GCE over the batch's mean weight, which hyperparameters are learned through, logits are not.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)``.
        q: one number or one a sample.

    Returns:
        One value a sample.
    """
    log_p = -losses.ce(logits.detach(), targets)
    return losses.gce(logits, targets, q) / torch.exp(q * log_p).mean().clamp(min=_LEAST)


GCE = losses.get("gce")
losses.register(losses.RobustLoss("ngce", normalised_gce, GCE.hyperparameters))
