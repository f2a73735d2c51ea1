"""What a label is worth as evidence under symmetric noise, and the JS that gives it that weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from narl import losses
from narl.checks import at_least_float32, can_read
from narl.errors import LogitsError
from narl.theory.risks import checked_rate
from narl.theory.sums import checked_num_classes

_HALVINGS = 200
(_PI1,) = losses.get("js").hyperparameters
_WIDEST = 700.0  # exp of it is still a float


def even_probability(rate: float, num_classes: int) -> float:
    r"""The probability at which a label is as likely right as wrong, under symmetric noise.

    .. math:: \frac{p^*}{1 - p^*} = \frac{\eta}{(1 - \eta)(c - 1)}

    By Bayes' rule: a label whose class has the probability p beforehand is right with :math:`(1 - \eta) p` against
    :math:`\frac{\eta}{c - 1} (1 - p)`.

    Args:
        rate: η, the share of labels that moved to one of the other classes, below 1 - 1/c.
        num_classes: c, at least 2.

    Example:
        >>> [round(even_probability(rate, 200), 4) for rate in (0.0, 0.2, 0.4, 0.6)]
        [0.0, 0.0013, 0.0033, 0.0075]
    """
    c, rate = checked_num_classes(num_classes), checked_rate(rate, num_classes)
    wrong = rate / (c - 1)
    return wrong / (1 - rate + wrong)


def right_label(probability: Tensor, rate: float, num_classes: int) -> Tensor:
    r"""How likely a label is right, given the probability of its class, under symmetric noise.

    .. math:: P(y \text{ right} \mid p) = \frac{(1 - \eta)\, p}{(1 - \eta)\, p + \frac{\eta}{c - 1} (1 - p)}

    This is the weight that a label deserves, beside what cross entropy gives it, if p is what a classifier would say
    that knew right labels only.

    Args:
        probability: p, of any shape, from 0 to 1.
        rate: η, see :func:`even_probability`.
        num_classes: c.

    Returns:
        Of the same shape, at least float32.

    Example:
        >>> right_label(torch.tensor([0.1, 0.5]), rate=0.8, num_classes=10)
        tensor([0.2000, 0.6923])
    """
    even, p = even_probability(rate, num_classes), _checked_probability(probability)
    right = (1 - even) * p
    found: Tensor = right / (right + even * (1 - p)) if even else torch.ones_like(p)
    return found


def js_weight(rate: float, num_classes: int) -> float:
    r"""The π₁ with which JS weighs a label by half where it is as likely right as wrong, under symmetric noise.

    JS pulls at a label of probability p by so much of what cross entropy does, with :math:`r = \pi_1 / (1 - \pi_1)`:

    .. math:: w(p) = \frac{p \log(1 + r / p)}{\log(1 + r)}, \qquad w(p^*) = \frac12

    With many classes that is near :func:`right_label` for every p, and π₁ near :math:`2.5\, p^*`.

    Args:
        rate: η, see :func:`even_probability`.
        num_classes: c.

    Returns:
        π₁, within what JS can have: without noise its least, which is cross entropy.

    Example:
        >>> [round(js_weight(rate, 200), 4) for rate in (0.2, 0.4, 0.6)]
        [0.0032, 0.0084, 0.0189]
    """
    even = even_probability(rate, num_classes)
    if not even:
        return _PI1.low
    low, high = -_WIDEST, _WIDEST  # of log r, in which w falls
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pull = even * _log1p_exp(middle - math.log(even)) / _log1p_exp(middle)
        low, high = (middle, high) if pull > 0.5 else (low, middle)
    return min(max(1 / (1 + math.exp(-low)), _PI1.low), _PI1.high)


def _checked_probability(probability: Tensor) -> Tensor:
    """Probabilities, at least float32, or one clear error."""
    if not isinstance(probability, Tensor) or not probability.is_floating_point():
        got = probability.dtype if isinstance(probability, Tensor) else f"a {type(probability).__name__}"
        raise LogitsError(f"probability is {got}: give a tensor of floats, such as torch.tensor([0.3])")
    if can_read(probability) and not bool(((probability >= 0) & (probability <= 1)).all()):
        raise LogitsError("probability holds numbers outside 0 to 1, or NaN: give what a softmax gives")
    return at_least_float32(probability)


def _log1p_exp(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
