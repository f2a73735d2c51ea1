"""The margin: how far a sample's label stands above the classifier's best other guess."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from narl.checks import at_least_float32, can_read, check_logits, check_targets, checked_ids
from narl.errors import SampleIdsError

_MOST_IDS = 100_000_000


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    r"""How far the label's logit stands above the largest other one, detached from the classifier.

    .. math:: m(x, y) = z_y - \max_{j \ne y} z_j

    Positive where the classifier agrees with the label, negative where it does not; mislabelled samples sit low.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)`` (then the expected margin of a label drawn from
            them).

    Returns:
        ``(N,)``, at least float32, without gradient.

    Example:
        >>> margin(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2]))
        tensor([ 2., -3.])

    Reference: Pleiss, Zhang, Elenberg, Weinberger. Identifying mislabeled data using the area under the margin
    ranking. NeurIPS 2020.
    """
    check_logits(logits)
    check_targets(targets, num_classes=logits.shape[1], num_samples=logits.shape[0])
    z = at_least_float32(logits.detach())
    best, winner = z.topk(2, dim=1)
    first, second = best.unbind(dim=1)
    if targets.dim() == 1:
        label = targets.long()
        rival = torch.where(label == winner[:, 0], second, first)
        return z.gather(1, label.unsqueeze(1)).squeeze(1) - rival
    is_winner = torch.zeros_like(z, dtype=torch.bool).scatter_(1, winner[:, :1], True)
    rivals = torch.where(is_winner, second.unsqueeze(1), first.unsqueeze(1))
    return (targets.detach().to(z.dtype) * (z - rivals)).sum(dim=1)


INPUTS = ("margin", "scaled", "rank")
BESIDES = ("progress", "classes")
"""What an adjuster can see besides a margin, in this order: how much of the training is done; the number of classes."""


def parsed(input: str) -> tuple[str, tuple[str, ...]] | None:
    """What an adjuster's input is made of: one of :data:`INPUTS`, and those of :data:`BESIDES`; None: it is unknown.

    Example:
        >>> parsed("margin"), parsed("rank+progress+classes"), parsed("margin+classes+progress")
        (('margin', ()), ('rank', ('progress', 'classes')), None)
    """
    seen, *more = input.split("+")
    known = [name for name in BESIDES if name in more]
    return (seen, tuple(known)) if seen in INPUTS and known == more else None


def known_inputs() -> tuple[str, ...]:
    """All that :func:`parsed` knows.

    Example:
        >>> known_inputs()[:4]
        ('margin', 'margin+progress', 'margin+classes', 'margin+progress+classes')
    """
    besides = ("", "+progress", "+classes", "+progress+classes")
    return tuple(f"{seen}{more}" for seen in INPUTS for more in besides)


def measured(kind: str, margins: Tensor, logits: Tensor) -> Tensor:
    r"""What an adjuster sees of a batch's margins.

    ``"margin"`` is the margin itself, as in the paper. Its scale depends on the classifier, on the number of classes
    and on how far the training is. ``"scaled"`` is the margin in units of the logits' spread over the classes,

    .. math:: m_i \Big/ \sqrt{\tfrac1N \sum\nolimits_n \operatorname{Var}_j z_{nj}}

    and ``"rank"`` where the margin stands among those of its batch, as a normal score,
    :math:`\Phi^{-1}\big((r_i - \tfrac12) / N\big)` with the rank r of the i-th smallest; equal margins share a rank.

    Args:
        kind: one of :data:`INPUTS`.
        margins: ``(N,)``.
        logits: that they are of, ``(N, c)``.

    Returns:
        ``(N,)``, without gradient.

    Example:
        >>> logits, margins = torch.tensor([[6.0, 0.0], [0.0, 2.0]]), torch.tensor([6.0, -2.0])
        >>> torch.allclose(measured("scaled", margins, logits), measured("scaled", 10 * margins, 10 * logits))
        True
        >>> measured("rank", torch.tensor([5.0, -1.0, 0.0]), logits)
        tensor([ 0.9674, -0.9674,  0.0000])
    """
    if kind == "margin":
        return margins
    if kind == "scaled":
        spread = at_least_float32(logits.detach()).var(dim=1, correction=0).mean().sqrt()
        return margins / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    ordered = margins.sort().values
    below, up_to = (torch.searchsorted(ordered, margins, right=right) for right in (False, True))
    score: Tensor = torch.special.ndtri((below + up_to).to(margins.dtype) / (2 * max(len(margins), 1)))
    return score


class RunningMargin(nn.Module):
    """An exponential average of every sample's margin, kept by sample id.

    A network that has memorised a wrong label gives it a positive margin; its average over the epochs still remembers
    that the label was fought for.

    Where nobody says which samples a batch holds, their averages can only be guessed (:meth:`guess`), from how many
    were ``seen`` so far, which somebody has to count. None: they are not counted, and samples must be named.

    Args:
        decay: weight of the past. 0 is the latest margin.

    Example:
        >>> running = RunningMargin(decay=0.5)
        >>> ids = torch.tensor([7])
        >>> running.store(torch.tensor([-4.0]), ids)
        >>> running.blend(torch.tensor([2.0]), ids)
        tensor([-1.])
    """

    table: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.seen: Tensor | None = None
        self._reserved = 0
        self.register_buffer("table", torch.empty(0), persistent=False)

    def blend(self, margins: Tensor, ids: Tensor) -> Tensor:
        """The averages as they would be with these margins, ``(N,)``; nothing is stored."""
        ids = _checked_ids(ids, margins)
        if not len(self.table):
            return margins
        known = ids < len(self.table)
        past = self.table[ids.clamp(max=len(self.table) - 1)].to(margins.dtype)
        known = known & ~past.isnan()
        return torch.where(known, self.decay * past + (1 - self.decay) * margins, margins)

    def guess(self, margins: Tensor, count: float) -> Tensor:
        """What the averages of samples that are not named may be, ``(N,)``; ``count``: how many samples there are."""
        assert self.seen is not None
        # On the host, as a number: a copy to the device would make the host wait.
        return margins * self.share(1 + self.seen.double() / count)

    def share(self, visits: Tensor) -> Tensor:
        r"""How much of its latest margin a sample's average is, if margins have grown evenly from zero.

        After k visits with decay d it is :math:`1 - \frac{d\,(1 - d^{k-1})}{(1 - d)\,k}`: the average lags behind.

        Args:
            visits: how often each sample was seen, this time included.

        Example:
            >>> RunningMargin(decay=0.5).share(torch.tensor([1.0, 2.0, 3.0]))  # of 1; of 1, 2; of 1, 2, 3
            tensor([1.0000, 0.7500, 0.7500])
        """
        visits = visits.clamp(min=1)
        return 1 - self.decay * (1 - self.decay ** (visits - 1)) / ((1 - self.decay) * visits)

    def store(self, margins: Tensor, ids: Tensor) -> None:
        """Take these margins into the averages: once a sample and epoch."""
        ids = _checked_ids(ids, margins)
        averages = self.blend(margins, ids)
        if not self._reserved or can_read(ids):  # else the host would have to wait for the device
            self._make_room(ids, margins.device)
        self.table[ids] = averages.to(self.table.dtype)

    def reserve(self, count: int) -> None:
        """Make room for the samples 0 … count - 1, and promise that no others will come: nothing is checked on GPUs."""
        missing = count - len(self.table)
        if missing > 0:
            self.table = torch.cat([self.table, self.table.new_full((missing,), torch.nan)])
        self._reserved = count

    def _make_room(self, ids: Tensor, device: torch.device) -> None:
        needed = int(ids.max()) + 1 if len(ids) else 0
        if needed > _MOST_IDS:
            raise SampleIdsError(
                f"sample id {needed - 1} is too large: ids count a table's rows; use positions 0 … N - 1, not hashes"
            )
        if needed > len(self.table):
            room = max(needed, 2 * len(self.table)) - len(self.table)
            self.table = torch.cat([self.table, self.table.new_full((room,), torch.nan)]).to(device)

    def __getstate__(self) -> dict[str, Any]:
        """What copies, files and other processes get: the count as a number, for torch shares tensors among them."""
        return {**self.__dict__, "seen": None if self.seen is None else int(self.seen)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what :meth:`__getstate__` gave."""
        super().__setstate__({**state, "seen": None})  # type: ignore[no-untyped-call]
        if state.get("seen") is not None:
            self.count_from(state["seen"])

    def count_from(self, seen: int) -> None:
        """Have samples that are not named guessed from now on, so many having been seen."""
        # A whole number: compiled graphs lose what is added to a float64 scalar on the host (torch 2.13).
        self.seen = torch.tensor(seen, dtype=torch.int64, device="cpu")

    def forget(self) -> None:
        """Start anew, as on another data set."""
        self.table, self._reserved = self.table.new_empty(0), 0
        if self.seen is not None:
            self.count_from(0)

    # The table grows, which a plain buffer of a state dict cannot.
    def get_extra_state(self) -> Tensor:
        """The averages, for ``state_dict``."""
        return self.table.clone()  # snapshots that share them would share memory in a file

    def set_extra_state(self, state: Tensor) -> None:
        """The averages, from ``load_state_dict``."""
        self.table = state.clone().to(self.table.device)
        self.reserve(self._reserved)


def _checked_ids(ids: Tensor, margins: Tensor) -> Tensor:
    ids = checked_ids(ids, len(margins))
    if can_read(ids) and bool((ids < 0).any()):
        raise SampleIdsError("ids hold negative numbers: use each sample's position in the data set, 0 … N - 1")
    return ids
