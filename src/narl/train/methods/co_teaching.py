"""Co-teaching: two networks, each trained on the samples that the other finds easiest."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs
from narl.train.methods.base import Setting
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.mixing import linear_ramp
from narl.train.methods.pair import TWO, PairMethod, mean_prediction
from narl.train.methods.spec import MethodSpec, Option


def forget_rate(epoch: int, forget: float, gradual: float, exponent: float = 1.0) -> float:
    r"""The share of a batch that is left out in an epoch.

    .. math:: 1 - R(T) = \tau \min\!\big(T^c / T_k,\ 1\big)

    Args:
        epoch: T, from 0.
        forget: :math:`\tau`, the share in the end.
        gradual: :math:`T_k`: how many epochs it takes to get there.
        exponent: c.

    Example:
        >>> [forget_rate(epoch, 0.4, 10) for epoch in (0, 5, 10, 50)]
        [0.0, 0.2, 0.4, 0.4]

    Reference: Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. Co-teaching: robust training of deep neural networks with
    extremely noisy labels. NeurIPS 2018.
    """
    try:
        grown = float(epoch) ** exponent
    except OverflowError:
        grown = math.inf
    return forget * linear_ramp(grown, gradual)


def small_losses(values: Tensor, forget: float) -> Tensor:
    """Which samples of a batch have the smallest losses; of equal ones, the first.

    Args:
        values: losses, ``(N,)``.
        forget: the share that is left out; one sample always stays.

    Returns:
        Their places in the batch, the smallest first: ``⌊(1 - forget) N⌋`` of them.

    Example:
        >>> small_losses(torch.tensor([0.5, 3.0, 0.1, 2.0]), 0.5)
        tensor([2, 0])
    """
    count = max(1, math.floor((1 - forget) * len(values) + 1e-9))  # 0.3 · 10 is a little less than 3
    return values.detach().argsort(stable=True)[:count]


@final
class CoTeaching(PairMethod):
    """Two networks; each chooses the samples of a batch with the smallest losses, and the other is trained on them.

    Args:
        setting: what there is to work with; its model is a :class:`narl.models.committee.Committee` of two.
        forget: the share of a batch that is left out in the end: as many as there are wrong labels.
        gradual: epochs in which it gets there.
        exponent: of the epoch on that way.

    Its reports say which share of the networks has ``selected`` a sample.

    Example:
        >>> from narl.models.committee import Committee
        >>> model = Committee([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)])
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = CoTeaching(Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 9, 15, torch.Generator()))
        >>> report = method.step(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), torch.arange(4))
        >>> report.hyperparameters["selected"]  # the first epoch takes all
        tensor([1., 1., 1., 1.])

    Reference: Han et al., NeurIPS 2018.
    """

    fields = ("selected",)

    def __init__(self, setting: Setting, *, forget: float = 0.2, gradual: float = 10.0, exponent: float = 1.0) -> None:
        super().__init__(setting)
        self.forget, self.gradual, self.exponent = forget, gradual, exponent

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train each network on the other's choice of the batch."""
        rate = forget_rate(self.epoch, self.forget, self.gradual, self.exponent)

        def objective() -> tuple[Tensor, tuple[list[Tensor], list[Tensor]]]:
            logits = [self.logits(member, x, y) for member in self.members]
            first, second = (cross_entropy(each, y) for each in logits)
            of_first, of_second = small_losses(first, rate), small_losses(second, rate)
            # One sum, one step: neither network's gradient knows of the other's loss.
            return first[of_second].mean() + second[of_first].mean(), (logits, [of_first, of_second])

        loss, (logits, chosen) = self.descend(objective)
        selected = torch.zeros(len(y), device=loss.device)
        for places in chosen:
            selected[places] += 0.5
        return self.report(loss / 2, mean_prediction(logits), y, selected=selected)


SPEC = MethodSpec(
    name="Co-teaching",
    make=CoTeaching,
    description="two networks, each trained on the samples of a batch with which the other has the least trouble",
    networks=TWO,
    options={
        "forget": Option(
            0.2, "share of the samples that are left out in the end: the share of wrong labels", low=0, high=1
        ),
        "gradual": Option(10.0, "epochs until so many are left out", low=0),
        "exponent": Option(1.0, "of the epoch, on the way there", low=0),
    },
    candidates=tuple({"forget": share / 10} for share in (1, 2, 3, 4, 5, 6, 8)),
)
