"""Forward correction: what the classifier believes about the true class, seen through the noise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from narl.bilevel.calls import call
from narl.bilevel.hypergradient import checked_clean_batch
from narl.checks import at_least_float32, check_logits, check_targets
from narl.errors import NoiseError, SampleIdsError
from narl.noise.matrices import checked_matrix
from narl.train.methods.base import Look, LossMethod, Setting
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.modes import evaluating
from narl.train.methods.spec import MethodSpec, Option

Matrix: TypeAlias = ArrayLike | Tensor | os.PathLike[str]

_CLEAN_DRAWS = 50  # batches; a clean set that is drawn from at random is seen nearly whole
_SMALLEST = 1e-8  # of an estimated matrix: a label that was thought impossible must not have an infinite loss
_RIDGE, _CALIBRATION_STEPS = 1e-6, 200
_MOST_ROUNDS, _STILL = 1000, 1e-7  # of expectation maximisation
_MOST_NUMBERS = 10**8  # of predictions that a matrix is counted from: of more, samples at even distances
_WAYS = ("surest", "counted")
_FEW_EPOCHS = 3


def forward_loss(logits: Tensor, targets: Tensor, log_matrix: Tensor) -> Tensor:
    r"""Cross entropy of the noisy label, whose probabilities are the prediction's after the noise.

    .. math:: \ell(z, \tilde y) = -\log \sum_i p_i\, T_{i \tilde y}, \qquad p = \operatorname{softmax}(z)

    Args:
        logits: ``(N, c)``.
        targets: given labels, class indices ``(N,)`` or probabilities ``(N, c)`` (then the expected loss of a label
            drawn from them; this takes ``(N, c, c)`` numbers).
        log_matrix: logarithms of the transition matrix, ``(c, c)``, rows true, columns given; −∞ is allowed.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> noise = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> forward_loss(torch.tensor([[50.0, 0.0]]), torch.tensor([1]), noise.log())
        tensor([0.6931])

    Reference: Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: a loss correction
    approach. CVPR 2017.
    """
    check_logits(logits)
    check_targets(targets, num_classes=logits.shape[1], num_samples=logits.shape[0])
    log_p = at_least_float32(logits).log_softmax(dim=1)
    log_matrix = log_matrix.to(log_p)
    if targets.dim() == 1:
        return -torch.logsumexp(log_p + log_matrix.t()[targets.long()], dim=1)
    return -(targets.to(log_p) * torch.logsumexp(log_p.unsqueeze(2) + log_matrix, dim=1)).sum(dim=1)


def anchor_matrix(predictions: Tensor) -> Tensor:
    r"""The transition matrix, from predictions of the noisy label alone.

    A sample that surely belongs to class k has the noisy label j with probability :math:`T_{kj}`: its prediction is the
    matrix's row. As such an anchor serves the sample at the 97th percentile of class k's probability; the few above it
    may be outliers. In a class that holds less than a tenth of the samples, three tenths of its expected members are
    passed over instead.

    Args:
        predictions: probabilities of the noisy labels, ``(N, c)``.

    Returns:
        ``(c, c)``, float64, each row with the sum 1.

    Example:
        >>> anchor_matrix(torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]])).float()
        tensor([[0.8000, 0.2000],
                [0.1000, 0.9000]])

    Reference: Patrini et al., CVPR 2017 (whose percentile is the same for all classes).
    """
    p = predictions.double()
    passed_over = torch.minimum(torch.full_like(p[0], 0.03 * (len(p) - 1)), 0.3 * p.sum(dim=0)).long()
    order = p.argsort(dim=0, descending=True, stable=True)
    anchors = order.gather(0, passed_over.unsqueeze(0)).squeeze(0)
    return _normalised(p[anchors])


def clean_matrix(predictions: Tensor, labels: Tensor, surest: float = 1.0) -> Tensor:
    r"""The transition matrix, from predictions of the noisy label on samples whose true class is known.

    .. math:: T_{kj} = \frac{1}{|S_k|} \sum_{i \in S_k} p(\tilde y = j \mid x_i)

    A classifier that mistakes classes for each other blurs the rows by that, as if there were more noise. It does least
    where it is sure, so :math:`S_k` are the samples of class k with the highest probability of the label k.

    Args:
        predictions: probabilities of the noisy labels, ``(N, c)``.
        labels: true class indices ``(N,)`` or probabilities ``(N, c)``.
        surest: share of a class's samples that its row is read off, at least one of them.

    Returns:
        ``(c, c)``, float64, each row with the sum 1; a class without samples is taken for free of noise.

    Example:
        >>> clean_matrix(torch.tensor([[0.7, 0.3], [0.9, 0.1]]), torch.tensor([0, 0])).float()
        tensor([[8.0000e-01, 2.0000e-01],
                [1.0000e-08, 1.0000e+00]])

    Reference: Hendrycks, Mazeika, Wilson, Gimpel. Using trusted data to train deep networks on labels corrupted by
    severe noise. NeurIPS 2018 (all samples of a class).
    """
    p = predictions.double()
    members = labels.to(p) if labels.dim() == 2 else F.one_hot(labels.long(), p.shape[1]).to(p)
    rows = torch.eye(p.shape[1]).to(p)
    for k, (sureness, member) in enumerate(zip(p.t(), members.t(), strict=True)):
        order = sureness.argsort(descending=True, stable=True)
        shares = member[order]
        before = shares.cumsum(dim=0) - shares
        shares = shares * ((before < surest * shares.sum()) | (before == 0))
        if float(shares.sum()) > 0:
            rows[k] = shares @ p[order] / shares.sum()
    return _normalised(rows)


def counted_matrix(predictions: Tensor, given: Tensor, clean_predictions: Tensor, clean_labels: Tensor) -> Tensor:
    r"""The transition matrix, from the given labels of all training samples.

    The clean samples tell how probable each true class is, given a prediction of the noisy label: a temperature and a
    shift a class, :math:`q = \operatorname{softmax}(a \log p + b)`, by maximum likelihood. What the classifier mistakes
    is in q, and does not blur the matrix, which makes the given labels most probable:

    .. math:: T = \arg\max_T \sum_i \log \sum_k q_{ik}\, T_{k \tilde y_i}

    by expectation maximisation. It is for a classifier that has not learned wrong labels by heart; one that has makes
    too little of the noise.

    Args:
        predictions: probabilities of the noisy labels, ``(N, c)``.
        given: the noisy labels, class indices ``(N,)``.
        clean_predictions: probabilities of the noisy labels of clean samples, ``(M, c)``.
        clean_labels: their true class indices ``(M,)`` or probabilities ``(M, c)``.

    Returns:
        ``(c, c)``, float64, each row with the sum 1.

    Example:
        >>> sure = torch.eye(2).repeat(50, 1)
        >>> given = torch.cat([torch.zeros(20), torch.ones(80)]).long()
        >>> counted_matrix(sure, given, sure, torch.arange(2).repeat(50)).float()
        tensor([[0.2000, 0.8000],
                [0.2000, 0.8000]])
    """
    step = -(-predictions.numel() // _MOST_NUMBERS)
    known, wanted = _log(clean_predictions), clean_labels if clean_labels.dim() == 2 else clean_labels.long()
    scale = torch.zeros((), dtype=torch.float64, device=known.device, requires_grad=True)
    shift = torch.zeros(known.shape[1], dtype=torch.float64, device=known.device, requires_grad=True)
    search = torch.optim.LBFGS([scale, shift], max_iter=_CALIBRATION_STEPS, line_search_fn="strong_wolfe")

    def misfit() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(scale.exp() * known + shift, wanted) + _RIDGE * (scale.square() + shift.square().sum())
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        search.step(misfit)  # type: ignore[no-untyped-call]
    q, labels = (scale.exp() * _log(predictions[::step]) + shift).softmax(dim=1).detach(), given[::step].long()
    of_labels = F.one_hot(labels, q.shape[1]).double()
    matrix = 0.5 / q.shape[1] + 0.5 * torch.eye(q.shape[1]).to(q)
    for _ in range(_MOST_ROUNDS):
        shares = q * matrix.t()[labels]
        shares = shares / shares.sum(dim=1, keepdim=True)
        before, matrix = matrix, _normalised(shares.t() @ of_labels)
        if float((matrix - before).abs().max()) < _STILL:
            break
    return matrix


def _log(predictions: Tensor) -> Tensor:
    return predictions.detach().double().clamp(min=_SMALLEST).log()


def _normalised(matrix: Tensor) -> Tensor:
    raised = matrix.clamp(min=_SMALLEST)
    return raised / raised.sum(dim=1, keepdim=True)


def read_matrix(given: Matrix) -> Tensor:
    """A transition matrix from numbers or from a file.

    Args:
        given: a table of numbers, rows true, columns given label; or a ``.npy`` file, or a text file with commas.

    Returns:
        ``(c, c)``, float64.

    Raises:
        NoiseError: no file that can be read, or no transition matrix.

    Example:
        >>> read_matrix([[0.9, 0.1], [0.2, 0.8]])
        tensor([[0.9000, 0.1000],
                [0.2000, 0.8000]], dtype=torch.float64)
    """
    if not isinstance(given, (str, os.PathLike)):
        return torch.from_numpy(checked_matrix(given).copy())
    path = Path(given)
    try:
        is_array = path.suffix == ".npy"
        table = np.load(path, allow_pickle=False) if is_array else np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NoiseError(
            f"no transition matrix can be read from {path} ({reason}): give a .npy file, or a text file with one row "
            "a true class and commas between the numbers"
        ) from error
    return torch.from_numpy(checked_matrix(table).copy())


@final
class Forward(LossMethod):
    """Forward correction of cross entropy, with a transition matrix that is given or estimated.

    To estimate it, the first third of the training uses plain cross entropy, which learns the noisy labels'
    probabilities; then the matrix is read off the predictions, once: on the clean set if there is one, at anchor points
    of the training set if not.

    Args:
        setting: what there is to work with.
        matrix: the transition matrix ``(c, c)``, rows true, columns given label, or a file with it; None: estimate it.
        surest: see :func:`clean_matrix`.
        estimate: with a clean set: ``"surest"``, or ``"counted"``: :func:`counted_matrix`, at the epoch's end that is
            nearest to a third; in a training of one epoch or two, or by steps alone, as ``"surest"``.

    ``matrix`` is the matrix in use, None before it has been estimated.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5]), None, total_steps=30, num_samples=10,
        ...                   generator=torch.Generator())
        >>> method = Forward(setting)
        >>> ids = torch.arange(10)
        >>> reports = [method.step(torch.randn(10, 4), ids % 2, ids) for _ in range(10)]
        >>> method.matrix.shape
        torch.Size([2, 2])
    """

    distributed = True

    def __init__(
        self, setting: Setting, matrix: Matrix | None = None, surest: float = 0.1, estimate: str = "surest"
    ) -> None:
        super().__init__(setting)
        self.surest = surest
        can_count = setting.clean is not None and setting.labels is not None and (setting.epochs or 0) >= _FEW_EPOCHS
        self._counts = estimate == "counted" and can_count
        self.matrix: Tensor | None = None
        self._log_matrix: Tensor | None = None
        self._predictions: Tensor | None = None
        if matrix is not None:
            self._use(self._checked(read_matrix(matrix)))
        elif setting.clean is None:
            # Half precision: an anchor's probability needs three digits, and there are N · c of them.
            table = torch.full((setting.num_samples, setting.num_classes), torch.nan, dtype=torch.float16)
            self._predictions = table.to(setting.device)
        self._estimate_at = max(1, round(setting.total_steps / 3))

    @property
    def phase(self) -> str | None:
        """Before or after the matrix is known; the step that estimates it is like no other."""
        if self._log_matrix is not None:
            return "corrected"
        return None if self._is_due else "uncorrected"

    @property
    def _is_due(self) -> bool:
        """Whether the matrix is estimated in this step."""
        return not self._counts and self.steps + 1 >= self._estimate_at

    @property
    def asks_more(self) -> bool:
        """It can do without a look at all samples."""
        return False

    @torch.no_grad()
    def begin_epoch(self, epoch: int, look: Look) -> None:
        """Count the matrix, if no later epoch's beginning is nearer to a third of the training."""
        if not self._counts or self._log_matrix is not None or not epoch:
            return
        if self.steps + self.steps / epoch / 2 >= self._estimate_at:
            assert self.setting.labels is not None
            predictions = look(self.setting.model).softmax(dim=1)
            self._use(counted_matrix(predictions, self.setting.labels, *self._clean_predictions()))

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """Cross entropy, corrected once there is a matrix, ``(N,)``."""
        if self._log_matrix is None:
            return cross_entropy(logits, y)
        return forward_loss(logits, y, self._log_matrix)

    def observe(self, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The margins; predictions are kept until the matrix is estimated from them."""
        if self._predictions is not None:
            predictions = at_least_float32(logits).softmax(dim=1).half()
            predictions, ids_of_all = self.setting.processes.gathered(predictions, ids)
            try:
                self._predictions[ids_of_all.long()] = predictions
            except IndexError:
                raise SampleIdsError(
                    f"sample ids run up to {int(ids.max())} but the training set has {len(self._predictions)} samples: "
                    "use each sample's position in the data set"
                ) from None
        if self._log_matrix is None and self._is_due:
            self._use(self._estimate())
        return super().observe(logits, y, ids)

    def state_dict(self) -> dict[str, Any]:
        """Steps, the matrix, and the predictions it will be estimated from."""
        return {**super().state_dict(), "matrix": self.matrix, "predictions": self._predictions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        predictions = state["predictions"]
        self._predictions = None if predictions is None else predictions.clone().to(self.setting.device)
        if state["matrix"] is not None:
            self._use(state["matrix"].clone())

    def _use(self, matrix: Tensor) -> None:
        self.matrix = matrix.to("cpu", torch.float64)
        self._log_matrix = self.matrix.log().float().to(self.setting.device)
        self._predictions = None

    def _checked(self, matrix: Tensor) -> Tensor:
        c = self.setting.num_classes
        if len(matrix) != c:
            raise NoiseError(
                f"matrix has {len(matrix)} rows but there are {c} classes: give one row and column a class"
            )
        impossible = (matrix.sum(dim=0) == 0) & (self.setting.class_counts.cpu() > 0)
        if bool(impossible.any()):
            label = int(impossible.nonzero()[0])
            raise NoiseError(
                f"by the matrix no class gets the label {label}, but {int(self.setting.class_counts[label])} samples "
                f"have it: column {label} needs an entry above 0"
            )
        return matrix

    def _estimate(self) -> Tensor:
        if self._predictions is None:
            return clean_matrix(*self._clean_predictions(), self.surest)
        seen = self._predictions[~self._predictions[:, 0].isnan()]
        return anchor_matrix(seen)

    def _clean_predictions(self) -> tuple[Tensor, Tensor]:
        """What the classifier, as it is when tested, makes of the clean set."""
        assert self.setting.clean is not None
        model = self.setting.model
        with evaluating(model):
            batches = [checked_clean_batch(self.setting.clean()) for _ in range(_CLEAN_DRAWS)]
            rows = [(at_least_float32(call(model, x, len(y))).softmax(dim=1), y) for x, y in batches]
        predictions, labels = torch.cat([p for p, _ in rows]), torch.cat([y for _, y in rows])
        predictions, labels = self.setting.processes.gathered(predictions, labels)
        return predictions, labels


SPEC = MethodSpec(
    name="Forward",
    make=Forward,
    description="cross entropy of the given labels, with the prediction passed through the noise's transition matrix",
    uses_clean=True,
    ignores_clean=lambda options: options.get("matrix") is not None,
    options={
        "matrix": Option(
            None, "transition matrix, rows true, columns given label: a file (.npy, .csv); none: estimated in training"
        ),
        "surest": Option(
            0.1, "share of a class's clean samples, the surest ones, that the matrix is estimated on", low=0, high=1
        ),
        "estimate": Option(
            "surest",
            "how, with a clean set: off its surest samples, or counted from all given labels",
            choices=_WAYS,
        ),
    },
)
