"""Learned adjusters as a drop-in criterion."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from numbers import Integral
from os import PathLike
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from narl.adjuster.families import Counts
from narl.adjuster.last_batch import LastBatch
from narl.adjuster.margins import RunningMargin, margin
from narl.adjuster.network import Adjuster
from narl.adjuster.turns import KINDS, after_fixed, checked, in_turn, meant_for
from narl.adjuster.worth import IGNORED, LabelWorth
from narl.checks import warn_of_probabilities
from narl.errors import NarlWarning, OptionError, nearest


@final
class AdjustedLoss(nn.Module):
    """A criterion in place of ``nn.CrossEntropyLoss``: a learned adjuster, frozen, fitted to this data.

    With several snapshots of an adjuster, each serves a part of the new training: from the time on at which it was
    taken in its own, until the next was. Snapshots that do not know when that was serve even shares, in order. Where
    the training stands, the criterion counts by itself if it knows ``total_steps``; the count is part of its
    ``state_dict``, so a resumed training goes on with the right snapshot.

    What counts is a call in training mode without ``progress``. With accumulated gradients that is each of the calls
    between two optimiser steps, so ``total_steps`` is the number of batches of the whole training, ``epochs *
    len(loader)``, however many of them make a step. Among processes that train together each has its own criterion,
    which counts its own calls and, given ``ids``, remembers its own samples; keep it outside of a model in
    ``DistributedDataParallel``, which would overwrite those memories with the first process's.

    It has no ``weight``, ``ignore_index`` or ``label_smoothing``. Weigh the values of ``reduction="none"``; leave
    samples to be ignored out of the batch, ``criterion(logits[keep], targets[keep])``; give smoothed labels as
    probabilities.

    ``torch.compile`` takes it in one graph, ``fullgraph=True`` included. Counting by itself it then computes all
    snapshots and picks one; with ``progress`` it computes one and is compiled anew when the snapshot changes. A running
    margin must know its size before: ``criterion.at(0).running.reserve(num_samples)``. In a CUDA graph that one
    captures oneself the choice of the snapshot stands still: capture again when ``criterion.at`` gives another one. So
    does what is guessed of samples that are not named: name them there.

    Args:
        adjusters: one adjuster or its snapshots in order; of adjusters for several kinds of data, those for ``data``
            serve. They are copied; the originals stay as they are.
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        total_steps: how many batches the whole training has. Not needed for a single adjuster, nor where every call
            says its ``progress``.
        serves: ``"from"`` the time on at which a snapshot was taken, or, as in the paper, ``"until"`` then.
        margin: ``"latest"`` or ``"running"``, whatever the adjusters were learned with; None: as they were; ``"auto"``:
            as they were, but samples may stay unnamed. Their average over the epochs is then guessed from the latest
            margin and from how often each was seen: by the samples of all calls in training mode, times the processes
            of ``torch.distributed``, over the sum of ``class_counts``.
        robust_start: share of the training with the loss's fixed hyperparameters, in place of the snapshot of before
            its own training, which has learned nothing. 1/3 for data that a network knows by heart before the next
            snapshot serves, such as tables of some thousand rows; T-* methods see to that by themselves.
        data: what it is used on, ``"image"``, ``"table"`` or ``"text"``; None: not known, so what is for any data
            serves. It does, too, where what is for this kind wants more steps (``Adjuster.least_steps``) than
            ``total_steps``; a training whose length is not given counts as long. T-* methods see to all that by
            themselves.
        noise_rate: share of the labels that are wrong, for a loss that doubts no more than that
            (:class:`narl.adjuster.worth.LabelWorth`); ``"estimated"``: counted while training, ``criterion.noise_rate``
            says what came out: too much, if batches have fewer than 50 samples. Values depend on the rest of their
            batch then.
            ``"ignored"``: the noise rate has no say; None: as the adjusters were made (``Adjuster.noise_rate``), some
            of which want it to be estimated in long trainings alone.

    Example:
        >>> import torch
        >>> learned = [Adjuster("gce", class_counts=[100, 100]) for _ in range(3)]
        >>> criterion = AdjustedLoss(learned, class_counts=[30, 20, 50], total_steps=30_000)
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]], requires_grad=True)
        >>> loss = criterion(logits, torch.tensor([0, 2]))
        >>> loss.backward()
        >>> loss
        tensor(0.9310, grad_fn=<MeanBackward0>)
        >>> criterion.steps, criterion.progress
        (1, 3.3333333333333335e-05)
        >>> criterion.last.hyperparameters["q"], criterion.last.margins, criterion.last.suspicion
        (tensor([0.3000, 0.3000]), tensor([ 2., -2.]), tensor([0.0148, 0.4371]))
    """

    def __init__(
        self,
        adjusters: Adjuster | Sequence[Adjuster],
        class_counts: Counts,
        reduction: str = "mean",
        total_steps: int | None = None,
        *,
        serves: str = "from",
        margin: str | None = None,
        robust_start: float = 0.0,
        data: str | None = None,
        noise_rate: float | str | None = None,
    ) -> None:
        super().__init__()
        given = checked([adjusters] if isinstance(adjusters, Adjuster) else list(adjusters))
        if data not in (None, *KINDS):
            raise OptionError(f"data = {data!r} is no kind of data: {nearest(str(data), KINDS)}")
        if total_steps is not None and not (isinstance(total_steps, Integral) and total_steps >= 1):
            raise OptionError(
                f"total_steps = {total_steps!r} is no number of batches: give that of the whole training, a whole "
                "number, epochs * len(loader)"
            )
        given = meant_for(given, data, total_steps)
        named = {adjuster.robust_loss.name for adjuster in given}
        if len(named) > 1:
            raise OptionError(f"snapshots of different losses ({', '.join(sorted(named))}): pass those of one adjuster")
        if len({adjuster.running is None for adjuster in given}) > 1:
            raise OptionError("snapshots with 'latest' and with 'running' margin: pass those of one adjuster")
        inputs = {adjuster.input for adjuster in given}
        if len(inputs) > 1:
            raise OptionError(f"snapshots of different input ({', '.join(sorted(inputs))}): pass those of one adjuster")
        if reduction not in ("mean", "sum", "none"):
            raise OptionError(f"reduction = {reduction!r} is unknown: use 'mean', 'sum' or 'none'")
        if margin not in (None, "latest", "running", "auto"):
            raise OptionError(
                f"margin = {margin!r} is unknown: use 'latest', 'running', None: as it was learned, or 'auto': the "
                "same, and samples need no ids"
            )
        begins, serving = after_fixed(*in_turn(given, serves), robust_start)
        snapshots = [copy.deepcopy(adjuster).spread().refit(class_counts).requires_grad_(False) for adjuster in serving]
        if margin in ("latest", "running") and snapshots[0].remembers != (margin == "running"):
            snapshots[0].running = RunningMargin() if margin == "running" else None
        self._begins = begins
        for snapshot in snapshots:
            snapshot.running = snapshots[0].running  # one memory of the samples, whichever snapshot is at work
        running = snapshots[0].running
        if running is not None:
            running.seen = None
            if margin == "auto":
                _refuse_shares(snapshots[0].num_samples)
                running.count_from(0)
        self.snapshots = nn.ModuleList(snapshots)
        self.worth: LabelWorth | None = None
        told = _made_with(given) if noise_rate is None else noise_rate
        if told not in (None, IGNORED):
            self.worth = LabelWorth(snapshots[0].robust_loss, len(snapshots[0].of_class), told)
        self.reduction = reduction
        self.total_steps = None if total_steps is None else int(total_steps)
        # A tensor, for torch.compile would take a number for a constant; no buffer, for on a GPU reading it would make
        # the host wait.
        self._steps = torch.zeros((), dtype=torch.int64, device="cpu")
        self._looked = self._longer = False
        self._seen: tuple[Tensor, Tensor, dict[str, Tensor], Tensor | None] | None = None
        self._last: LastBatch | None = None

    def forward(
        self, logits: Tensor, targets: Tensor, progress: float | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """The adjusted loss of a batch.

        Args:
            logits: ``(N, c)``.
            targets: class indices ``(N,)`` or probabilities ``(N, c)``.
            progress: how much of the training is done, from 0 to 1; it chooses the snapshot. By its own count if
                omitted.
            ids: sample ids ``(N,)``, positions in the data set, for running margins; remembered in training mode.

        Returns:
            A scalar, or ``(N,)`` with ``reduction="none"``.
        """
        if not torch.compiler.is_compiling() and not self._looked:
            self._looked = True
            warn_of_probabilities(logits, "the classifier")
        if progress is not None:
            hyperparameters = self._given(progress, logits, targets, ids)
        elif not self._needs_progress:
            hyperparameters = self._given(0.0, logits, targets, ids)
        elif torch.compiler.is_compiling():
            hyperparameters = self._picked(logits, targets, ids)
        else:
            hyperparameters = self._given(self.progress, logits, targets, ids)
        first = self.at(0.0)
        kept: Tensor | None = None
        if self.worth is None:
            values = first.robust_loss(logits, targets, **hyperparameters)
        else:
            values, kept = self._told(self.worth, progress)(logits, targets, hyperparameters)
            if self.training:
                self.worth.count(*self.worth.looked(logits, targets))
        if self.training:
            if ids is not None and first.remembers:
                first.remember(first.measure(margin(logits, targets), logits), ids)
            if self._counted is not None:
                self._counted.add_(len(logits) * _peers())
            if progress is None and self.total_steps is not None:
                self._steps.add_(1)
                if not torch.compiler.is_compiling():
                    self._warn_of_length()
        chosen = {name: value.detach() for name, value in hyperparameters.items()}
        self._seen, self._last = (logits.detach().clone(), targets.detach().clone(), chosen, kept), None
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    def _told(self, worth: LabelWorth, progress: float | None) -> LabelWorth:
        """The same, told how much of the training is done."""
        if progress is not None:
            return worth.at(progress)
        return worth.at(self._counted_progress if torch.compiler.is_compiling() else self.progress)

    def _given(self, progress: float, logits: Tensor, targets: Tensor, ids: Tensor | None) -> dict[str, Tensor]:
        """The hyperparameters by the snapshot that serves at this point."""
        snapshot = self.at(progress)
        if snapshot.sees_progress:
            snapshot.progress.fill_(1).mul_(progress)  # torch.compile would take what fill_ is given for a constant
        found: dict[str, Tensor] = snapshot(logits, targets, ids)
        return found

    def _picked(self, logits: Tensor, targets: Tensor, ids: Tensor | None) -> dict[str, Tensor]:
        """The same by its own count, inside a graph: it must not change with the count, so all snapshots compute."""
        progress = self._counted_progress
        given = []
        for snapshot in self.snapshots:
            assert isinstance(snapshot, Adjuster)
            snapshot.progress.copy_(progress)
            given.append(snapshot(logits, targets, ids))
        begins = torch.tensor(self._begins[1:], dtype=torch.float64, device="cpu")
        serves = (begins <= progress).sum().to(logits.device).unsqueeze(0)
        return {name: torch.stack([each[name] for each in given]).index_select(0, serves)[0] for name in given[0]}

    @property
    def _counted_progress(self) -> Tensor:
        """How much of the training is done by its own count, inside a graph."""
        return (self._steps.double() / self._planned()).clamp(max=1)

    @property
    def noise_rate(self) -> float | None:
        """The share of wrong labels, given or estimated so far; None: it has no say."""
        return None if self.worth is None else float(self.worth.rate)

    @property
    def last(self) -> LastBatch:
        """What it made of the latest batch: ``hyperparameters``, ``margins`` and ``suspicion``, without graph.

        Neither copies nor files of the criterion have it.
        """
        if self._last is None:
            if self._seen is None:
                raise OptionError("no batch was seen yet: criterion.last tells of the latest; call the criterion first")
            self._last = LastBatch(self.at(0.0).robust_loss, *self._seen)
        return self._last

    def _warn_of_length(self) -> None:
        """Say once that the training is longer than it was told."""
        over = self.total_steps is not None and self.steps > self.total_steps
        if self._longer or not over or not self._needs_progress:
            return
        self._longer = True
        warnings.warn(
            f"call {self.steps:,} in training mode, and total_steps = {self.total_steps}: the training counts as over, "
            "and what is meant for its end may have served too early. Give the number of batches of the whole "
            "training, epochs * len(loader), and call criterion.eval() where it is not trained on",
            NarlWarning,
            stacklevel=5,
        )

    @property
    def steps(self) -> int:
        """How many calls it has counted."""
        return int(self._steps)

    @property
    def progress(self) -> float:
        """How much of the training is done by its own count, from 0 to 1; 0 where there is no count and no need."""
        if self.total_steps is None and not self._needs_progress:
            return 0.0
        return min(self.steps / self._planned(), 1.0)

    @property
    def _needs_progress(self) -> bool:
        return len(self.snapshots) > 1 or self.at(0.0).sees_progress or self.worth is not None

    def _planned(self) -> int:
        if self.total_steps is None:
            several = len(self.snapshots) > 1
            which = f"{len(self.snapshots)} snapshots" if several else f"an adjuster of {self.at(0.0).input!r}"
            which = f"noise_rate (which {IGNORED!r} leaves out)" if self.worth is not None and not several else which
            raise OptionError(
                f"{which} must know how much of the training is done: give AdjustedLoss total_steps=, the number of "
                "batches of the whole training, or every call progress="
            )
        return self.total_steps

    def at(self, progress: float) -> Adjuster:
        """The snapshot that serves at this point of the training, from 0 to 1."""
        if isinstance(progress, Tensor) and progress.numel() != 1:
            raise OptionError(f"progress has {progress.numel()} numbers: give one, from 0 to 1; sample ids go to ids=")
        if not 0 <= progress <= 1:
            raise OptionError(f"progress = {progress} is outside [0, 1]: give the share of the training that is done")
        begun = [begin for begin in self._begins if begin <= progress]  # bisect would break a compiled graph
        chosen = self.snapshots[len(begun) - 1]
        assert isinstance(chosen, Adjuster)
        return chosen

    @classmethod
    def pretrained(
        cls,
        name: str | PathLike[str],
        class_counts: Counts,
        total_steps: int | None = None,
        *,
        reduction: str = "mean",
        serves: str = "from",
        margin: str | None = "auto",
        robust_start: float = 0.0,
        data: str | None = None,
        noise_rate: float | str | None = None,
        sha256: str | None = None,
    ) -> AdjustedLoss:
        """The criterion of an adjuster that was learned before: one that narl ships, a file, or one of the hub.

        Args:
            name: of a shipped one, ``"gce"`` or, a version for good, ``"gce-1"`` (:func:`narl.pretrained` lists them);
                or a file that ``narl bench adjusters`` or ``Adjuster.save`` wrote; or ``"hf://owner/repo/file"`` or
                ``"owner/repo"`` of the Hugging Face hub, with ``@revision`` behind it if wanted.
            class_counts: number of training samples of every class by the given labels, ``(c,)``.
            total_steps: how many batches the whole training has; not needed where every call says its ``progress``.
            reduction: ``"mean"``, ``"sum"`` or ``"none"``.
            serves: see :class:`AdjustedLoss`.
            margin: see :class:`AdjustedLoss`. Shipped adjusters were learned with averages over the epochs.
            robust_start: see :class:`AdjustedLoss`.
            data: see :class:`AdjustedLoss`.
            noise_rate: see :class:`AdjustedLoss`.
            sha256: what the file must have, of one that comes from elsewhere; shipped ones are always checked.

        Returns:
            The criterion.

        Raises:
            UnknownNameError: none is called so.
            AdjusterFileError: the file is damaged, or another one than it should be.

        Example:
            >>> import tempfile, pathlib
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "gce.safetensors")
            ...     Adjuster("gce", [100, 100]).save(path)
            ...     criterion = AdjustedLoss.pretrained(path, class_counts=[30, 20, 50], total_steps=30_000)
            >>> criterion(torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]), torch.tensor([0, 2]))
            tensor(0.9310)
        """
        from narl.adjuster.pretrained import open_pack

        snapshots = open_pack(name, sha256=sha256, bare=True).snapshots
        return cls(
            snapshots,
            class_counts,
            reduction,
            total_steps,
            serves=serves,
            margin=margin,
            robust_start=robust_start,
            data=data,
            noise_rate=noise_rate,
        )

    def at_epoch(self, epochs: float) -> None:
        """Say that every sample has been seen so often: for trainers that know. It goes on counting from there.

        Only where samples may stay unnamed (``margin="auto"``) does that matter.
        """
        if self._counted is not None:
            self._counted.fill_(round(epochs * self.at(0.0).num_samples))

    @property
    def _counted(self) -> Tensor | None:
        """How many samples were seen; None where all are named or nobody has to know."""
        running = self.at(0.0).running
        return None if running is None else running.seen

    def get_extra_state(self) -> Tensor:
        """The counts, for ``state_dict``: of steps, and of samples where they matter."""
        return self._steps.clone() if self._counted is None else torch.stack([self._steps, self._counted])

    def set_extra_state(self, state: Tensor) -> None:
        """The counts, from ``load_state_dict``."""
        steps, *seen = state.reshape(-1).tolist()
        self._steps.fill_(steps)
        if self._counted is not None:
            self._counted.fill_(seen[0] if seen else 0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        begin = f"{prefix}snapshots."
        kept = {name.removeprefix(begin).partition(".")[0] for name in state_dict if name.startswith(begin)}
        if kept and len(kept) != len(self.snapshots):
            raise OptionError(
                f"the state is of a criterion with {len(kept)} snapshots, and this one has {len(self.snapshots)}: "
                "which of several adjusters serve is decided by data= and total_steps=; give those that it was begun "
                "with"
            )
        weighed = any(name.startswith(f"{prefix}worth.") for name in state_dict)
        if kept and weighed != (self.worth is not None):
            was, way = ("with", "the one that it was begun with") if weighed else ("without", repr(IGNORED))
            raise OptionError(f"the state is of a criterion {was} noise_rate: give noise_rate, {way}")
        # Older states have no count, and those of before samples could stay unnamed have no averages.
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        if self._counted is not None:
            for number in range(len(self.snapshots)):
                state_dict.setdefault(f"{prefix}snapshots.{number}.running._extra_state", torch.empty(0))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """What copies, files and other processes get: the count as a number, for torch shares tensors among them."""
        return {**self.__dict__, "_steps": self.steps, "_seen": None, "_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what :meth:`__getstate__` gave."""
        steps = torch.tensor(state["_steps"], dtype=torch.int64, device="cpu")
        absent = {} if "worth" in state["_modules"] else {"worth": None}
        super().__setstate__({"_longer": False, **absent, **state, "_steps": steps})  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """Reduction and steps, for ``print``."""
        counted = "" if self.total_steps is None else f", step {self.steps} of {self.total_steps}"
        return f"reduction={self.reduction!r}{counted}"


def _made_with(given: Sequence[Adjuster]) -> str | None:
    """What adjusters say of the noise rate, if they agree."""
    said = {adjuster.noise_rate for adjuster in given}
    if len(said) > 1:
        raise OptionError("snapshots with and without a noise rate: pass those of one adjuster, or give noise_rate=")
    return said.pop()


def _peers() -> int:
    """How many processes train together: each is taken to see its part of the samples."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _refuse_shares(num_samples: float) -> None:
    if num_samples < 2:
        raise OptionError(
            f"class_counts add up to {num_samples:g}: give numbers of samples, by which it knows how often each was "
            'seen, no shares; or margin="latest"'
        )
