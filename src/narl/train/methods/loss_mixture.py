"""Right labels told from wrong ones by their losses: a mixture of two normal distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FIRST_CUTS = 100
_STEPS, _TOLERANCE = 10, 1e-2


def scaled_losses(values: Tensor) -> Tensor:
    """Losses moved and scaled to 0 … 1; all 0 where they do not differ.

    Args:
        values: ``(N,)``.

    Returns:
        ``(N,)``, float64.

    Example:
        >>> scaled_losses(torch.tensor([3.0, 1.0, 2.0]))
        tensor([1.0000, 0.0000, 0.5000], dtype=torch.float64)
    """
    x = values.detach().double()
    span = x.max() - x.min()
    return (x - x.min()) / torch.where(span > 0, span, 1.0)


def clean_probability(values: Tensor, floor: float = 5e-4) -> Tensor:
    r"""The probability that each loss belongs to the lower one of two normal distributions.

    They are fitted by expectation maximisation, ten steps at most, from the two groups that a cut between them makes
    (2-means, beginning at the ends); nothing is random.

    .. math:: P(\text{clean} \mid \ell) = \frac{\pi_1 \mathcal N(\ell; \mu_1, \sigma_1^2)}
              {\sum_{k=1}^2 \pi_k \mathcal N(\ell; \mu_k, \sigma_k^2)}, \qquad \mu_1 < \mu_2

    Args:
        values: losses, ``(N,)``, as :func:`scaled_losses` gives them.
        floor: added to both variances: a distribution must not shrink to a point.

    Returns:
        ``(N,)``, float32; 1 for losses that do not differ.

    Example:
        >>> clean_probability(torch.tensor([0.0, 0.05, 0.1, 0.9, 1.0])).round()
        tensor([1., 1., 1., 0., 0.])

    Reference: Li, Socher, Hoi. DivideMix: learning with noisy labels as semi-supervised learning. ICLR 2020; its code
    fits scikit-learn's ``GaussianMixture`` with these ten steps, this floor, and the same end below a gain of 0.01.
    """
    x = values.detach().double()
    if not len(x) or not bool(x.max() > x.min()):
        return torch.ones_like(x, dtype=torch.float32)
    parameters = _fitted(x, torch.stack([~_above(x), _above(x)]).double(), floor)
    gained = -math.inf
    for _ in range(_STEPS):
        likelihood, shares = _expected(x, *parameters)
        parameters = _fitted(x, shares, floor)
        if abs(float(likelihood) - gained) < _TOLERANCE:
            break
        gained = float(likelihood)
    _, shares = _expected(x, *parameters)
    return shares[int(parameters[1].argmin())].float()


def _above(x: Tensor) -> Tensor:
    """Which values lie nearer to the mean of the upper group, once that no longer changes the groups."""
    cut = (x.max() + x.min()) / 2
    for _ in range(_FIRST_CUTS):
        upper = x > cut
        moved = (x[upper].mean() + x[~upper].mean()) / 2  # neither is empty: the ends are apart
        if bool(moved == cut):
            break
        cut = moved
    return x > cut


def _fitted(x: Tensor, shares: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, means and variances, ``(2, 1)`` each, of values that belong to the two by shares ``(2, N)``."""
    sizes = shares.sum(dim=1, keepdim=True) + 1e-12
    means = (shares * x).sum(dim=1, keepdim=True) / sizes
    variances = (shares * (x - means).square()).sum(dim=1, keepdim=True) / sizes + floor
    return sizes / sizes.sum(), means, variances


def _expected(x: Tensor, weights: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """The mean log likelihood, and to which part each value belongs to the two, ``(2, N)``."""
    logs = weights.log() - 0.5 * ((2 * math.pi * variances).log() + (x - means).square() / variances)
    total = logs.logsumexp(dim=0)
    return total.mean(), (logs - total).exp()
