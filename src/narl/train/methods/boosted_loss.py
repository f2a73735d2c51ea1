"""The objective of boosted methods: an adjusted loss on views, mixtures and guesses, still a function of the logits.

What a batch was made of (partners, guesses, which rows are strong views) is fixed before the networks' pass; what is
left is a function of the batch's logits and of the adjuster's parameters, as the exact hypergradient needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch import Tensor, nn

from narl.adjuster import Adjuster
from narl.checks import at_least_float32
from narl.train.methods.guesses import Doubts, Guess
from narl.train.methods.mixing import mixed, one_hot
from narl.train.methods.pair import mean_prediction
from narl.train.methods.trusted import where_right, with_trusted

SUSPICION = "suspicion"
"""The field that says how strongly each sample is held for mislabelled."""


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """How the usual views of a batch were mixed: with whom, and how much of each is itself."""

    partners: Tensor
    share: float | Tensor


@final
@dataclass(frozen=True, eq=False)
class Shown:
    """What the networks are shown in a step.

    Args:
        y: the samples' labels, ``(N,)`` or ``(N, c)``.
        ids: their positions, ``(N,)``.
        mixtures: how each network's rows were mixed; None: they were not.
        guesses: what each network is told; None: nothing.
        strong: whether rows of strong views follow each network's N rows.
        boosted: whether this is more than the plain adjusted loss.
        right: whether each sample's label is known to be right, ``(N,)``; None: of none it is.
        settled: whether the labels are doubted as the one guess says; else that is told after the networks' pass, and
            remembered then.
    """

    y: Tensor
    ids: Tensor
    mixtures: Sequence[Mixture | None]
    guesses: Sequence[Guess | None]
    strong: bool = False
    boosted: bool = True
    right: Tensor | None = None
    settled: bool = False


@final
class Fixed(nn.Module):
    """What one network is shown, in tensors that stay where they are: for steps that are repeated as graphs.

    Args:
        shown: for an example, settled; later ones are alike but for their values.

    Example:
        >>> guess = Guess(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.zeros(2), torch.zeros(2))
        >>> def shown(share):
        ...     return Shown(torch.arange(2), torch.arange(2), [Mixture(torch.arange(2), share)], [guess], settled=True)
        >>> fixed = Fixed(shown(0.75))
        >>> there = fixed().mixtures[0].share
        >>> fixed.bring(shown(0.5))
        >>> there
        tensor(0.5000)
    """

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        (guess,) = shown.guesses
        assert guess is not None
        self._strong = shown.strong
        self._names = [name for name, value in _parts(shown).items() if value is not None]
        for name, value in _parts(shown).items():
            if value is not None:
                held = guess.logits.new_full((), value) if isinstance(value, float) else value.clone()
                self.register_buffer(f"shown_{name}", held, persistent=False)

    def bring(self, shown: Shown) -> None:
        """Take over what is shown now."""
        for name, value in _parts(shown).items():
            if isinstance(value, float):
                self.get_buffer(f"shown_{name}").fill_(value)  # a copy from the host would make it wait
            elif value is not None:
                self.get_buffer(f"shown_{name}").copy_(value)

    def forward(self) -> Shown:
        """What is shown."""
        own: dict[str, Any] = {name: getattr(self, f"shown_{name}") for name in self._names}
        mixture = Mixture(own["partners"], own["share"]) if "share" in own else None
        guess = Guess(**{part.name: own[part.name] for part in fields(Guess)})
        return Shown(own["y"], own["ids"], [mixture], [guess], self._strong, right=own.get("right"), settled=True)


def _parts(shown: Shown) -> dict[str, Tensor | float | None]:
    """What one network is shown, by name."""
    (mixture,), (guess,) = shown.mixtures, shown.guesses
    assert guess is not None
    return {
        "y": shown.y,
        "ids": shown.ids,
        "right": shown.right,
        "partners": None if mixture is None else mixture.partners,
        "share": None if mixture is None else mixture.share,
        **vars(guess),
    }


@final
@dataclass(frozen=True)
class Weights:
    """How much the parts of the objective count.

    Args:
        consistency: of the guesses, u.
        takeover: how much of a doubted label's weight its guess takes, h.
        strong: of strong views, v.
        balance: of the prior of the classes, b.
    """

    consistency: float
    takeover: float
    strong: float
    balance: float


@final
class BoostedLoss(nn.Module):
    r"""An adjusted loss with guesses for doubted labels, on mixed and on strong views, and a prior of the classes.

    For a sample with label y, hyperparameters Λ and a guess :math:`\hat p` of weight c that takes c' from the label,
    every row of logits z has

    .. math:: M(z) = (1 - h c')\, \ell(z, y; \Lambda) + u\, c\, H(\hat p, \operatorname{softmax} z)

    with the cross entropy H; c' is c unless told otherwise (:func:`narl.train.methods.guesses.guessed`). A mixture of
    samples i and j has :math:`\lambda M_i(z) + (1 - \lambda) M_j(z)`: each partner keeps the hyperparameters that its
    own, unmixed margin has earned. A network's objective is

    .. math:: \frac1N \sum_i \Big[ \lambda M_i(z_i) + (1 - \lambda) M_{\pi(i)}(z_i) \Big]
              + v\, \frac1N \sum_i M_i(z_i^{\text{strong}}) + b\, \mathrm{KL}(\rho \Vert \bar p)

    with the mean prediction :math:`\bar p` over all rows. Those of several networks are added. Of a sample whose label
    is known to be right, M is the cross entropy of its label.

    Args:
        serving: gives the adjuster that is at work.
        learned: the adjuster, where it is learned; None where it stays as it is.
        weights: u, h, v and b.
        prior: :math:`\rho`, ``(c,)``.
        doubts: what says how strongly each label is doubted, and which are known to be right.
        by_guess: whether the adjuster sees the margins of the one who guesses; else those of each row itself, of
            mixtures by their mixed targets.

    ``shown`` says what the rows are, and is set before each step, or :meth:`fix` is called; ``seen`` are the logits by
    which the samples of the last one were judged, ``(N, c)``.

    Example:
        >>> from narl.train.methods.guesses import ByMargin
        >>> adjuster = Adjuster("gce", [5, 5])
        >>> weights, prior = Weights(1.0, 1.0, 1.0, 0.0), torch.tensor([0.5, 0.5])
        >>> loss = BoostedLoss(lambda: adjuster, adjuster, weights, prior, ByMargin(None, num_samples=2))
        >>> y, ids, logits = torch.tensor([0, 1]), torch.arange(2), torch.randn(2, 2)
        >>> loss.shown = Shown(y, ids, [None], [None], boosted=False)
        >>> torch.equal(loss.loss(logits, y, ids), adjuster.loss(logits, y, ids))
        True
    """

    prior: Tensor

    def __init__(
        self,
        serving: Callable[[], Adjuster],
        learned: Adjuster | None,
        weights: Weights,
        prior: Tensor,
        doubts: Doubts,
        *,
        by_guess: bool = True,
    ) -> None:
        super().__init__()
        self.learned, self._serving, self._weights, self._by_guess = learned, serving, weights, by_guess
        self.register_buffer("prior", prior, persistent=False)
        self._doubts = (doubts,)  # its memory belongs to the method's state, not to the loss that is learned
        self.shown: Shown | None = None
        self.seen: Tensor | None = None
        self._fixed: Fixed | None = None

    def fix(self, shown: Shown) -> None:
        """Show this from tensors that stay where they are, until ``shown`` is set."""
        if self._fixed is None:
            self._fixed = Fixed(shown)
        self._fixed.bring(shown)
        self.shown = None

    @property
    def doubts(self) -> Doubts:
        """What says how strongly each label is doubted."""
        return self._doubts[0]

    @property
    def serving(self) -> Adjuster:
        """The adjuster that is at work."""
        return self._serving()

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> Tensor:
        """The objective: one value a row for one network's plain adjusted loss, ``(N,)``; else the whole.

        Args:
            logits: ``(K · N, c)`` or, with strong views, ``(K · 2N, c)``, network after network.
            targets: as many labels.
            ids: as many positions.
        """
        shown, adjuster = self._shown(), self.serving
        if not shown.boosted and len(shown.guesses) == 1:
            values = adjuster.loss(logits, targets, ids)
            return values if ids is None else with_trusted(values, logits, targets, ids, self.doubts.trusted)
        parts = at_least_float32(logits).chunk(len(shown.guesses))
        losses = [
            self._of_network(part, shown, mixture, guess) if shown.boosted else self._plain(part, shown)
            for part, mixture, guess in zip(parts, shown.mixtures, shown.guesses, strict=True)
        ]
        return torch.stack(losses).sum()

    def _plain(self, z: Tensor, shown: Shown) -> Tensor:
        values = self.serving.loss(z, shown.y, shown.ids)
        return with_trusted(values, z, shown.y, shown.ids, self.doubts.trusted).mean()

    def _of_network(self, z: Tensor, shown: Shown, mixture: Mixture | None, guess: Guess | None) -> Tensor:
        count = len(shown.y)
        usual, strong = z[:count], z[count:]
        given = None
        if guess is not None and self._by_guess:
            given = self.serving(guess.logits, shown.y, shown.ids)
        loss = self._rows(usual, shown, mixture, guess, given).mean()
        if shown.strong:
            loss = loss + self._weights.strong * self._rows(strong, shown, None, guess, given).mean()
        if self._weights.balance:
            loss = loss + self._weights.balance * divergence(self.prior, z)
        return loss

    def _rows(
        self,
        z: Tensor,
        shown: Shown,
        mixture: Mixture | None,
        guess: Guess | None,
        given: dict[str, Tensor] | None,
    ) -> Tensor:
        """The values of N rows, ``(N,)``, with each sample's hyperparameters, or else those that the row has earned."""
        own = given
        if own is None:
            own = self.serving(z, shown.y if mixture is None else self._mixed_targets(z, shown, mixture), shown.ids)
        values = self._samples(z, shown.y, shown.right, own, guess)
        if mixture is None:
            return values
        order, share = mixture.partners, mixture.share
        other = own if given is None else {name: value[order] for name, value in given.items()}
        told = None if guess is None else guess.of(order)
        right = None if shown.right is None else shown.right[order]
        return share * values + (1 - share) * self._samples(z, shown.y[order], right, other, told)

    def _samples(
        self, z: Tensor, y: Tensor, right: Tensor | None, hyperparameters: dict[str, Tensor], guess: Guess | None
    ) -> Tensor:
        """M, ``(N,)``."""
        values = where_right(self.serving.robust_loss(z, y, **hyperparameters), z, y, right)
        if guess is None or not self._weights.consistency:
            return values
        told = -(guess.targets * z.log_softmax(dim=1)).sum(dim=1)
        return (1 - self._weights.takeover * guess.taken) * values + self._weights.consistency * guess.weights * told

    def _mixed_targets(self, z: Tensor, shown: Shown, mixture: Mixture) -> Tensor:
        return mixed(one_hot(shown.y, z.shape[1]).to(z.dtype), mixture.partners, float(mixture.share))

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """What the adjuster makes of the samples, and have it remember their margins: once a step.

        Args:
            logits: of all rows.
            targets: as many labels.
            ids: as many positions.

        Returns:
            Hyperparameters and suspicion by name, and margins, ``(N,)`` each.
        """
        shown, adjuster = self._shown(), self.serving
        judged = self.seen = self._judged(logits, shown)
        y = shown.y
        if self._is_mixed(shown):  # the margin of a mixture, by its mixed targets
            assert shown.mixtures[0] is not None
            y = self._mixed_targets(judged, shown, shown.mixtures[0])
        hyperparameters, margins = adjuster.observe(judged, y, shown.ids)
        guess = shown.guesses[0]
        if shown.settled and guess is not None:
            return {**hyperparameters, SUSPICION: guess.doubts}, margins
        suspicions, _ = self.doubts(adjuster, judged, shown.y, shown.ids)
        self.doubts.remember(judged, shown.y, shown.ids)
        return {**hyperparameters, SUSPICION: suspicions}, margins

    def _judged(self, logits: Tensor, shown: Shown) -> Tensor:
        """The logits by which the samples are judged, ``(N, c)``: of those who guess, or the networks' own."""
        guesses = [guess.logits for guess in shown.guesses if guess is not None]
        if guesses and self._by_guess:
            own = guesses
        else:
            own = [part[: len(shown.y)].detach() for part in logits.chunk(len(shown.guesses))]
            own = own[:1] if self._is_mixed(shown) else own  # every network has mixtures of its own
        return own[0] if len(own) == 1 else mean_prediction(own)

    def _is_mixed(self, shown: Shown) -> bool:
        """Whether the adjuster sees mixtures."""
        return not self._by_guess and shown.mixtures[0] is not None

    def _shown(self) -> Shown:
        if self.shown is not None:
            return self.shown
        assert self._fixed is not None, "nothing was shown"
        found: Shown = self._fixed()
        return found


def divergence(prior: Tensor, logits: Tensor) -> Tensor:
    r"""How far a batch's mean prediction is from a prior, :math:`\sum_j \rho_j \log (\rho_j / \bar p_j)`.

    Args:
        prior: ``(c,)``.
        logits: ``(N, c)``.

    Returns:
        A scalar, 0 where they agree.

    Example:
        >>> divergence(torch.tensor([0.5, 0.5]), torch.zeros(3, 2))
        tensor(0.)
    """
    mean = logits.softmax(dim=1).mean(dim=0).clamp(min=torch.finfo(logits.dtype).tiny)
    found: Tensor = torch.special.xlogy(prior, prior / mean).sum()
    return found
