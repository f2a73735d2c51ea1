"""Noise that depends on the sample: what a sample looks like decides which wrong label it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from narl.errors import NoiseError, OptionError, nearest
from narl.noise.arguments import check_other_classes, checked_rate, checked_std, generator
from narl.noise.labels import Indices, Labels, check_room, class_count, like, read, rows_by_class

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]

# Numbers that one block of rows may hold, in features as in scores: 32 MiB of float64, however large the data.
BLOCK_NUMBERS = 2**22


def instance(
    labels: Labels,
    rate: float,
    features: ArrayLike | Tensor,
    num_classes: int | None = None,
    *,
    seed: int | np.random.Generator = 0,
    projection: str = "per-class",
    std: float = 0.1,
) -> Labels:
    r"""Instance-dependent noise: each sample has its own flip rate, and its features decide where its label goes.

    .. math::
        q_i \sim \mathcal N(\eta, \sigma^2) \text{ truncated to } [0, 1], \qquad
        P(\tilde y_i = j) = q_i \operatorname{softmax}_{k \ne y_i}(x_i W)_j \; (j \ne y_i), \qquad
        P(\tilde y_i = y_i) = 1 - q_i

    x is flattened and each feature standardised over the samples (a constant one becomes 0); W is ``(d, c)`` with
    entries from N(0, 1).

    The truncation moves the mean flip rate away from 0 and 1: with the default ``std`` of 0.1 it is 0.129 for
    ``rate=0.1``, 0.206 for 0.2, the rate itself to three digits from 0.3 to 0.7, and 0.920 for 1. ``std=0`` gives
    every sample the rate itself. ``rate=0`` means no noise: the labels come back unchanged, though the truncated
    distribution would flip some.

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        rate: the noise rate η, from 0 to 1.
        features: x, ``(N, ...)``: what the noise is to depend on, such as images or embeddings.
        num_classes: the number of classes c; None: the largest label plus one.
        seed: an int, or a numpy generator, which moves on.
        projection: ``"per-class"``: one W for each true label (the cited scheme); ``"shared"``: one W for all samples;
            ``"per-sample"``: a W for each sample, so that samples that look alike no longer get the same label.
        std: the spread σ of the flip rates.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> labels = np.arange(10_000) % 10
        >>> noisy = instance(labels, 0.4, np.random.default_rng(0).random((10_000, 3, 2, 2)))
        >>> print(f"{np.mean(noisy != labels):.1f}")
        0.4

    Reference: Xia, Liu, Han, Wang, Gong, Liu, Niu, Tao, Sugiyama. Part-dependent label noise: towards
    instance-dependent label noise. NeurIPS 2020.
    """
    rate, std = checked_rate(rate), checked_std(std)
    if projection not in PROJECTIONS:
        raise OptionError(
            f"projection is {projection!r}, which does not exist: {nearest(str(projection), PROJECTIONS)}"
        )
    indices, count = read(labels), class_count(labels, num_classes)
    check_other_classes(count, rate)
    check_room(labels, count)
    rng = generator(seed)
    table = _as_table(features, len(indices))
    if not indices.size:
        return like(labels, indices)
    standardised = Standardised.of(table)
    if rate == 0:
        return like(labels, indices)
    flip_rates = truncated_normal(rate, std, len(indices), rng)
    uniform = rng.random(len(indices))
    noisy = np.empty_like(indices)
    for rows, scores in PROJECTIONS[projection](indices, standardised, count, rng):
        cumulative = label_probabilities(indices[rows], flip_rates[rows], scores).cumsum(axis=1)
        # The number of labels whose span lies at or below the draw; divided by its end a row ends above every draw.
        noisy[rows] = (cumulative / cumulative[:, -1:] <= uniform[rows, None]).sum(axis=1)
    return like(labels, noisy)


def truncated_normal(mean: float, std: float, size: int, rng: np.random.Generator) -> Floats:
    """Draws ``(size,)`` from a normal distribution cut off outside [0, 1], by its inverse distribution function."""
    from scipy.special import ndtr, ndtri

    uniform = rng.random(size)
    if std == 0:
        return np.full(size, mean)
    below, within = ndtr(-mean / std), ndtr((1 - mean) / std) - ndtr(-mean / std)
    draws: Floats = np.clip(mean + std * ndtri(below + uniform * within), 0, 1)
    return draws


def label_probabilities(labels: Indices, flip_rates: Floats, scores: Floats) -> Floats:
    """The probability of each label ``(n, c)``, from true labels and flip rates ``(n,)`` and scores ``(n, c)``."""
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    odds = np.exp(others - others.max(axis=1, keepdims=True))
    probabilities: Floats = flip_rates[:, None] * odds / odds.sum(axis=1, keepdims=True)
    probabilities[rows, labels] = 1 - flip_rates
    return probabilities


def blocks(rows: Rows, width: int) -> Iterator[Rows]:
    """``rows`` in parts of at most ``BLOCK_NUMBERS`` numbers, at ``width`` numbers a row."""
    size = max(1, BLOCK_NUMBERS // width)
    return (rows[start : start + size] for start in range(0, len(rows), size))


@final
@dataclass(frozen=True, eq=False)
class Standardised:
    """Features ``(N, d)`` to be read some rows at a time, each feature with mean 0 and variance 1 over all N.

    Features are first brought to [0, 1] by their smallest value and their span: there a constant one is exactly 0,
    with no rounding that a division by a tiny deviation would blow up, and none of the rest has a tiny deviation.
    """

    table: NDArray[Any]
    low: Floats
    span: Floats
    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, table: NDArray[Any]) -> Standardised:
        """Measure a table of features ``(N, d)``."""
        with np.errstate(invalid="ignore", over="ignore"):  # answered by the next lines
            low, high = table.min(axis=0).astype(np.float64), table.max(axis=0).astype(np.float64)
            span = high - low
        wrong = np.flatnonzero(~np.isfinite(span))
        if wrong.size:
            raise _not_finite(table, int(wrong[0]))
        zero, one = np.zeros_like(span), np.ones_like(span)
        scaled = cls(table, low, np.where(span > 0, span, 1), mean=zero, deviation=one)
        total, squares = zero.copy(), zero.copy()
        for rows in blocks(np.arange(len(table)), table.shape[1]):
            block = scaled[rows]
            total += block.sum(axis=0)
            squares += np.square(block).sum(axis=0)
        mean = total / len(table)
        deviation = np.sqrt(np.where(span > 0, squares / len(table) - np.square(mean), 1))
        return cls(table, scaled.low, scaled.span, mean, deviation)

    @property
    def width(self) -> int:
        """The number of features d."""
        return len(self.low)

    def __getitem__(self, rows: Rows) -> Floats:
        """The standardised features of some rows, ``(n, d)``."""
        block = self.table[rows].astype(np.float64)
        block -= self.low
        block /= self.span
        block -= self.mean
        block /= self.deviation
        return block


def _per_class(
    labels: Indices, features: Standardised, num_classes: int, rng: np.random.Generator
) -> Iterator[tuple[Rows, Floats]]:
    for rows_of_class in rows_by_class(labels, num_classes):
        weights = rng.standard_normal((features.width, num_classes))
        for rows in blocks(rows_of_class, max(weights.shape)):
            yield rows, features[rows] @ weights


def _shared(
    labels: Indices, features: Standardised, num_classes: int, rng: np.random.Generator
) -> Iterator[tuple[Rows, Floats]]:
    weights = rng.standard_normal((features.width, num_classes))
    for rows in blocks(np.arange(len(labels)), max(weights.shape)):
        yield rows, features[rows] @ weights


def _per_sample(
    labels: Indices, features: Standardised, num_classes: int, rng: np.random.Generator
) -> Iterator[tuple[Rows, Floats]]:
    # A sum of independent normal draws weighted by x is normal with variance |x|², independently for each class. So the
    # scores are drawn as such: the same distribution, without a (d, c) matrix for each sample that is used only once.
    for rows in blocks(np.arange(len(labels)), max(features.width, num_classes)):
        lengths = np.linalg.norm(features[rows], axis=1, keepdims=True)
        yield rows, lengths * rng.standard_normal((len(rows), num_classes))


# Each yields rows and their scores x_i W, (n, c), until every sample has had its turn.
PROJECTIONS: Mapping[
    str, Callable[[Indices, Standardised, int, np.random.Generator], Iterator[tuple[Rows, Floats]]]
] = {"per-class": _per_class, "shared": _shared, "per-sample": _per_sample}


def _as_table(features: ArrayLike | Tensor, length: int) -> NDArray[Any]:
    if isinstance(features, Tensor):
        # numpy has no bfloat16, and is slow in float16
        short = features.is_floating_point() and features.element_size() < 4
        features = (features.float() if short else features).detach().cpu().numpy()
    try:
        array = np.asarray(features)
    except ValueError as ragged:
        raise NoiseError(f"features do not form one array ({ragged}): bring all samples to one shape") from ragged
    if array.dtype.kind not in "biuf":
        raise NoiseError(f"features are {array.dtype}, but real numbers are needed: convert them to float32")
    if array.ndim == 0 or len(array) != length:
        raise NoiseError(
            f"features have shape {array.shape}, but there are {length} labels: give one row of features a label"
        )
    width = int(np.prod(array.shape[1:]))
    if width == 0:
        raise NoiseError(f"features have shape {array.shape}, which holds no number a sample: give at least one")
    return array.reshape(length, width)


def _not_finite(table: NDArray[Any], feature: int) -> NoiseError:
    column = table[:, feature]
    bad = np.flatnonzero(~np.isfinite(column))
    if not bad.size:
        return NoiseError(
            f"features: number {feature} of a sample runs from {column.min()} to {column.max()}, too far for float64: "
            f"scale it down"
        )
    return NoiseError(
        f"features: number {feature} of sample {bad[0]} is {column[bad[0]]}, but features must be finite: "
        f"fill it, or leave out the samples where numpy.isfinite(features) is False"
    )
