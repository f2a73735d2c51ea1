"""What several systems do with a batch: mixing samples, sharpening guesses, raising a weight over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from narl.errors import OptionError


def one_hot(targets: Tensor, num_classes: int) -> Tensor:
    """Labels as probabilities, ``(N, c)``, at least float32.

    Args:
        targets: class indices ``(N,)``, or probabilities ``(N, c)``, which stay as they are.
        num_classes: c.

    Example:
        >>> one_hot(torch.tensor([1]), 3)
        tensor([[0., 1., 0.]])
    """
    return targets.float() if targets.dim() == 2 else F.one_hot(targets.long(), num_classes).float()


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    r"""Probabilities that are surer of themselves.

    .. math:: \frac{p_k^{1/T}}{\sum_j p_j^{1/T}}

    Args:
        probabilities: ``(N, c)``.
        temperature: T; 1 changes nothing, 0 gives all to the largest.

    Returns:
        ``(N, c)``.

    Example:
        >>> sharpened(torch.tensor([[0.8, 0.2]]), 0.5)
        tensor([[0.9412, 0.0588]])

    Reference: Berthelot, Carlini, Goodfellow, Papernot, Oliver, Raffel. MixMatch: a holistic approach to
    semi-supervised learning. NeurIPS 2019.
    """
    if temperature == 0:
        return F.one_hot(probabilities.argmax(dim=1), probabilities.shape[1]).to(probabilities.dtype)
    # By logarithms: small probabilities to a high power would all be zero.
    return (probabilities.log() / temperature).softmax(dim=1)


def beta_share(alpha: float, generator: Generator) -> float:
    """The larger share of a mixture of two, drawn from Beta(α, α): at least one half.

    Args:
        alpha: α; 0: nothing is mixed, the share is 1.
        generator: on the CPU.

    Example:
        >>> 0.5 <= beta_share(4.0, torch.Generator().manual_seed(0)) <= 1
        True

    Reference: Zhang, Cissé, Dauphin, Lopez-Paz. mixup: beyond empirical risk minimization. ICLR 2018; the larger share:
    Berthelot et al., NeurIPS 2019.
    """
    if alpha == 0:
        return 1.0
    seed = int(torch.randint(2**62, (), generator=generator))  # torch's own draws from Beta take no generator
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    return max(share, 1 - share)


def partners(count: int, generator: Generator, device: torch.device) -> Tensor:
    """With whom each sample of a batch is mixed: a random order, ``(N,)``.

    Example:
        >>> sorted(partners(3, torch.Generator(), torch.device("cpu")).tolist())
        [0, 1, 2]
    """
    return torch.randperm(count, generator=generator).to(device, non_blocking=True)


def mixed(values: Tensor, order: Tensor, share: float) -> Tensor:
    """Every sample mixed with its partner: ``share`` of itself, the rest of the other.

    Args:
        values: inputs or targets, ``(N, …)``, of floating type.
        order: the partners, ``(N,)``.
        share: between 0 and 1.

    Returns:
        ``(N, …)``.

    Example:
        >>> mixed(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]), 0.75)
        tensor([0.2500, 0.7500])
    """
    return values if share == 1 else torch.lerp(values[order], values, share)


@final
class Mixer:
    """Mixes a batch's inputs: images whole, of a table's rows the numbers. Categories and words have no average.

    Of a row's categories those of the sample itself stay, to which the larger share belongs.

    Args:
        kind: of the data, as in :class:`narl.train.methods.Setting`: ``"image"``, ``"table"``, ``"text"`` or None.
        shape: of the encoded samples: how many ``numbers`` a table's row begins with.
        alpha: of the mixtures, see :func:`beta_share`; 0: nothing is mixed.

    Example:
        >>> mixer = Mixer("table", {"numbers": 1})
        >>> mixer(torch.tensor([[0.0, 7.0], [1.0, 8.0]]), torch.tensor([1, 0]), 0.75)
        tensor([[0.2500, 7.0000],
                [0.7500, 8.0000]])
    """

    def __init__(self, kind: str | None, shape: Mapping[str, Any], alpha: float = 1.0) -> None:
        if kind == "text" and alpha:
            raise OptionError(
                "the method mixes its samples, and texts cannot be mixed: give alpha=0, with which nothing is, or "
                "choose another one, such as Co-teaching or ELR"
            )
        self._numbers: int | None = shape.get("numbers") if kind == "table" else None

    def __call__(self, x: Tensor, order: Tensor, share: float) -> Tensor:
        """Inputs like ``x``, ``(N, …)``, mixed as by :func:`mixed`; any, if each is all its own."""
        if share == 1:
            return x
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise OptionError(f"inputs are {got}, and only a tensor of floating type can be mixed: convert them")
        if self._numbers is None or self._numbers >= x.shape[1]:
            return mixed(x, order, share)
        return torch.cat([mixed(x[:, : self._numbers], order, share), x[:, self._numbers :]], dim=1)


def linear_ramp(done: float, length: float) -> float:
    """From 0 to 1 in a straight line.

    Args:
        done: how far it is, in the length's unit; nothing happens below 0.
        length: where 1 is reached; 0: at once.

    Example:
        >>> linear_ramp(4, 16), linear_ramp(20, 16), linear_ramp(-1, 16)
        (0.25, 1.0, 0.0)
    """
    return float(done >= 0) if length <= 0 else min(max(done / length, 0.0), 1.0)


def sigmoid_ramp(done: float, length: float) -> float:
    r"""From :math:`e^{-5}` to 1, slowly at both ends: :math:`\exp(-5 (1 - t)^2)` with t from 0 to 1.

    Args:
        done: how far it is, in the length's unit.
        length: where 1 is reached; 0: at once.

    Example:
        >>> sigmoid_ramp(0, 10) == math.exp(-5), sigmoid_ramp(10, 10)
        (True, 1.0)

    Reference: Laine, Aila. Temporal ensembling for semi-supervised learning. ICLR 2017.
    """
    missing = 1 - linear_ramp(done, length)
    return math.exp(-5 * missing * missing)
