"""Noise that depends on the true class only: every generator here is :func:`transition` with a matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from narl.errors import NoiseError
from narl.noise.arguments import generator
from narl.noise.class_maps import ClassMap, Superclasses, class_map_size, superclasses_size
from narl.noise.labels import Labels, check_room, class_count, like, read, rows_by_class
from narl.noise.matrices import (
    asymmetric_matrix,
    checked_matrix,
    hierarchical_matrix,
    pair_matrix,
    symmetric_matrix,
)


def transition(labels: Labels, matrix: ArrayLike | Tensor, *, seed: int | np.random.Generator = 0) -> Labels:
    r"""Noisy labels by any transition matrix.

    .. math:: P(\tilde y = j \mid y) = T_{yj}, \quad \text{each sample on its own}

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        matrix: T, ``(c, c)``: not negative, each row sums to 1.
        seed: an int, or a numpy generator, which moves on.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> transition([0, 1, 2, 0], [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
        [1, 2, 0, 1]
    """
    probabilities = checked_matrix(matrix)
    indices = read(labels)
    num_classes = len(probabilities)
    if indices.size and indices.max() >= num_classes:
        raise NoiseError(
            f"matrix has no row {indices.max()}, but sample {indices.argmax()} has this label: "
            f"a matrix of shape {probabilities.shape} is for labels 0 … {num_classes - 1}; give one row a class"
        )
    check_room(labels, num_classes)
    uniform = generator(seed).random(len(indices))
    noisy = np.empty_like(indices)
    for y, rows in enumerate(rows_by_class(indices, num_classes)):
        # Divided by its end it ends at exactly 1, above every draw; classes of probability 0 span nothing, so that
        # neither rounding nor a draw of 0 can pick one.
        cumulative = probabilities[y].cumsum()
        noisy[rows] = np.searchsorted(cumulative / cumulative[-1], uniform[rows], side="right")
    return like(labels, noisy)


def symmetric(
    labels: Labels,
    rate: float,
    num_classes: int | None = None,
    *,
    seed: int | np.random.Generator = 0,
    over_all_classes: bool = False,
) -> Labels:
    r"""Symmetric noise: a label moves to one of the other classes, each as likely as the next.

    .. math:: P(\tilde y = j \mid y) = \frac{\eta}{c - 1} \; (j \ne y), \qquad P(\tilde y = y \mid y) = 1 - \eta

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        rate: the noise rate η, from 0 to 1: the expected share of labels that change.
        num_classes: the number of classes c; None: the largest label plus one.
        seed: an int, or a numpy generator, which moves on.
        over_all_classes: draw the new label from all c classes, the true one among them, as some papers do: the share
            of labels that change is then η(c - 1)/c.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> labels = np.arange(10_000) % 10
        >>> noisy = symmetric(labels, 0.4)
        >>> print(f"{np.mean(noisy != labels):.1f}")
        0.4

    Reference: Ghosh, Kumar, Sastry. Robust loss functions under label noise for deep neural networks. AAAI 2017.
    """
    count = class_count(labels, num_classes)
    return transition(labels, symmetric_matrix(count, rate, over_all_classes), seed=seed)


def asymmetric(
    labels: Labels,
    rate: float,
    class_map: ClassMap = "cifar10",
    num_classes: int | None = None,
    *,
    seed: int | np.random.Generator = 0,
) -> Labels:
    r"""Asymmetric noise: a class is mistaken for one similar class.

    .. math:: P(\tilde y = m(y) \mid y) = \eta, \qquad P(\tilde y = y \mid y) = 1 - \eta \qquad (m(y) \ne y)

    Classes that the map leaves where they are keep all their labels, so the share of labels that change is below η:
    on CIFAR-10, where four of ten equally large classes move, it is 0.4 η.

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        rate: the noise rate η of the classes that the map moves, from 0 to 1.
        class_map: ``"cifar10"`` (truck to automobile, bird to airplane, deer to horse, cat to dog), a mapping
            ``{from: to}``, or a sequence with one target a class (itself: untouched).
        num_classes: the number of classes c; None: as many as the name or the sequence has entries, for a mapping the
            largest label plus one.
        seed: an int, or a numpy generator, which moves on.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> asymmetric([2, 3, 4, 9, 0], 1.0)
        [0, 5, 7, 1, 0]

    Reference: Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: a loss correction
    approach. CVPR 2017.
    """
    count = class_count(labels, class_map_size(class_map) if num_classes is None else num_classes)
    return transition(labels, asymmetric_matrix(count, rate, class_map), seed=seed)


def pair(labels: Labels, rate: float, num_classes: int | None = None, *, seed: int | np.random.Generator = 0) -> Labels:
    r"""Pair noise: a class is mistaken for the next one, the last for the first.

    .. math:: P(\tilde y = (y + 1) \bmod c \mid y) = \eta, \qquad P(\tilde y = y \mid y) = 1 - \eta

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        rate: the noise rate η, from 0 to 1. From 0.5 on the wrong label is at least as frequent as the right one.
        num_classes: the number of classes c; None: the largest label plus one.
        seed: an int, or a numpy generator, which moves on.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> pair([0, 1, 2], 1.0)
        [1, 2, 0]

    Reference: Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. Co-teaching: robust training of deep neural networks with
    extremely noisy labels. NeurIPS 2018.
    """
    return transition(labels, pair_matrix(class_count(labels, num_classes), rate), seed=seed)


def hierarchical(
    labels: Labels,
    rate: float,
    superclasses: Superclasses = "cifar100",
    num_classes: int | None = None,
    *,
    seed: int | np.random.Generator = 0,
) -> Labels:
    r"""Hierarchical noise: a class is mistaken for any other class of its superclass, each as likely as the next.

    .. math::
        P(\tilde y = j \mid y) = \frac{\eta}{|S(y)| - 1} \; (j \in S(y),\, j \ne y),
        \qquad P(\tilde y = y \mid y) = 1 - \eta

    A class that is alone in its superclass S(y) is untouched.

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        rate: the noise rate η, from 0 to 1.
        superclasses: ``"cifar100"`` (20 superclasses of 5 classes), or a sequence with the superclass of each class
            (numbers or names).
        num_classes: the number of classes c; None: as many as there are entries in ``superclasses``.
        seed: an int, or a numpy generator, which moves on.

    Returns:
        The noisy labels ``(N,)``, of the kind of ``labels``.

    Example:
        >>> hierarchical([0, 1, 2, 2], 1.0, ["pet", "pet", "car"])
        [1, 0, 2, 2]

    Reference: Hendrycks, Mazeika, Wilson, Gimpel. Using trusted data to train deep networks on labels corrupted by
    severe noise. NeurIPS 2018. (Patrini et al., CVPR 2017, move each class to the next one of its superclass instead.)
    """
    count = class_count(labels, superclasses_size(superclasses) if num_classes is None else num_classes)
    return transition(labels, hierarchical_matrix(count, rate, superclasses), seed=seed)
