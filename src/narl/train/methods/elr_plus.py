"""ELR+: early-learning regularisation with two networks, averages of their weights, and mixup."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs
from narl.train.methods.base import Setting
from narl.train.methods.elr import SETTINGS, Memory, agreement, bounded, elr_regulariser
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.mixing import Mixer, beta_share, mixed, one_hot, partners, sigmoid_ramp
from narl.train.methods.pair import TWO_AVERAGED, PairMethod, mean_prediction
from narl.train.methods.spec import MethodSpec, Option


@final
class ELRPlus(PairMethod):
    r"""Two networks on mixed samples, each held to targets that the other's averaged weights have predicted.

    Network k has its own memory of targets, moved by the prediction of the average :math:`\bar w_{k'}` of the other one
    for the samples as they are; for a mixture, samples, labels and targets are mixed alike:

    .. math:: \ell_k = -\sum_j \tilde y_j \log p_j + \lambda \log\big(1 - \langle p, \tilde t_k \rangle\big), \qquad
              t_k \leftarrow \beta t_k + (1 - \beta)\, p(x; \bar w_{k'})

    Args:
        setting: what there is to work with; its model is a :class:`narl.models.committee.Committee` of two, averaged.
        strength: :math:`\lambda`.
        decay: :math:`\beta`, of the targets.
        alpha: of the Beta distribution that the larger share of a mixture is drawn from; 0: no mixtures.
        average: decay of the weights' averages.
        average_ramp: the share of the training in which that decay rises to its value, by
            :func:`narl.train.methods.mixing.sigmoid_ramp`.
        rampup: the share of the training in which the regulariser's strength rises to its value; 0: at once.

    Its reports give the ``agreement`` of the targets with the given labels, the mean over both networks. Margins are
    those of the averages' common prediction for the samples as they are.

    Example:
        >>> from narl.models.committee import Committee
        >>> model = Committee([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)], averaged=True)
        >>> optimizer = torch.optim.SGD(model.members.parameters(), lr=0.1)
        >>> method = ELRPlus(Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 9, 15, torch.Generator()))
        >>> report = method.step(torch.randn(2, 4), torch.tensor([0, 2]), torch.tensor([7, 3]))
        >>> report.hyperparameters["agreement"].shape
        torch.Size([2])

    Reference: Liu et al., NeurIPS 2020.
    """

    averaged = True
    fields = ("agreement",)

    def __init__(
        self,
        setting: Setting,
        *,
        strength: float = 3.0,
        decay: float = 0.7,
        alpha: float = 1.0,
        average: float = 0.997,
        average_ramp: float = 0.5,
        rampup: float = 0.0,
    ) -> None:
        super().__init__(setting)
        self.strength, self.alpha, self.average = strength, alpha, average
        self.average_ramp, self.rampup = average_ramp, rampup
        self.mix = Mixer(setting.kind, setting.shape, alpha)
        self.memories = tuple(
            Memory(setting.num_samples, setting.num_classes, decay, setting.device) for _ in self.members
        )

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train both networks, each on its own mixture of the batch, and move their averages."""
        averages = self.committee.averages
        assert averages is not None
        total = self.setting.total_steps
        strength = self.strength * sigmoid_ramp(self.steps, self.rampup * total)
        generator = self.setting.generator
        mixtures = [
            (partners(len(y), generator, self.setting.device), beta_share(self.alpha, generator)) for _ in averages
        ]

        def objective() -> tuple[Tensor, tuple[list[Tensor], list[Tensor]]]:
            with torch.no_grad():
                predicted = [self.logits(average, x, y) for average in averages]
            # The other one's prediction: a network that corrected itself would believe its own mistakes.
            targets = [
                memory.moved(ids, bounded(other))
                for memory, other in zip(self.memories, reversed(predicted), strict=True)
            ]
            first, second = (
                self._loss(self.members[k], x, y, targets[k], strength, *mixture) for k, mixture in enumerate(mixtures)
            )
            return first + second, (predicted, targets)

        loss, (predicted, targets) = self.descend(objective)
        self.committee.follow(self.average * sigmoid_ramp(self.steps, self.average_ramp * total))
        for memory, moved in zip(self.memories, targets, strict=True):
            memory.write(ids, moved)
        found = (agreement(targets[0], y) + agreement(targets[1], y)) / 2
        return self.report(loss / 2, mean_prediction(predicted), y, agreement=found)

    def _loss(
        self, member: nn.Module, x: Tensor, y: Tensor, targets: Tensor, strength: float, order: Tensor, share: float
    ) -> Tensor:
        """The mean loss of a network on a mixture of the batch."""
        labels = mixed(one_hot(y, self.setting.num_classes), order, share)
        logits = self.logits(member, self.mix(x, order, share), labels)
        values = cross_entropy(logits, labels) + strength * elr_regulariser(logits, mixed(targets, order, share))
        return values.mean()

    def state_dict(self) -> dict[str, Any]:
        """Steps, random numbers, and both networks' targets."""
        return {**super().state_dict(), "targets": [memory.targets for memory in self.memories]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        for memory, targets in zip(self.memories, state["targets"], strict=True):
            memory.load(targets)


SPEC = MethodSpec(
    name="ELR+",
    make=ELRPlus,
    description="two networks on mixed samples, each held to what the other's averaged weights have predicted",
    networks=TWO_AVERAGED,
    options={
        "strength": Option(3.0, "of the regulariser, λ", low=0),
        "decay": Option(0.7, "of the average of earlier predictions, β", low=0, high=1),
        "alpha": Option(1.0, "of the Beta distribution of a mixture's shares; 0: nothing is mixed", low=0),
        "average": Option(0.997, "decay of the averages of the networks' weights", low=0, high=1),
        "average_ramp": Option(0.5, "share of the training in which that decay rises to its value", low=0, high=1),
        "rampup": Option(
            0.0, "share of the training in which the regulariser's strength rises to its value", low=0, high=1
        ),
    },
    candidates=SETTINGS,
)
