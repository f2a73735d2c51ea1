"""DivideMix: samples that look mislabelled lose their labels, and two networks guess them for each other."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Generator, Tensor

from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs
from narl.errors import OptionError
from narl.train.batches import sizes
from narl.train.methods.base import Look, Setting, views_of
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.loss_mixture import clean_probability, scaled_losses
from narl.train.methods.mixing import Mixer, beta_share, linear_ramp, mixed, one_hot, partners, sharpened
from narl.train.methods.modes import evaluating
from narl.train.methods.pair import TWO, PairMethod, mean_prediction
from narl.train.methods.spec import MethodSpec, Option

_WARMUP = 10
_TINY = 1e-30


def confidence_penalty(logits: Tensor) -> Tensor:
    r"""The negative entropy of the predictions, :math:`\frac1N \sum_i \sum_k p_{ik} \log p_{ik}`.

    Example:
        >>> confidence_penalty(torch.zeros(1, 2))
        tensor(-0.6931)

    Reference: Pereyra, Tucker, Chorowski, Kaiser, Hinton. Regularizing neural networks by penalizing confident output
    distributions. 2017.
    """
    log_p = logits.log_softmax(dim=1)
    return (log_p.exp() * log_p).sum(dim=1).mean()


def imbalance(logits: Tensor) -> Tensor:
    r"""How far the mean prediction :math:`\bar p` of a batch is from all classes alike.

    .. math:: \sum_k \frac1c \log \frac{1/c}{\bar p_k}

    Example:
        >>> imbalance(torch.zeros(2, 3)).abs() < 1e-6
        tensor(True)

    Reference: Tanaka, Ikami, Yamasaki, Aizawa. Joint optimization framework for learning with noisy labels. CVPR 2018.
    """
    count, c = logits.shape
    log_mean = logits.log_softmax(dim=1).logsumexp(dim=0) - math.log(count)
    return -(log_mean + math.log(c)).mean()


def refined(labels: Tensor, predictions: Tensor, clean: Tensor, temperature: float) -> Tensor:
    r"""Co-refinement: the given label as far as it is trusted, the prediction for the rest; sharpened.

    .. math:: \operatorname{sharpen}\big(w\, y + (1 - w)\, p,\ T\big)

    Args:
        labels: y, probabilities, ``(N, c)``.
        predictions: p, ``(N, c)``.
        clean: w, the probability of the label being right, by the other network, ``(N,)``.
        temperature: T.

    Returns:
        ``(N, c)``.

    Example:
        >>> refined(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.8]), 1.0)
        tensor([[0.8000, 0.2000]])
    """
    return sharpened(torch.lerp(predictions, labels, clean.unsqueeze(1)), temperature)


def divided(clean: Tensor, threshold: float, least: int) -> tuple[Tensor, Tensor]:
    """Positions of the samples that keep their labels, and of the others.

    Args:
        clean: each one's probability of a right label, ``(N,)``.
        threshold: above which the label is kept.
        least: so many keep it in any case, the likeliest: an epoch without labels would teach nothing.

    Example:
        >>> divided(torch.tensor([0.9, 0.2, 0.6]), 0.5, 1)
        (tensor([0, 2]), tensor([1]))
        >>> divided(torch.tensor([0.1, 0.3, 0.2]), 0.5, 1)
        (tensor([1]), tensor([0, 2]))
    """
    kept = clean > threshold
    if int(kept.sum()) < least:
        kept = torch.zeros_like(kept)
        kept[clean.argsort(descending=True, stable=True)[:least]] = True
    return kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)


@final
class DivideMix(PairMethod):
    r"""Two networks that divide the samples for each other and learn from the labelled and the unlabelled part.

    After a warm-up with cross entropy, each epoch begins with a look at all samples: a mixture of two normal
    distributions of a network's losses gives each sample the probability that its label is right. Where the *other*
    network holds a label for wrong, it is left aside. Targets of labelled samples are co-refined (:func:`refined`),
    those of unlabelled ones are the sharpened mean prediction of both networks for two views. All are mixed (MixMatch):

    .. math:: L = L_x + \lambda_u L_u + L_\text{reg}

    with the cross entropy :math:`L_x` of the labelled part, the mean squared error :math:`L_u` of the unlabelled part,
    and :func:`imbalance`.

    Args:
        setting: what there is to work with; its model is a :class:`narl.models.committee.Committee` of two.
        warmup: epochs with plain cross entropy; None: 10, but at most a third of all.
        penalty: whether confident predictions are penalised in the warm-up: for asymmetric noise, whose losses would
            otherwise not differ.
        threshold: the probability above which a label is kept.
        temperature: of the sharpening.
        alpha: of the Beta distribution that the larger share of a mixture is drawn from.
        unlabelled: :math:`\lambda_u`, the weight of the unlabelled part.
        rampup: epochs after the warm-up in which that weight rises to its value.
        remembered: epochs whose losses are averaged before the mixture is fitted.

    Its reports give the probability of being ``clean``, the mean of both networks', 1 in the warm-up.

    Example: see :func:`narl.train.train`; a step needs :meth:`begin_epoch` and :meth:`rows` before it.

    Reference: Li, Socher, Hoi, ICLR 2020.
    """

    fields = ("clean",)
    views = ("usual", "usual")

    def __init__(
        self,
        setting: Setting,
        *,
        warmup: int | None = None,
        penalty: bool = False,
        threshold: float = 0.5,
        temperature: float = 0.5,
        alpha: float = 4.0,
        unlabelled: float = 25.0,
        rampup: float = 16.0,
        remembered: int = 1,
    ) -> None:
        super().__init__(setting)
        self.warmup = _warmup(setting.epochs) if warmup is None else warmup
        if setting.epochs is not None and self.warmup >= setting.epochs > 1:
            raise OptionError(
                f"a warm-up of {self.warmup} epochs leaves nothing of a training of {setting.epochs} to DivideMix: "
                "give fewer with the option warmup, or train longer"
            )
        self.penalty, self.threshold, self.temperature = penalty, threshold, temperature
        self.alpha, self.unlabelled, self.rampup, self.remembered = alpha, unlabelled, rampup, remembered
        self.mix = Mixer(setting.kind, setting.shape, alpha)
        self.clean: Tensor | None = None
        self._losses: list[Tensor] = []
        self._batches: list[tuple[int, int, float]] = []
        self._at = 0

    def begin_epoch(self, epoch: int, look: Look) -> None:
        """After the warm-up: let each network judge all labels."""
        super().begin_epoch(epoch, look)
        self._at = 0
        if epoch < self.warmup:
            return
        labels = self.setting.labels
        if labels is None or self.setting.batch_size is None:
            raise OptionError("DivideMix divides the training set: give the setting its labels and the batch_size")
        losses = [scaled_losses(cross_entropy(look(member), labels)) for member in self.members]
        self._losses = [*self._losses, torch.stack(losses)][-self.remembered :]
        self.clean = torch.stack([clean_probability(own) for own in torch.stack(self._losses).mean(dim=0)])

    def rows(self, epoch: int, generator: Generator) -> list[Tensor] | None:
        """Batches for the first network, then for the second: labelled samples, and as many unlabelled ones."""
        if self.clean is None or epoch < self.warmup:
            return None
        assert self.setting.batch_size is not None
        half = max(self.setting.batch_size // 2, 1)
        found: list[Tensor] = []
        self._batches = []
        for network in range(len(self.members)):
            # By the other one's judgement: a network would trust the labels that it has memorised itself.
            own = self._divided(self.clean[1 - network].cpu(), half, generator)
            self._batches += [(network, kept, at / len(own)) for at, (_, kept) in enumerate(own)]
            found += [rows for rows, _ in own]
        return found

    def _divided(self, clean: Tensor, half: int, generator: Generator) -> list[tuple[Tensor, int]]:
        """A network's batches, with the number of labelled samples, which come first."""
        labelled, others = divided(clean, self.threshold, min(half, len(clean)))
        labelled = labelled[torch.randperm(len(labelled), generator=generator)]
        waiting = others[:0]
        batches = []
        for part in torch.split(labelled, sizes(len(labelled), half)):
            count = min(len(part), len(others))
            if len(waiting) < count:
                waiting = others[torch.randperm(len(others), generator=generator)]
            batches.append((torch.cat([part, waiting[:count]]), len(part)))
            waiting = waiting[count:]
        return batches

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train both networks in the warm-up, then the one whose batch it is."""
        first, second = views_of(self, x)
        if self.clean is None or self.epoch < self.warmup:
            report = self._warm_up(first, second, y)
        else:
            report = self._semi_supervised(first, second, y, ids, *self._batches[self._at])
        self._at += 1
        return report

    def _warm_up(self, first: Tensor, second: Tensor, y: Tensor) -> StepReport:
        def objective() -> tuple[Tensor, list[Tensor]]:
            logits = [self.logits(member, x, y) for member, x in zip(self.members, (first, second), strict=True)]
            loss = sum((cross_entropy(each, y).mean() for each in logits), logits[0].new_zeros(()))
            if self.penalty:
                loss = loss + sum(confidence_penalty(each) for each in logits)
            return loss, logits

        loss, logits = self.descend(objective)
        return self.report(loss / 2, mean_prediction(logits), y, clean=torch.ones(len(y), device=loss.device))

    def _semi_supervised(
        self, first: Tensor, second: Tensor, y: Tensor, ids: Tensor, network: int, kept: int, done: float
    ) -> StepReport:
        assert self.clean is not None
        trusted = self.clean[1 - network, ids[:kept]]
        weight = self.unlabelled * linear_ramp(self.epoch + done - self.warmup, self.rampup)
        generator = self.setting.generator
        order, share = partners(2 * len(y), generator, y.device), beta_share(self.alpha, generator)

        def objective() -> tuple[Tensor, Tensor]:
            x = torch.cat([first, second])
            with torch.no_grad():
                guesses = self._guesses(network, x, y, kept)
                labels = one_hot(y[:kept], self.setting.num_classes)
                own = refined(labels, guesses[:kept], trusted, self.temperature)
                targets = torch.cat([own, sharpened(guesses[kept:], self.temperature)]).repeat(2, 1)
            member = self.members[network]
            logits = self.logits(member, self.mix(x, order, share), targets)
            targets = mixed(targets, order, share)
            return self._loss(logits, targets, len(y), kept, weight), guesses

        loss, guesses = self.descend(objective)
        logits = guesses.clamp(min=_TINY).log()  # a class that nobody thinks possible
        return self.report(loss, logits, y, clean=self.clean[:, ids].mean(dim=0))

    def _guesses(self, network: int, x: Tensor, y: Tensor, kept: int) -> Tensor:
        """What is thought of the samples, the mean over two views: by the network, of unlabelled ones by both."""
        count = len(y)
        predictions = self.logits(self.members[network], x, y.repeat(2, *[1] * (y.dim() - 1))).softmax(dim=1)
        means = (predictions[:count] + predictions[count:]) / 2
        if kept == count:
            return means
        other, views = self.members[1 - network], torch.cat([x[kept:count], x[count + kept :]])
        with evaluating(other):
            theirs = self.logits(other, views, y[kept:].repeat(2, *[1] * (y.dim() - 1))).softmax(dim=1)
        theirs = (theirs[: count - kept] + theirs[count - kept :]) / 2
        return torch.cat([means[:kept], (means[kept:] + theirs) / 2])

    def _loss(self, logits: Tensor, targets: Tensor, count: int, kept: int, weight: float) -> Tensor:
        """Of mixed samples: two views one after the other, in each the labelled part first."""
        loss = imbalance(logits)
        by_view, wanted = logits.view(2, count, -1), targets.view(2, count, -1)
        loss = loss + cross_entropy(by_view[:, :kept].flatten(0, 1), wanted[:, :kept].flatten(0, 1)).mean()
        if kept < count:
            errors = by_view[:, kept:].softmax(dim=2) - wanted[:, kept:]
            loss = loss + weight * errors.square().mean()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Steps, random numbers, how the samples are divided, and the losses that are remembered."""
        own = {"clean": self.clean, "losses": self._losses, "at": self._at}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        device = self.setting.device
        self.clean = None if state["clean"] is None else state["clean"].clone().to(device)
        self._losses = [losses.clone().to(device) for losses in state["losses"]]
        self._at = state["at"]


def _warmup(epochs: int | None) -> int:
    return _WARMUP if epochs is None else max(1, min(_WARMUP, epochs // 3))


SPEC = MethodSpec(
    name="DivideMix",
    make=DivideMix,
    description="two networks that set doubtful labels aside for each other, and guess and mix what is left",
    networks=TWO,
    options={
        "warmup": Option(
            None, "epochs with plain cross entropy at the beginning; none: 10, at most a third of all", int, low=1
        ),
        "penalty": Option(False, "penalise confident predictions in the warm-up: for asymmetric noise"),
        "threshold": Option(0.5, "probability of being right from which on a label is kept", low=0, high=1),
        "temperature": Option(0.5, "of the sharpening of guesses", low=0, high=1),
        "alpha": Option(4.0, "of the Beta distribution of a mixture's shares; 0: nothing is mixed", low=0),
        "unlabelled": Option(25.0, "weight of the samples whose labels are set aside", low=0),
        "rampup": Option(16.0, "epochs after the warm-up in which that weight rises to its value", low=0),
        "remembered": Option(1, "epochs whose losses are averaged to judge the labels", low=1, high=100),
    },
)
