"""A-*+ and T-*+: adjusted losses with mixup, guesses for doubted labels on strong views, averaged weights, a prior."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from narl.adjuster import Adjuster
from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs, call, run
from narl.bilevel.memory_format import faster_layout
from narl.bilevel.refusals import Noted, refuse_no_labels
from narl.bilevel.rivals import rivals
from narl.checks import at_least_float32
from narl.errors import OptionError
from narl.models.committee import Committee, Networks
from narl.train.methods.adjusted import Adjusted
from narl.train.methods.base import Look, PreparingMethod, Rows, Setting, checked_positions, views_of
from narl.train.methods.believed import how_often, more_believed
from narl.train.methods.boosted_loss import SUSPICION, BoostedLoss, Mixture, Shown, Weights
from narl.train.methods.boosted_parts import OPTIONS, Parts, first_boosted
from narl.train.methods.guesses import DOUBTS, Guess, guessed
from narl.train.methods.mixing import Mixer, beta_share, linear_ramp, partners
from narl.train.methods.modes import evaluating
from narl.train.methods.spec import MethodSpec
from narl.train.methods.transferred import Transferred

Plain: TypeAlias = Adjusted | Transferred
Wrap: TypeAlias = Callable[[Callable[[], Adjuster], Adjuster | None], BoostedLoss]

_UNEVEN = 3.0  # largest class over the smallest, from which on the given labels are a better prior than none


@final
class SideBySide(nn.Module):
    """Networks as one: inputs of each in, their logits out, one after the other.

    Args:
        networks: alike.

    Example:
        >>> model = SideBySide([nn.Linear(4, 3), nn.Linear(4, 3)])
        >>> model(torch.zeros(2, 4), torch.zeros(2, 4)).shape
        torch.Size([4, 3])
    """

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *inputs: Tensor) -> Tensor:
        """``(K · N, c)``."""
        return torch.cat([run(network, x) for network, x in zip(self.networks, inputs, strict=True)])


@final
class Boosted(PreparingMethod):
    """Trains with an adjusted loss and what else helps against noisy labels, each part of which can be switched off.

    A step makes one pass over all rows of all networks: mixed usual views, then strong views. The hypergradient of a
    learned adjuster is that of this whole objective, and exact. With every part off, it is the plain method.

    Args:
        setting: what there is to work with; its model is what :meth:`Parts` asks for.
        parts: what to do.
        make: gives the plain method, from a setting and from what wraps its adjuster: a function from the adjuster that
            serves, and the one that is learned, to the objective.

    Example:
        >>> from narl.train import methods
        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def clean():
        ...     return torch.randn(6, 4), torch.randint(0, 2, (6,))
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5]), clean, total_steps=6, num_samples=10,
        ...                   generator=torch.Generator(), kind="table")
        >>> method = methods.build("A-GCE+", setting, ema=0)
        >>> report = method.step(torch.randn(4, 4), torch.tensor([0, 1, 1, 0]), torch.arange(4))
        >>> sorted(report.hyperparameters)
        ['q', 'suspicion']
    """

    unmoved = "its steps train on several views and on guesses"
    trusts = True

    def __init__(self, setting: Setting, parts: Parts, make: Callable[[Setting, Wrap], Plain]) -> None:
        self.parts = parts = parts.for_kind(setting.kind)
        self.setting, self._committee = setting, _committee(setting.model, parts)
        if setting.weights is not None:
            raise OptionError("boosted methods take no weights of samples: choose the plain method, or no weights")
        self.members = list(self._committee.members) if self._committee is not None else [setting.model]
        self.views = ("usual", "strong") if parts.strong else ()
        self._mixer = Mixer(setting.kind, setting.shape, parts.mixup) if parts.mixup else None
        self._objective: BoostedLoss | None = None
        # What short runs on tables begin with was measured for the plain adjusted loss; this begins as in the paper.
        kind = None if parts.any else setting.kind
        # On a GPU the host goes ahead: a step that is not finite is refused before the state is written.
        self._noted = setting.noted or (Noted(setting.device) if setting.device.type == "cuda" else None)
        own = replace(setting, model=self._trained(), clean=self._clean(), kind=kind, noted=self._noted, trusted=None)
        self.plain = make(own, self._wrap)
        self.fields = (*self.plain.fields, SUSPICION)
        self.adjuster = self.plain.adjuster
        total = setting.total_steps
        self.begins = first_boosted(total) if parts.boost_from is None else round(parts.boost_from * total)
        # Of all samples, when they came up last; and what the epoch's batches are drawn by.
        self._suspicions = torch.zeros(setting.num_samples, device=setting.device)
        self._beliefs: Tensor | None = None
        self._told: Shown | None = None

    def _trained(self) -> nn.Module:
        """What a step trains: the one network itself, or all of them as one."""
        return self.members[0] if len(self.members) == 1 else SideBySide(self.members)

    def _clean(self) -> Callable[[], tuple[Any, Tensor]] | None:
        """Draws clean batches, the same for every network."""
        draw, count = self.setting.clean, len(self.members)
        if draw is None or count == 1:
            return draw

        def repeated() -> tuple[Any, Tensor]:
            x, y = draw()
            return (x,) * count, _repeated(y, count)

        return repeated

    def _wrap(self, serving: Callable[[], Adjuster], learned: Adjuster | None) -> BoostedLoss:
        """The objective around an adjuster."""
        parts, counts = self.parts, self.setting.class_counts.double()
        weights = Weights(parts.consistency, parts.takeover, parts.strong or 0.0, parts.balance)
        given = parts.prior == "given" or (parts.prior is None and float(counts.max() / counts.min()) > _UNEVEN)
        prior = counts / counts.sum() if given else torch.full_like(counts, 1 / len(counts))
        prior = prior.to(self.setting.device, next(self.setting.model.parameters()).dtype)
        doubts = DOUBTS[parts.doubt](self.setting.trusted, len(counts), self.setting.num_samples, parts.memory)
        doubts = doubts.to(self.setting.device)
        self._objective = BoostedLoss(serving, learned, weights, prior, doubts, by_guess=parts.judge == "guess")
        return self._objective

    @property
    def objective(self) -> BoostedLoss:
        """What is minimised."""
        assert self._objective is not None
        return self._objective

    @property
    def steps(self) -> int:
        """Done so far."""
        return self.plain.steps

    @property
    def kept(self) -> tuple[Adjuster, ...]:
        """The adjuster before the training, and its snapshots."""
        return self.plain.kept

    def begin_epoch(self, epoch: int, look: Look) -> None:
        """Settle how far each label is believed, for the epoch's batches."""
        if self.parts.believed and self.steps >= self.begins:
            self._beliefs = 1 - self._suspicions

    def redrawn(self, batches: list[Tensor], epoch: int, generator: torch.Generator) -> list[Tensor]:
        """The usual batches, with more of the labels that are believed; checked samples stay as many as they are."""
        beliefs, share, trusted = self._beliefs, self.parts.believed, self.setting.trusted
        if beliefs is None:
            return batches
        size = self.setting.batch_size or self.setting.num_samples
        self.objective.doubts.often = how_often(beliefs, share, size, trusted)
        return more_believed(batches, beliefs, share, generator, trusted)

    @property
    def _boosts(self) -> bool:
        """Whether the next step is boosted."""
        return self.parts.any and self.steps >= self.begins

    @property
    def inner(self) -> Plain:
        """The plain method, whose objective is that of :class:`.boosted_loss.BoostedLoss`."""
        return self.plain

    @property
    def inner_model(self) -> nn.Module:
        """The network that is trained, or all of them as one."""
        return self.plain.setting.model

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch."""
        with self._drawn_anew():
            rows = self.prepared(x, y, ids)
            assert rows is not None
            report = self.plain.step(*rows)
        return self.completed(report, y, ids)

    @contextlib.contextmanager
    def _drawn_anew(self) -> Iterator[None]:
        """What fails inside has drawn nothing."""
        drawn = self.setting.generator.get_state()
        try:
            yield
        except BaseException:
            self.setting.generator.set_state(drawn)
            raise

    def prepared(self, x: Inputs, y: Tensor, ids: Tensor, *, fixed: bool = False) -> Rows | None:
        """The rows that the networks are shown; the objective is told what they are.

        Fixed are those of one network that is told guesses, once the boost has begun, unless labels are doubted by the
        loss: how strongly is known only after the step.
        """
        refuse_no_labels(y)
        ids = checked_positions(ids, y, self.setting.num_samples)
        self.plain.before_step()  # labels are doubted by the adjuster as it is in this step
        boosts = self._boosts
        if fixed and not (boosts and self._is_fixable):
            return None
        views = views_of(self, x) if self.views else (x,)
        with self._drawn_anew():
            rows, shown = self._boosted(views, y, ids) if boosts else self._usual(views[0], y, ids)
        times = sum(len(part) for part in rows) // len(y) if boosts else len(rows)
        self._told = shown
        if fixed:
            self.objective.fix(shown)
        else:
            self.objective.shown = shown
        return rows[0] if len(rows) == 1 else rows, _repeated(y, times), ids.repeat(times)

    @property
    def _is_fixable(self) -> bool:
        parts = self.parts
        return len(self.members) == 1 and parts.guesses and parts.judge == "guess" and parts.doubt != "loss"

    def completed(self, report: StepReport, y: Tensor, ids: Tensor) -> StepReport:
        """Have the averages follow, and remember how strongly each label is doubted."""
        if self._committee is not None and self._committee.averages is not None:
            self._committee.follow(min(self.parts.ema, self.steps / (self.steps + 9)))
        ids, judged, fields = ids.long(), self.objective.seen, report.hyperparameters
        guess = self._told.guesses[0] if self._told is not None and self._told.settled else None
        if guess is not None:
            judged, fields = guess.logits, {**fields, SUSPICION: guess.doubts}
            self.objective.doubts.remember(judged, y, ids)
        assert judged is not None
        self._suspicions[ids] = fields[SUSPICION].to(self._suspicions.dtype)
        return replace(report, loss=report.loss / len(self.members), hyperparameters=fields, rivals=rivals(judged, y))

    def _usual(self, x: Any, y: Tensor, ids: Tensor) -> tuple[tuple[Any, ...], Shown]:
        """The plain adjusted loss of every network."""
        count = len(self.members)
        return (x,) * count, Shown(y, ids, [None] * count, [None] * count, boosted=False)

    def _boosted(self, views: tuple[Any, ...], y: Tensor, ids: Tensor) -> tuple[tuple[Any, ...], Shown]:
        """Every network's rows, and what they are."""
        usual, strong = views[0], views[1:]
        guesses, trusted = self._guesses(usual, y, ids), self.objective.doubts.trusted
        rows: list[Any] = []
        mixtures: list[Mixture | None] = []
        for _ in self.members:
            mixture = None
            own = usual
            if self._mixer is not None and self.parts.mixup:
                share = beta_share(self.parts.mixup, self.setting.generator)
                mixture = Mixture(partners(len(y), self.setting.generator, y.device), share)
                own = self._mixer(usual, mixture.partners, share)
            mixtures.append(mixture)
            rows.append(torch.cat([own, *strong]) if strong else own)
        right, settled = None if trusted is None else trusted[ids], self._is_fixable
        return tuple(rows), Shown(y, ids, mixtures, guesses, bool(strong), right=right, settled=settled)

    @torch.no_grad()
    def _guesses(self, x: Any, y: Tensor, ids: Tensor) -> list[Guess | None]:
        """What every network is told: by the average of its own weights, or by the other network."""
        count, parts = len(self.members), self.parts
        if not parts.guesses:
            return [None] * count
        averages = None if self._committee is None else self._committee.averages
        found = []
        for network in self.members if averages is None else list(averages):
            with evaluating(network) if averages is None else contextlib.nullcontext():  # averages are never trained
                logits = at_least_float32(call(network, faster_layout(network, x), len(y)))
            doubted, chances = self.objective.doubts(self.objective.serving, logits, y, ids)
            found.append(
                guessed(
                    logits,
                    doubted,
                    temperature=parts.temperature,
                    confidence=parts.confidence,
                    suspicion=parts.suspicion,
                    certain=parts.certain,
                    unsure=parts.unsure,
                    ramp=linear_ramp(self.steps - self.begins, parts.ramp * self.setting.total_steps),
                    chances=chances,
                )
            )
        return [found[(number + 1) % count] for number in range(count)]

    def state_dict(self) -> dict[str, Any]:
        """What the plain method needs, and the source of random numbers."""
        if self._noted is not None:
            self._noted.check()
        return {
            "plain": self.plain.state_dict(),
            "doubts": {name: value.clone() for name, value in self.objective.doubts.state_dict().items()},
            "generator": self.setting.generator.get_state(),
            **({"suspicions": self._suspicions.clone(), "beliefs": self._beliefs} if self.parts.believed else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.plain.load_state_dict(state["plain"])
        self.objective.doubts.load_state_dict(state["doubts"])
        self.setting.generator.set_state(state["generator"])
        if self.parts.believed:
            self._suspicions.copy_(state["suspicions"])
            beliefs = state["beliefs"]
            self._beliefs = None if beliefs is None else beliefs.to(self._suspicions)


def _repeated(y: Tensor, times: int) -> Tensor:
    return y.repeat(times, *([1] * (y.dim() - 1)))


def _networks(options: Mapping[str, Any]) -> Networks:
    return Networks(options["networks"], averaged=options["ema"] > 0)


def _committee(model: nn.Module, parts: Parts) -> Committee | None:
    """The model as a committee, where the parts ask for one."""
    wanted = Networks(parts.networks, averaged=parts.ema > 0)
    if wanted.plain:
        return None
    fits = isinstance(model, Committee) and len(model.members) == wanted.count
    if not isinstance(model, Committee) or not fits or (wanted.averaged and model.averages is None):
        raise OptionError(
            f"a boosted method with networks={parts.networks} and ema={parts.ema:g} trains a committee, but the model "
            f"is a {type(model).__name__}: give narl.models.committee.Committee(members, averaged={wanted.averaged}), "
            "or networks=1 and ema=0"
        )
    return model


def spec(plain: MethodSpec) -> MethodSpec:
    """The boosted form of an adjusted or transferred loss.

    Args:
        plain: its specification; what it makes takes ``wrap``.

    Returns:
        That of the boosted form, with a plus at the end of its name.

    Example:
        >>> from narl.train import methods
        >>> methods.get("A-SL+").networks_for({"networks": 2})
        Networks(count=2, averaged=True)
    """

    def make(setting: Setting, **options: Any) -> Boosted:
        parts = Parts(**{name: options.pop(name) for name in OPTIONS})

        of_data = {"data": setting.kind} if plain.needs_adjuster else {}

        def inside(own: Setting, wrap: Wrap) -> Plain:
            made = plain.make(own, wrap=wrap, **of_data, **options)
            assert isinstance(made, (Adjusted, Transferred))
            made.name = f"{plain.name}+"  # so it is called where an engine does its steps
            return made

        return Boosted(setting, parts, inside)

    return replace(
        plain,
        name=f"{plain.name}+",
        make=make,
        description=f"{plain.description}; boosted by mixup, strong views, guesses and averaged weights",
        options={**{name: one for name, one in plain.options.items() if name != "noise_rate"}, **OPTIONS},
        networks=_networks,
    )
