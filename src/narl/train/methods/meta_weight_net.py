"""Meta-Weight-Net: a small network that weights samples by their loss, learned on the clean set."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from narl.adjuster import margin
from narl.bilevel import Processes
from narl.train.methods import meta
from narl.train.methods.base import Setting
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.spec import MethodSpec, Option


@final
class WeightNet(nn.Module):
    r"""Weights for the samples of a batch, by their cross entropy.

    .. math:: \ell(z_i, y_i) = v_i L_i, \qquad
              v_i = \sigma\big(W_2 \operatorname{relu}(w_1 L_i + b_1) + b_2\big), \qquad L_i = -\log p_{y_i}

    In the weights the cross entropy counts as a number: no gradient flows through them into the classifier.

    Args:
        hidden: units of the hidden layer.
        normalise: divide a batch's weights by their mean, which the published code does not. What is learned is then
            a ratio without bounds: on CIFAR-10 samples that are hard to learn got up to a hundred times the weight of
            easy ones, and the classifier was worse than with plain cross entropy (docs/findings.md).
        generator: where the initial weights come from; torch's global one if omitted.
        processes: who has the other samples of the batch; None: nobody.

    Example:
        >>> net = WeightNet(generator=torch.Generator().manual_seed(0))
        >>> logits, targets = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
        >>> net.loss(logits, targets).shape
        torch.Size([2])

    Reference: Shu, Xie, Yi, Zhao, Zhou, Xu, Meng. Meta-Weight-Net: learning an explicit mapping for sample weighting.
    NeurIPS 2019.
    """

    def __init__(
        self,
        hidden: int = 100,
        *,
        normalise: bool = False,
        generator: torch.Generator | None = None,
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.processes = processes if processes is not None and normalise else Processes.alone()
        # On the meta device nothing is drawn from the global random state.
        self.hidden = nn.Linear(1, hidden, device="meta").to_empty(device="cpu")
        self.output = nn.Linear(hidden, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.output):  # as nn.Linear does it
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

    def weights(self, cross_entropies: Tensor) -> Tensor:
        """The weight of every sample, between 0 and 1, from its cross entropy, both ``(N,)``."""
        with torch.autocast(cross_entropies.device.type, enabled=False):
            features = torch.relu(self.hidden(cross_entropies.to(self.hidden.weight.dtype).unsqueeze(1)))
            return torch.sigmoid(self.output(features)).squeeze(1)

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> Tensor:
        """The weighted cross entropy of every sample, ``(N,)``; if normalised, a batch's weights have the mean 1."""
        values = cross_entropy(logits, targets)
        weights = self.weights(values.detach())
        if not self.normalise:
            return values * weights.to(values.dtype)
        total = weights.mean() if self.processes.count == 1 else self._mean(weights)
        return values * (weights / torch.where(total > 0, total, 1.0)).to(values.dtype)

    def _mean(self, weights: Tensor) -> Tensor:
        """Over the samples of all processes."""
        sums = self.processes.sum(torch.stack([weights.sum(), weights.new_tensor(len(weights))]))
        return sums[0] / sums[1]

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Weights, before they are divided by their mean, and margins of a batch, each ``(N,)``."""
        return {"weight": self.weights(cross_entropy(logits, targets))}, margin(logits, targets)


@final
class MetaWeightNet(meta.MetaMethod):
    """Trains the classifier with weighted cross entropy, and the network that gives the weights with it.

    Args:
        setting: what there is to work with.
        hidden: units of the weight network's hidden layer.
        normalise: see :class:`WeightNet`.
        options: see :class:`narl.train.methods.meta.MetaMethod`.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def clean():
        ...     return torch.randn(6, 4), torch.randint(0, 2, (6,))
        >>> method = MetaWeightNet(Setting(model, optimizer, torch.tensor([5, 5]), clean, 9, 10, torch.Generator()))
        >>> report = method.step(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3))
        >>> report.hyperparameters["weight"].shape
        torch.Size([3])

    Reference: Shu et al., NeurIPS 2019.
    """

    fields = ("weight",)

    def __init__(self, setting: Setting, *, hidden: int = 100, normalise: bool = False, **options: Any) -> None:
        net = WeightNet(hidden, normalise=normalise, generator=setting.generator, processes=setting.processes)
        self.net = net.to(setting.device)
        super().__init__(setting, self.net, **options)

    def after_step(self) -> None:
        """Nothing is left to do."""


SPEC = MethodSpec(
    name="MW-Net",
    make=MetaWeightNet,
    description="cross entropy with a weight for every sample, learned on the clean set",
    needs_clean=True,
    options={
        **meta.options("the weight network"),
        "hidden": Option(100, "hidden units of the weight network", low=1, high=100_000),
        "normalise": Option(False, "divide a batch's weights by their mean"),
    },
)
