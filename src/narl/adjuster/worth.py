"""What labels are worth: how likely they are right, by how many seem to be wrong, and losses that doubt no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import final

import torch
from torch import Tensor, nn

from narl.checks import at_least_float32
from narl.errors import OptionError
from narl.losses import RobustLoss

ESTIMATED = "estimated"
IGNORED = "ignored"
"""In place of a noise rate, of losses in which it has no say."""
_SUREST, _SURE = 0.02, 0.2  # of a batch: samples of which the classifier is surest
_MEMORY = 0.05  # of the training
_LEAST, _MOST = 0.01, 0.95  # of what can be told from no noise, and from labels that say nothing
_LARGEST = 10  # weight of a label, in what it has in cross entropy
_NOTHING = 1e-30


@final
class LabelWorth(nn.Module):
    r"""A robust loss that doubts labels by Bayes' rule as well, all in all no more than there is noise.

    How much of its weight a label should keep depends on the number of classes c and on how many labels are wrong, and
    an adjuster that was learned elsewhere does not know the second. Where a share η was moved to any other class, a
    label whose class has the probability p is right with

    .. math:: w = \Big(1 + \frac{1 - p}{p} \cdot \frac{\eta}{(1 - \eta)(c - 1)}\Big)^{-1}

    and Bayes' rule takes :math:`d_i = 1 - w_i` of its weight. Wrong labels that were not moved at random it cannot
    tell; of those the learned loss knows more. Every loss here pulls at a label by some multiple :math:`k_i` of what
    cross entropy does, so beside the others of its batch a label has :math:`r_i = k_i / \bar k`. If a share κ of the
    labels is wrong, of any kind, both together take no more than that, and the learned loss what Bayes' rule has left:

    .. math::
        u_i = \Big(1 - \min(1, \tfrac{\kappa}{\bar d})\, d_i\Big) \big(1 - \alpha + \alpha r_i\big), \qquad
        \alpha = \min\Big(1, \frac{(\kappa - \bar d)_+}{\overline{(1 - r)_+}}\Big)

    What is left of cross entropy is brought to its usual size, for a loss that pulls at few labels learns slowly, and
    slow learners contradict more labels: :math:`\ell_i = -v_i \log p_{y_i}` with :math:`v_i = u_i / \bar u`, at most
    10. With κ = 0 it is cross entropy.

    **Both shares are estimated** while training, unless the noise rate is given, which then stands for both. κ is the
    share of labels that contradict the classifier in the fiftieth of a batch of which it is surest: as a rule it is
    right there. A wrong label that was drawn at random is as often among the classes that the classifier holds for less
    likely as among the others, where right ones hardly are even if it knows little yet. So among the surest fifth,

    .. math:: \hat\eta = \frac{c - 1}{\lfloor c / 2 \rfloor}\, \Pr\big(y \text{ is in the less likely half}\big)

    Both are averages with a memory of a twentieth of the training. After its first third nothing is counted any
    more: by then a classifier may know wrong labels by heart. In the first three hundredths, where it knows nothing, no
    label is doubted: the loss is cross entropy. One that knows wrong labels by heart within a third of its training
    makes both too low, and then wrong labels are believed: there, give the rate, or leave it out.

    One that knows little where it is surest has a κ that is too high. If it were believed at once, the learned loss
    would give up all but the labels that the classifier likes already, and it would never learn the others. So until a
    third of the training is done, an estimated κ counts in α for no more than three times the share that is.

    **Batches** of fewer than 50 samples have a κ that is too high: the surest fiftieth is at least one sample. The
    means are the batch's, too. η is taken from 0.01 to 0.95 (1 - 1 / c).

    Args:
        loss: the robust loss.
        num_classes: c.
        rate: the share of labels that are wrong, η and κ; or ``"estimated"``.

    Example:
        >>> from narl import losses
        >>> worth = LabelWorth(losses.get("gce"), 10, rate=0.4).at(0.5)
        >>> logits, q = torch.tensor([[4.0] + [0.0] * 9] * 2), torch.full((2,), 0.1)
        >>> worth.right(logits, torch.tensor([0, 1]))
        tensor([0.9879, 0.1774])
        >>> values, kept = worth(logits, torch.tensor([0, 1]), {"q": q})
        >>> kept
        tensor([0.9884, 0.2116])
    """

    BEGIN, END = 0.03, 1 / 3
    """From where on the noise counts, and until when it is estimated, as shares of the training."""

    progress: Tensor
    latest: Tensor
    counts: Tensor

    def __init__(self, loss: RobustLoss, num_classes: int, rate: float | str = ESTIMATED) -> None:
        super().__init__()
        if loss.pull is None:
            raise OptionError(
                f"noise_rate is not for {loss.name!r}: narl does not know how strongly it pulls at a label; register "
                "it with pull="
            )
        self._pull = loss.pull
        self.num_classes = num_classes
        most = 1 - 1 / num_classes
        if isinstance(rate, (str, bool)) or not isinstance(rate, Real):
            if rate != ESTIMATED:
                raise OptionError(
                    f"noise_rate = {rate!r} is unknown: give the share of wrong labels, {ESTIMATED!r} or {IGNORED!r}"
                )
        elif not 0 <= rate < most:
            raise OptionError(
                f"noise_rate = {rate} is no share of wrong labels with which {num_classes} classes can be learned: "
                f"give 0.4 for 40 %, less than {most:g}, or 'estimated'"
            )
        self.given = None if isinstance(rate, str) else float(rate)
        self._most = _MOST * most
        self._unlikely = num_classes // 2
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        self.register_buffer("latest", torch.zeros(()))
        self.register_buffer("counts", torch.zeros(4))  # contradicted among so many, unlikely among so many

    def at(self, progress: float | Tensor) -> LabelWorth:
        """The same, told how much of the training is done, from 0 to 1."""
        self.progress.fill_(1).mul_(progress)  # torch.compile would take what fill_ is given for a constant
        return self

    @property
    def rate(self) -> Tensor:
        """κ as it is given or estimated so far, a scalar; nothing was seen yet: 0."""
        return self._share(0)

    def _doubted(self) -> tuple[Tensor, Tensor]:
        """How much may be doubted: κ, and as much of it as is to be believed yet; where nothing was counted, all."""
        if self.given is not None:
            return self.rate, self.rate
        most = torch.where(self.counts[1] > 0, self.rate, 1.0)
        return most, torch.minimum(most, self.progress / self.END)

    @property
    def at_random(self) -> Tensor:
        """η, likewise."""
        return self._share(2)

    def _share(self, number: int) -> Tensor:
        if self.given is not None:
            return self.progress.new_full((), self.given)
        return self.counts[number] / self.counts[number + 1].clamp(min=1e-6)

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        hyperparameters: Mapping[str, Tensor],
        total: Callable[[Tensor], Tensor] = lambda sums: sums,
    ) -> tuple[Tensor, Tensor]:
        """The loss, and how much of its weight each label keeps.

        Args:
            logits: ``(N, c)``, with gradient.
            targets: class indices ``(N,)``, or probabilities ``(N, c)``: then of a label drawn from them.
            hyperparameters: of the robust loss, one ``(N,)`` tensor each.
            total: sums over the processes that train together.

        Returns:
            The values; and u, at most 1, without gradient: ``(N,)`` each.
        """
        log_p, shares = _of_labels(logits, targets)
        with torch.no_grad():
            own = {name: value.to(log_p.dtype).unsqueeze(1) for name, value in hyperparameters.items()}
            left, mean = self._left(self._pull(log_p, **own).clamp(min=0), 1 - self._right(log_p), shares, total)
            left, mean = (torch.where(self.progress >= self.BEGIN, part, 1.0) for part in (left, mean))
            weights = (left / mean.clamp(min=_NOTHING)).clamp(max=_LARGEST)
        return -(shares * weights * log_p).sum(dim=1), (shares * left.clamp(max=1)).sum(dim=1)

    def _left(
        self, pulls: Tensor, doubts: Tensor, shares: Tensor, total: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """u of each label that a sample may have, ``(N, 1 or c)``, from k and d; and its mean."""
        sums = torch.stack([shares, shares * doubts, shares * pulls, shares * pulls * doubts]).sum(dim=(1, 2))
        number, doubted, pulled, both = total(sums).unbind()
        most, believed = (share.to(doubts) * number for share in self._doubted())
        by_rule = (most / doubted.clamp(min=_NOTHING)).clamp(max=1)
        scale = number / pulled.clamp(min=_NOTHING)  # of pulls that are all 0 nothing becomes 1
        relative = pulls * scale
        (lacking,) = total((shares * (1 - relative).clamp(min=0)).sum().unsqueeze(0)).unbind()
        by_loss = ((believed - doubted).clamp(min=0) / lacking.clamp(min=_NOTHING)).clamp(max=1)
        left = (1 - by_rule * doubts) * (1 - by_loss + by_loss * relative)
        mean = (1 - by_loss) * (number - by_rule * doubted) + by_loss * scale * (pulled - by_rule * both)
        return left, mean / number

    @torch.no_grad()
    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How likely each label is right by Bayes' rule, ``(N,)``."""
        log_p, shares = _of_labels(logits, targets)
        return (shares * self._right(log_p)).sum(dim=1)

    def _right(self, log_p: Tensor) -> Tensor:
        eta = self.at_random.clamp(_LEAST, self._most).to(log_p)
        odds = log_p - torch.log(-torch.expm1(log_p))  # infinite for p = 1, which is right
        return torch.sigmoid(odds + torch.logit(1 - eta) + math.log(self.num_classes - 1))

    @torch.no_grad()
    def looked(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How sure the classifier is, whether its guess is not the label, whether that is unlikely; ``(N,)`` each."""
        z = at_least_float32(logits)
        sure, said = z.softmax(dim=1).max(dim=1)
        likely = z.topk(self.num_classes - self._unlikely, dim=1).indices
        if targets.dim() == 1:
            return sure, (said != targets).to(z), (likely != targets.unsqueeze(1)).all(dim=1).to(z)
        shares = targets.to(z)
        return sure, 1 - shares.gather(1, said.unsqueeze(1)).squeeze(1), 1 - shares.gather(1, likely).sum(dim=1)

    @torch.no_grad()
    def count(self, sure: Tensor, against: Tensor, unlikely: Tensor) -> None:
        """Take a batch into the estimates, once a step: what :meth:`looked` said of it."""
        if self.given is not None or not len(sure):
            return
        most = math.ceil(_SURE * len(sure))
        order = sure.topk(most).indices
        surest = order[: math.ceil(_SUREST * len(sure))]
        found = unlikely[order].sum() * (self.num_classes - 1) / self._unlikely
        new = torch.stack(
            [against[surest].sum(), torch.full_like(found, len(surest)), found, torch.full_like(found, most)]
        )
        past = torch.exp((self.latest - self.progress).clamp(max=0) / _MEMORY)
        counts = self.progress < self.END
        self.counts.copy_(torch.where(counts, past * self.counts + new, self.counts))
        self.latest.copy_(torch.where(counts, self.progress, self.latest))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LabelWorth:
        """Move to another device; counts stay in float32, for half precision loses them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer.float())
        return self

    def extra_repr(self) -> str:
        """Where the noise rate comes from, for ``print``."""
        return f"classes={self.num_classes}, rate={ESTIMATED if self.given is None else self.given}"


def _of_labels(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probabilities of all labels that a sample may have, and how much each is its label, ``(N, 1 or c)``."""
    log_p = at_least_float32(logits).log_softmax(dim=1)
    if targets.dim() == 1:
        log_p = log_p.gather(1, targets.long().unsqueeze(1))
        return log_p, torch.ones_like(log_p, requires_grad=False)
    return log_p, targets.detach().to(log_p.dtype)
