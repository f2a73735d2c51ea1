"""Fully connected networks, for tables and embeddings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from narl.errors import OptionError
from narl.models.building import at_least, build, proper_share


def perceptron(
    in_features: int, num_classes: int, hidden: Sequence[int], dropout: float
) -> OrderedDict[str, nn.Module]:
    """The layers of a perceptron: linear, ReLU, dropout for each hidden layer; head.

    Args:
        in_features: numbers a sample.
        num_classes: c.
        hidden: width of each hidden layer.
        dropout: share of hidden values set to zero while training.

    Returns:
        Named layers, ``(N, in_features)`` to logits ``(N, c)``.

    Example:
        >>> list(perceptron(4, 3, (8, 8), 0.0))
        ['layer1', 'layer2', 'head']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = in_features
    for number, width in enumerate(hidden, start=1):
        layers[f"layer{number}"] = nn.Sequential(nn.Linear(before, width), nn.ReLU(), nn.Dropout(dropout))
        before = width
    layers["head"] = nn.Linear(before, num_classes)
    return layers


def check_perceptron(hidden: object, dropout: float) -> None:
    """Refuse widths and a dropout of which no perceptron can be made.

    Example:
        >>> check_perceptron(hidden=(8, 0), dropout=0.0)
        Traceback (most recent call last):
        narl.errors.OptionError: hidden[1] must be a whole number of at least 1, got 0
    """
    if not isinstance(hidden, Sequence):
        raise OptionError(f"hidden must be a sequence of widths such as (128, 128), got {hidden!r}")
    at_least(1, **{f"hidden[{number}]": width for number, width in enumerate(hidden)})
    proper_share(dropout=dropout)


def mlp(
    in_features: int,
    num_classes: int,
    hidden: Sequence[int] = (128, 128),
    dropout: float = 0.0,
    *,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Multi-layer perceptron: linear layers with ReLU between them.

    .. math:: h_0 = x, \qquad h_i = \operatorname{relu}(W_i h_{i-1} + b_i), \qquad z = W h_k + b

    Args:
        in_features: numbers a sample.
        num_classes: c, at least 2.
        hidden: width of each hidden layer; ``()`` gives a linear classifier.
        dropout: share of hidden values set to zero while training, in ``[0, 1)``.
        generator: source of the initial weights; None means torch's global random state. Dropout draws from the
            global state, as torch's layer does.

    Returns:
        A model from ``(N, in_features)``, or anything that flattens to it, to logits ``(N, c)``.

    Raises:
        OptionError: a size that is too small or no whole number, or a dropout outside its range.

    Example:
        >>> model = mlp(64, 10, hidden=(32,), generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in model.parameters()) == (64 + 1) * 32 + (32 + 1) * 10
        True

    Reference: Rumelhart, Hinton, Williams. Learning representations by back-propagating errors. Nature 1986.
    """
    at_least(1, in_features=in_features)
    at_least(2, num_classes=num_classes)
    check_perceptron(hidden, dropout)
    return build(
        lambda: nn.Sequential(
            OrderedDict(flatten=nn.Flatten()) | perceptron(in_features, num_classes, hidden, dropout)
        ),
        generator,
    )
