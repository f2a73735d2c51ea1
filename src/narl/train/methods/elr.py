"""Early-learning regularisation: predictions are held to what they were before wrong labels were memorised."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from narl.adjuster import margin
from narl.checks import at_least_float32
from narl.errors import SampleIdsError
from narl.train.methods.base import LossMethod, Setting
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.spec import MethodSpec, Option

_SMALLEST = 1e-4


def bounded(logits: Tensor) -> Tensor:
    """Probabilities of at least 1e-4 and at most 1 - 1e-4, ``(N, c)``, as in the published code.

    They keep the regulariser finite; beyond the bounds it has no gradient.

    Example:
        >>> bounded(torch.tensor([[50.0, 0.0]]))
        tensor([[9.9990e-01, 1.0000e-04]])
    """
    return at_least_float32(logits).softmax(dim=1).clamp(_SMALLEST, 1 - _SMALLEST)


def elr_regulariser(logits: Tensor, targets: Tensor) -> Tensor:
    r"""How far the prediction has left its target: the smaller, the nearer.

    .. math:: \log\big(1 - \langle p, t \rangle\big), \qquad p = \operatorname{softmax}(z)

    Its derivative by :math:`z_k` is :math:`\frac{p_k}{1 - \langle p, t \rangle} \sum_j (t_j - t_k)\, p_j`: classes that
    the target holds for likely are raised, whatever the label says.

    Args:
        logits: z, ``(N, c)``.
        targets: t, ``(N, c)``, at least 0, with sums of at most 1; without gradient.

    Returns:
        One value a sample, ``(N,)``, at most 0.

    Example:
        >>> elr_regulariser(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
        tensor([-0.6931])

    Reference: Liu, Niles-Weed, Razavian, Fernandez-Granda. Early-learning regularization prevents memorization of noisy
    labels. NeurIPS 2020.
    """
    # Rounding may lift the product of two bounded predictions to 1.
    return torch.log1p(-(bounded(logits) * targets).sum(dim=1).clamp(max=1 - _SMALLEST / 10))


@final
class Memory:
    """A running average of every sample's prediction: the target of early-learning regularisation.

    .. math:: t \\leftarrow \\beta t + (1 - \\beta)\\, p

    Args:
        num_samples: how many samples.
        num_classes: c.
        decay: :math:`\\beta`.
        device: where it is kept.

    Example:
        >>> memory = Memory(2, 2, 0.75, torch.device("cpu"))
        >>> memory.write(torch.tensor([1]), memory.moved(torch.tensor([1]), torch.tensor([[0.4, 0.6]])))
        >>> memory.targets
        tensor([[0.0000, 0.0000],
                [0.1000, 0.1500]])
    """

    def __init__(self, num_samples: int, num_classes: int, decay: float, device: torch.device) -> None:
        self.targets = torch.zeros(num_samples, num_classes, device=device)
        self.decay = decay

    def moved(self, ids: Tensor, predictions: Tensor) -> Tensor:
        """What the samples' targets become with these predictions, ``(N, c)``, without gradient; nothing is written."""
        try:
            before = self.targets[ids]
        except IndexError:
            raise SampleIdsError(
                f"sample ids run up to {int(ids.max())} but the training set has {len(self.targets)} samples: use each "
                "sample's position in the data set"
            ) from None
        p = predictions.detach()
        return self.decay * before + (1 - self.decay) * p / p.sum(dim=1, keepdim=True)

    def write(self, ids: Tensor, targets: Tensor) -> None:
        """Remember the samples' targets."""
        self.targets[ids] = targets.to(self.targets.dtype)

    def load(self, targets: Tensor) -> None:
        """Take over the targets that were saved."""
        self.targets.copy_(targets)


def agreement(targets: Tensor, y: Tensor) -> Tensor:
    """What the targets hold of the given labels: their probability, ``(N,)``.

    Example:
        >>> agreement(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
        tensor([0.9000, 0.1000])
    """
    return (targets * y).sum(dim=1) if y.dim() == 2 else targets.gather(1, y.long().unsqueeze(1)).squeeze(1)


@final
class ELR(LossMethod):
    r"""Cross entropy, and a regulariser that holds each prediction to the average of the sample's earlier ones.

    .. math:: \ell = -\log p_y + \lambda \log\big(1 - \langle p, t \rangle\big), \qquad
              t \leftarrow \beta t + (1 - \beta)\, p

    Args:
        setting: what there is to work with.
        strength: :math:`\lambda`.
        decay: :math:`\beta`, of the targets.

    Its reports give the ``agreement`` of the target with the given label.

    Example:
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = ELR(Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator()))
        >>> report = method.step(torch.randn(2, 4), torch.tensor([0, 2]), torch.tensor([7, 3]))
        >>> report.hyperparameters["agreement"].shape, bool(method.memory.targets[7].sum() > 0)
        (torch.Size([2]), True)

    Reference: Liu et al., NeurIPS 2020.
    """

    distributed = True
    fields = ("agreement",)

    def __init__(self, setting: Setting, *, strength: float = 3.0, decay: float = 0.7) -> None:
        super().__init__(setting)
        self.strength = strength
        self.memory = Memory(setting.num_samples, setting.num_classes, decay, setting.device)

    @property
    def phase(self) -> tuple[()]:
        """Always the same computation."""
        return ()

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """The regularised cross entropy of every sample, ``(N,)``."""
        targets = self.memory.moved(ids, bounded(logits))
        return cross_entropy(logits, y) + self.strength * elr_regulariser(logits, targets)

    def observe(self, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Agreement and margins; the targets are remembered."""
        targets = self.memory.moved(ids, bounded(logits))
        self.memory.write(*reversed(self.setting.processes.gathered(targets, ids)))
        return {"agreement": agreement(targets, y)}, margin(logits, y)

    def state_dict(self) -> dict[str, Any]:
        """Steps and targets."""
        return {**super().state_dict(), "targets": self.memory.targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self.memory.load(state["targets"])


SETTINGS = ({"strength": 3.0, "decay": 0.7}, {"strength": 1.0, "decay": 0.9}, {"strength": 7.0, "decay": 0.9})
"""Of the published configurations: CIFAR-10 with symmetric noise, with asymmetric noise, CIFAR-100."""

SPEC = MethodSpec(
    name="ELR",
    make=ELR,
    description="cross entropy, with each prediction held to the average of the sample's earlier ones",
    options={
        "strength": Option(3.0, "of the regulariser, λ", low=0),
        "decay": Option(0.7, "of the average of earlier predictions, β", low=0, high=1),
    },
    candidates=SETTINGS,
)
