"""What a criterion made of its latest batch: which labels it holds for wrong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from narl.adjuster.margins import margin
from narl.checks import at_least_float32
from narl.losses import RobustLoss


@final
class LastBatch:
    r"""What a criterion made of the batch that it saw last. Nothing here has a graph.

    Margins and suspicion are worked out when they are first read, so a training that never reads them does not pay.

    **Suspicion.** Cross entropy with a target t has the gradient :math:`p - t`, so every loss pulls like cross entropy
    with some target: :math:`t = p - \partial\ell / \partial z`. All losses here are functions of :math:`\log p_y`, and
    for them it is a mixture of the label and the classifier's own prediction,

    .. math:: t = w\, e_y + (1 - w)\, p, \qquad w = \frac{\mathrm{d}\ell}{\mathrm{d}(-\log p_y)}

    with :math:`w = p_y^q` for GCE, :math:`\gamma_1 - a \gamma_2 p_y` for SL, :math:`(1 + \log p_y /
    \lambda)_+^{1/(d-1)}` for PolySoft and :math:`p_y\,(1 - \log(m_y / p_y) / \log \pi_2)` for JS. The suspicion is the
    probability that this target gives to the other classes: what the loss has moved away from the label,

    .. math:: s = 1 - t_y = (1 - w)_+ (1 - p_y)

    It is 0 for a loss that is cross entropy, which believes every label, and for a sample that fits its label whatever
    its hyperparameters; it is 1 where the loss leaves the sample to the classifier (w = 0) and the classifier rules the
    label out. SL can pull labels that fit harder than cross entropy does, up to :math:`\gamma_1 - a \gamma_2` times;
    what it makes of the others is little beside that, not beside 1. So its w is divided by the largest that a label
    with :math:`p_y = 0.99` can have within the spans of its hyperparameters, 4.96; for the other losses that is 1. Its
    suspicion is above 0, then, also where :math:`\gamma_1 = 1` and :math:`\gamma_2 = 0` make cross entropy of it.
    Probability targets y have :math:`s = (1 - w)_+ \frac12 \lVert p - y \rVert_1`, with w the part of cross entropy's
    gradient :math:`p - y` that is in the loss's; for one-hot rows that is the same. It tells of the present: a wrong
    label that the classifier has memorised fits, and is not suspected any more. Where the noise rate has a say
    (:class:`narl.adjuster.worth.LabelWorth`), w is what that leaves of a label's weight.

    Args:
        loss: the loss that was adjusted.
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        hyperparameters: one ``(N,)`` tensor a hyperparameter, by name.
        kept: how much of its weight each label keeps, ``(N,)``; None: what the loss makes of it.

    Example:
        >>> from narl import losses
        >>> logits, q = torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0]]), torch.tensor([1.0, 1.0, 0.01])
        >>> last = LastBatch(losses.get("gce"), logits, torch.tensor([0, 1, 1]), {"q": q})
        >>> last.margins
        tensor([ 9., -9., -9.])
        >>> last.suspicion.round(decimals=4)  # it fits; it does not; it does not, but q says to believe it
        tensor([0.0000, 0.9998, 0.0861])
    """

    def __init__(
        self,
        loss: RobustLoss,
        logits: Tensor,
        targets: Tensor,
        hyperparameters: dict[str, Tensor],
        kept: Tensor | None = None,
    ) -> None:
        self.hyperparameters, self.kept = hyperparameters, kept
        self._loss, self._logits, self._targets = loss, logits, targets

    @cached_property
    def margins(self) -> Tensor:
        """How far each label's logit stands above the largest other one, ``(N,)``."""
        return margin(self._logits, self._targets)

    @cached_property
    def suspicion(self) -> Tensor:
        """How strongly each sample is held for mislabelled, from 0 to 1, ``(N,)``."""
        if self.kept is not None:
            return _moved(self.kept, _misfit(at_least_float32(self._logits), self._targets))
        return moved_away(
            self._loss, self._logits, self._targets, self.hyperparameters, strongest=_strongest(self._loss)
        )


def moved_away(
    loss: RobustLoss,
    logits: Tensor,
    targets: Tensor,
    hyperparameters: Mapping[str, Tensor],
    *,
    strongest: float = 1.0,
) -> Tensor:
    """What a loss moves away from each label, as :class:`LastBatch` has it, ``(N,)``.

    Args:
        loss: see there, as the three below.
        logits: ``(N, c)``.
        targets: class indices or probabilities.
        hyperparameters: one ``(N,)`` tensor each.
        strongest: what w is divided by; 1: how the loss compares with cross entropy.
    """
    kept, misfit = _kept(loss, at_least_float32(logits), targets, hyperparameters)
    return _moved(kept / strongest, misfit)


def _moved(kept: Tensor, misfit: Tensor) -> Tensor:
    return ((1 - kept).clamp(0, 1) * misfit.abs().sum(dim=1) / 2).clamp(0, 1)


def _misfit(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy's pull, ``(N, c)``."""
    p = logits.softmax(dim=1)
    if targets.dim() == 1:
        targets = torch.zeros_like(p).scatter_(1, targets.long().unsqueeze(1), 1.0)
    return p - targets.to(p.dtype)


_FITS = 0.99  # probability of a label that fits


def _strongest(loss: RobustLoss) -> float:
    """The largest w of a label that fits, over the ends of the hyperparameters' spans; at least 1."""
    ends = list(itertools.product(*(specification.span for specification in loss.hyperparameters)))
    names = [specification.name for specification in loss.hyperparameters]
    values = dict(zip(names, torch.tensor(ends, dtype=torch.float64, device="cpu").unbind(1), strict=True))
    logits = torch.tensor([[_FITS, 1 - _FITS]], dtype=torch.float64, device="cpu").log().repeat(len(ends), 1)
    kept, _ = _kept(loss, logits, torch.zeros(len(ends), dtype=torch.int64, device="cpu"), values)
    return max(1.0, float(kept.max()))


def _kept(
    loss: RobustLoss, logits: Tensor, targets: Tensor, hyperparameters: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """How much of cross entropy's pull is in the loss's, ``(N,)``, and that pull, ``(N, c)``."""
    with torch.inference_mode(False), torch.enable_grad():  # clones: what inference mode has made has no gradient
        leaf, targets = logits.clone().requires_grad_(), targets.clone()
        values = {name: value.clone() for name, value in hyperparameters.items()}
        (pull,) = torch.autograd.grad(loss(leaf, targets, **values).sum(), leaf)
    misfit = _misfit(leaf.detach(), targets)
    size = misfit.square().sum(dim=1).clamp(min=torch.finfo(misfit.dtype).tiny)
    return (pull * misfit).sum(dim=1) / size, misfit
