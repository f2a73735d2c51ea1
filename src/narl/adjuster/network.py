"""The adjuster: from a sample's margin and its class's family to the hyperparameters of its loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, final

import torch
from torch import Tensor, nn

from narl import losses
from narl.adjuster import files
from narl.adjuster.families import Counts, Families, checked_counts
from narl.adjuster.margins import RunningMargin, known_inputs, margin, measured, parsed
from narl.adjuster.worth import ESTIMATED
from narl.checks import check_logits
from narl.errors import ClassCountsError, HyperparameterError, OptionError, SampleIdsError, nearest

_TEN = 10  # classes; there an adjuster that sees their number is at 0
_END = 0.01  # as near to a span's ends as an adjuster begins


@final
class Adjuster(nn.Module):
    r"""Gives every sample its own hyperparameters of a robust loss.

    .. math:: \Lambda(x, y) = l + (h - l) \odot \sigma\big(W_k \operatorname{relu}(w\, m(x, y) + b) + b_k\big)

    with the margin m, one head :math:`(W_k, b_k)` for the family k of the label's class, and the hyperparameters' span
    :math:`[l, h]`. An untrained adjuster gives every sample the loss's starting values, on the learnable side.

    Args:
        loss: name of a registered loss with hyperparameters.
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        families: the largest number of task families.
        hidden: units of the shared hidden layer.
        margin: ``"latest"`` as in the paper, or ``"running"``: the average over the epochs, by sample id, which still
            works once the classifier has begun to memorise wrong labels.
        input: what is seen of a margin: ``"margin"`` itself as in the paper, ``"scaled"`` by the spread of the batch's
            logits, or its ``"rank"`` in the batch; see :func:`narl.adjuster.margins.measured`. With ``"+progress"``
            after it, such as ``"scaled+progress"``, also how much of the training is done (``progress``, 0 to 1); with
            ``"+classes"`` also how many classes there are, as log(c / 10): the more, the less a robust loss learns.
        generator: where the hidden layer's initial weights come from; torch's global one if omitted.

    A snapshot of a training knows when it was ``taken``, from 0 before the first step to 1 after the last; else that is
    None. One for a single kind of data says which: ``data`` is ``"image"``, ``"table"`` or ``"text"``; else None. One
    that does harm in short trainings has ``least_steps``, of the optimiser: in trainings with fewer, those for any data
    that come with it serve instead; alone it always serves. One whose heads are for classes of certain ``sizes``, as
    multiples of the mean class, has those serve on any data; else that is None, and families are found anew, as in the
    paper. One whose loss is to doubt no more labels than seem to be wrong has the ``noise_rate`` ``"estimated"``
    (:class:`narl.AdjustedLoss`), and if it is for any data, in trainings of ``least_steps`` or more; else that is None.

    Example:
        >>> adjuster = Adjuster("gce", class_counts=[50, 50, 20])
        >>> logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
        >>> adjuster(logits, targets)["q"].shape
        torch.Size([4])
        >>> adjuster.loss(logits, targets).shape
        torch.Size([4])
    """

    of_class: Tensor
    progress: Tensor

    def __init__(
        self,
        loss: str = "gce",
        class_counts: Counts = (),
        families: int = 3,
        hidden: int = 100,
        margin: str = "latest",
        *,
        input: str = "margin",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.robust_loss = losses.get(loss)
        if not self.robust_loss.hyperparameters:
            adjustable = ", ".join(name for name in losses.names() if losses.get(name).hyperparameters)
            raise HyperparameterError(f"{loss!r} has no hyperparameters to adjust: choose one of {adjustable}")
        if families < 1:
            raise OptionError(f"families = {families} are too few: use 1 or more (3 in the paper)")
        if hidden < 1:
            raise OptionError(f"hidden = {hidden} units are too few: use 1 or more (100 in the paper)")
        if margin not in ("latest", "running"):
            raise OptionError(f"margin = {margin!r} is unknown: use 'latest' (the paper's) or 'running'")
        seen = parsed(input)
        if seen is None:
            raise OptionError(f"input = {input!r} is unknown: {nearest(input, known_inputs())}")
        self.input = input
        self._measure, self._besides = seen
        self.taken: float | None = None
        self.data: str | None = None
        self.least_steps: int | None = None
        self.noise_rate: str | None = None
        self.sizes: tuple[float, ...] | None = None
        self.spans = {h.name: h.span for h in self.robust_loss.hyperparameters}
        self.num_families = families
        self.running = RunningMargin() if margin == "running" else None
        self.hidden = _uninitialised(1 + len(self._besides), hidden)
        self.heads = _uninitialised(hidden, families * len(self.spans))
        self._start(generator)
        self.register_buffer("of_class", torch.empty(0, dtype=torch.int64), persistent=False)
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        self.refit(class_counts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of copies and files of before it could be for some data or trainings only, or its heads for certain sizes."""
        unsaid = dict.fromkeys(("data", "least_steps", "noise_rate", "sizes"))
        super().__setstate__({**unsaid, **state})  # type: ignore[no-untyped-call]
        self.num_samples = sum(self.class_counts)
        seen = parsed(self.input)
        assert seen is not None
        self._measure, self._besides = seen

    def _start(self, generator: torch.Generator | None) -> None:
        """Random kinks along the margin, and heads that give the starting values whatever the margin."""
        nn.init.uniform_(self.hidden.weight, -1, 1, generator=generator)
        nn.init.uniform_(self.hidden.bias, -1, 1, generator=generator)
        self._level({h.name: (h.start - h.span[0]) / (h.span[1] - h.span[0]) for h in self.robust_loss.hyperparameters})

    @torch.no_grad()
    def begin_at(self, **hyperparameters: float) -> Adjuster:
        """Give every sample the same hyperparameters, whatever its margin, and forget what was learned of margins.

        The usual start, near cross entropy, suits long trainings. On small data, where a network learns wrong labels by
        heart before an adjuster has learned anything, a robust one is better: train with the loss's defaults for some
        epochs, then let the adjuster learn from there.

        Args:
            hyperparameters: those that are not given get the loss's defaults. What lies outside the span, or at its
                very ends, where a sigmoid learns no more, comes in by a hundredth of the span.

        Returns:
            The adjuster itself.

        Example:
            >>> adjuster = Adjuster("gce", [10, 20]).begin_at()
            >>> adjuster(torch.randn(2, 2), torch.tensor([0, 1]))["q"]
            tensor([0.7000, 0.7000], grad_fn=<SqueezeBackward1>)
        """
        unknown = sorted(hyperparameters.keys() - self.spans.keys())
        if unknown:
            raise HyperparameterError(
                f"{self.robust_loss.name!r} has no {unknown[0]!r}: {nearest(unknown[0], self.spans)}"
            )
        wanted = {**self.robust_loss.defaults, **hyperparameters}
        shares = {name: (wanted[name] - low) / (high - low) for name, (low, high) in self.spans.items()}
        self._level({name: min(max(share, _END), 1 - _END) for name, share in shares.items()})
        return self

    @torch.no_grad()
    def spread(self) -> Adjuster:
        """Give heads that have learned nothing what the nearest one that has has learned.

        Where all classes had the same size there was one family, and the heads of the others are as they began. On data
        whose classes differ in size they would serve all the same.

        Returns:
            The adjuster itself.

        Example:
            >>> adjuster = Adjuster("gce", [10, 10], families=2, hidden=1)
            >>> adjuster.heads.weight.data[0] = 3.0  # as if it had been trained: there is one family
            >>> adjuster.spread().heads.weight.flatten().tolist()
            [3.0, 3.0]
        """
        weight, bias = (part.view(self.num_families, len(self.spans), -1) for part in self.heads.parameters())
        learned = weight.flatten(1).any(dim=1).nonzero().flatten().tolist()  # a head begins with zeros
        for head in range(self.num_families) if learned else ():
            nearest_one = min(learned, key=lambda other: abs(other - head))
            weight[head], bias[head] = weight[nearest_one], bias[nearest_one]
        return self

    @torch.no_grad()
    def lifted(self) -> Adjuster:
        r"""A copy for any number of classes: it sees margins lifted by the logarithm of their number.

        With symmetric noise η a label of probability p is right with odds :math:`\frac{1 - \eta}{\eta} (c - 1)
        \frac{p}{1 - p}`: the more classes, the lower a margin has to be before the label is more likely wrong than
        right, by log c. With as many classes as it was learned with, the copy gives what the adjuster gives.

        Returns:
            The copy, which also sees the number of classes.

        Raises:
            OptionError: it sees something else than margins, or the number of classes already.

        Example:
            >>> adjuster = Adjuster("gce", [50] * 10, input="margin+progress")
            >>> adjuster.lifted().input
            'margin+progress+classes'
        """
        if self._measure != "margin" or "classes" in self._besides:
            raise OptionError(f"an adjuster that sees {self.input!r} cannot be lifted: only one that sees 'margin' can")
        made = copy.deepcopy(self)
        made.input = f"{self.input}+classes"
        made._besides = (*self._besides, "classes")
        slopes = self.hidden.weight[:, :1]
        made.hidden = _uninitialised(1 + len(made._besides), len(slopes)).to(slopes)
        made.hidden.requires_grad_(slopes.requires_grad)
        made.hidden.weight.copy_(torch.cat([self.hidden.weight, slopes], dim=1))
        made.hidden.bias.copy_(self.hidden.bias - slopes[:, 0] * self.scale)
        return made

    def _level(self, shares: Mapping[str, float]) -> None:
        """Have the heads give these shares of the spans, whatever the margin."""
        nn.init.zeros_(self.heads.weight)
        level = torch.tensor([math.log(share / (1 - share)) for share in shares.values()])
        with torch.no_grad():
            self.heads.bias.copy_(level.repeat(self.num_families))

    def refit(self, class_counts: Counts) -> Adjuster:
        """Fit the families to new data: what was learned stays, what belongs to the old data goes.

        Args:
            class_counts: number of training samples of every class, ``(c,)``; any number of classes.

        Returns:
            The adjuster itself.

        Example:
            >>> Adjuster("js", [10, 20]).refit([5, 5, 900]).of_class.tolist()
            [0, 0, 1]
        """
        self._fit(class_counts)
        if self.running is not None:
            self.running.forget()
        return self

    def _fit(self, class_counts: Counts) -> None:
        if self.sizes is None:
            families = Families.from_counts(class_counts, self.num_families)
        else:
            families = Families.nearest(class_counts, self.sizes)
        self.class_counts: list[float] = checked_counts(class_counts).tolist()
        self.num_samples = sum(self.class_counts)
        self.centres: list[float] = families.centres.tolist()
        self.of_class = families.of_class.to(self.heads.weight.device)

    # The families belong to the state, and with them the number of classes, which a buffer's shape would fix.
    def get_extra_state(self) -> Tensor:
        """The class counts, for ``state_dict``."""
        return torch.tensor(self.class_counts, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """The class counts, from ``load_state_dict``."""
        self._fit(state)

    def forward(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> dict[str, Tensor]:
        """Every sample's hyperparameters.

        Args:
            logits: ``(N, c)``; no gradient flows into them.
            targets: class indices ``(N,)`` or probabilities ``(N, c)``.
            ids: sample ids ``(N,)``, for ``margin="running"``.

        Returns:
            One ``(N,)`` tensor a hyperparameter, by name.
        """
        self._check_classes(logits)
        seen = self.measure(margin(logits, targets), logits)
        if self.running is not None:
            unnamed = ids is None and self.running.seen is not None
            seen = self.running.guess(seen, self.num_samples) if unnamed else self.running.blend(seen, _required(ids))
        by_family = self.curves(seen)
        if targets.dim() == 1:
            own = self.of_class[targets.long()].unsqueeze(1)
            return {name: values.gather(1, own).squeeze(1) for name, values in by_family.items()}
        weights = self._memberships(targets)
        return {
            name: (weights * values).sum(dim=1).clamp(*self.spans[name])  # rounding alone could leave the span
            for name, values in by_family.items()
        }

    def _memberships(self, targets: Tensor) -> Tensor:
        """How much of each sample belongs to each family, ``(N, K)``, from probability targets ``(N, c)``."""
        families = self.of_class.expand(len(targets), -1)
        empty = targets.new_zeros(len(targets), self.num_families, dtype=self.heads.weight.dtype)
        return empty.scatter_add(1, families, targets.to(empty.dtype))

    @property
    def sees_progress(self) -> bool:
        """Whether it looks at how much of the training is done: then somebody has to set ``progress``."""
        return "progress" in self._besides

    @property
    def scale(self) -> float:
        """What it sees of the number of classes, if it does: log(c / 10)."""
        return math.log(len(self.of_class) / _TEN)

    def measure(self, margins: Tensor, logits: Tensor) -> Tensor:
        """What the adjuster sees of margins ``(N,)`` of logits ``(N, c)``, before any average over epochs."""
        return measured(self._measure, margins, logits)

    def curves(self, margins: Tensor) -> dict[str, Tensor]:
        """What every family's samples get at these margins: the functions that the adjuster has learned.

        Args:
            margins: ``(N,)``, or what the adjuster sees in their place (:meth:`measure`).

        Returns:
            One ``(N, K)`` tensor a hyperparameter, by name, a column a family.

        Example:
            >>> Adjuster("gce", [50, 50, 20], families=2).curves(torch.linspace(-5, 5, 11))["q"].shape
            torch.Size([11, 2])
        """
        with torch.autocast(margins.device.type, enabled=False):  # a few hundred numbers: half precision saves nothing
            seen = margins.to(self.hidden.weight.dtype).unsqueeze(1)
            if self._besides:
                besides = {"progress": self.progress.to(seen.dtype), "classes": seen.new_full((), self.scale)}
                seen = torch.cat([seen, *(besides[name].expand(len(seen), 1) for name in self._besides)], dim=1)
            features = torch.relu(self.hidden(seen))
            shares = torch.sigmoid(self.heads(features)).view(len(margins), self.num_families, len(self.spans))
        return {
            name: (low + (high - low) * share).clamp(low, high)  # rounding alone could leave the span
            for (name, (low, high)), share in zip(self.spans.items(), shares.unbind(dim=2), strict=True)
        }

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> Tensor:
        """The robust loss with every sample's own hyperparameters.

        Args:
            logits: ``(N, c)``; the gradient flows into them through the loss, not through the hyperparameters.
            targets: class indices ``(N,)`` or probabilities ``(N, c)``.
            ids: sample ids ``(N,)``, for ``margin="running"``.

        Returns:
            One value a sample, ``(N,)``.
        """
        return self.robust_loss(logits, targets, **self(logits, targets, ids))

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """What the adjuster makes of a batch, and, with a running margin, remember the batch: once a step.

        Args:
            logits: ``(N, c)``.
            targets: class indices ``(N,)`` or probabilities ``(N, c)``.
            ids: sample ids ``(N,)``, for ``margin="running"``.

        Returns:
            The hyperparameters by name and the latest margins, each ``(N,)``.

        Example:
            >>> adjuster = Adjuster("gce", [5, 5], margin="running")
            >>> hyperparameters, margins = adjuster.observe(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0, 1]))
            >>> margins, adjuster.running.table
            (tensor([ 1., -1.]), tensor([ 1., -1.]))
        """
        hyperparameters, margins = self.describe(logits, targets, ids)
        if self.running is not None:
            self.remember(self.measure(margins, logits), _required(ids))
        return hyperparameters, margins

    @property
    def remembers(self) -> bool:
        """Whether it keeps a running margin of every sample."""
        return self.running is not None

    @torch.no_grad()
    def describe(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """What :meth:`observe` gives, nothing remembered."""
        return self(logits, targets, ids), margin(logits, targets)

    @torch.no_grad()
    def remember(self, margins: Tensor, ids: Tensor) -> None:
        """Take what was measured ``(N,)`` of the samples with these ids ``(N,)`` into their averages: once a step."""
        if self.running is not None:
            self.running.store(margins, ids)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the adjuster as safetensors: what was learned, and a header that says for what.

        Args:
            path: file to write; replaced whole or not at all.

        Example:
            >>> import tempfile, pathlib
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = pathlib.Path(folder.name) / "gce.safetensors"
            >>> Adjuster("gce", [10, 20]).save(path)
            >>> Adjuster.load(path).class_counts
            [10.0, 20.0]
            >>> folder.cleanup()
        """
        files.write(path, self.header(), dict(self.named_parameters()))

    def header(self) -> files.Header:
        """What a file says about it."""
        if self.noise_rate not in (None, ESTIMATED):
            raise OptionError(f"noise_rate = {self.noise_rate!r} is nothing that adjusters say: {ESTIMATED!r}, or None")
        return files.Header(
            loss=self.robust_loss.name,
            ranges={name: list(span) for name, span in self.spans.items()},
            families=self.num_families,
            class_counts=self.class_counts,
            hidden=self.hidden.out_features,
            margin="latest" if self.running is None else "running",
            input=self.input,
            taken=self.taken,
            data=self.data,
            sizes=None if self.sizes is None else list(self.sizes),
            least_steps=self.least_steps,
            noise_rate=self.noise_rate,
        )

    @classmethod
    def load(cls, path: str | PathLike[str], class_counts: Counts | None = None) -> Adjuster:
        """Read an adjuster that :meth:`save` wrote.

        Args:
            path: the file.
            class_counts: those of the data it will be used on; the ones it was saved with if omitted.

        Returns:
            The adjuster, on the CPU.
        """
        return cls.restored(path, *files.read(path), class_counts)

    @classmethod
    def restored(
        cls,
        path: str | PathLike[str],
        header: files.Header,
        tensors: Mapping[str, Tensor],
        class_counts: Counts | None = None,
    ) -> Adjuster:
        """An adjuster from what a file says about it and its tensors; the path is for messages."""
        files.check_contents(path, header, tensors, losses.get(header.loss))
        counts = header.class_counts if class_counts is None else class_counts
        unused = torch.Generator()  # the initial weights are about to be replaced
        adjuster = cls(
            header.loss, counts, header.families, header.hidden, header.margin, input=header.input, generator=unused
        )
        adjuster.to(tensors["hidden.weight"].dtype)
        adjuster.taken, adjuster.data, adjuster.least_steps = header.taken, header.data, header.least_steps
        adjuster.noise_rate = header.noise_rate
        if header.sizes is not None:
            adjuster.sizes = tuple(header.sizes)
            adjuster.refit(counts)
        adjuster.spans = {name: (low, high) for name, (low, high) in header.ranges.items()}
        with torch.no_grad():
            for name, parameter in adjuster.named_parameters():
                parameter.copy_(tensors[name])
        return adjuster

    def extra_repr(self) -> str:
        """Loss, classes, families and margin, for ``print``."""
        margin = "latest" if self.running is None else "running"
        seen = "" if self.input == "margin" else f", input={self.input!r}"
        return f"{self.robust_loss.name!r}, classes={len(self.of_class)}, families={self.num_families}, {margin=}{seen}"

    def _check_classes(self, logits: Tensor) -> None:
        if not isinstance(logits, Tensor) or (logits.dim() == 2 and logits.shape[1] < 2):
            check_logits(logits)  # says what is wrong
        if logits.dim() == 2 and logits.shape[1] != len(self.of_class):
            raise ClassCountsError(
                f"the adjuster was fitted to {len(self.of_class)} classes but the logits have {logits.shape[1]}: "
                f"give {logits.shape[1]} class counts, to adjuster.refit or where the AdjustedLoss is made"
            )


def _uninitialised(in_features: int, out_features: int) -> nn.Linear:
    # nn.Linear's own initialisation would draw from the global random state.
    return nn.Linear(in_features, out_features, device="meta").to_empty(device=torch.get_default_device())


def _required(ids: Tensor | None) -> Tensor:
    if ids is None:
        raise SampleIdsError(
            'an adjuster with margin="running" needs to know the samples: pass ids=, each sample\'s position in the '
            'data set, or use margin="latest" (of a learned loss: "auto")'
        )
    return ids
