r"""Transition matrices: row ``y`` holds the probabilities of the labels that a sample of class ``y`` may get."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from narl.errors import NoiseError
from narl.noise.arguments import check_other_classes, checked_num_classes, checked_rate
from narl.noise.class_maps import ClassMap, Superclasses, class_targets, superclass_ids

# How far a row's sum may be off 1: the rounding of float32 probabilities, not that of printed ones.
ROW_TOLERANCE = 1e-5


def symmetric_matrix(num_classes: int, rate: float, over_all_classes: bool = False) -> NDArray[np.float64]:
    r"""Every other class is as likely as the next.

    .. math:: T_{yj} = \frac{\eta}{c - 1} \; (j \ne y), \qquad T_{yy} = 1 - \eta

    With ``over_all_classes`` the new label is drawn from all classes, the true one among them,
    :math:`T = (1 - \eta) I + \eta / c`, so that only a share :math:`\eta (c - 1) / c` really changes.

    Args:
        num_classes: the number of classes c.
        rate: the noise rate η, from 0 to 1.
        over_all_classes: draw from all c classes instead of the c - 1 others.

    Returns:
        The transition matrix ``(c, c)``.

    Example:
        >>> symmetric_matrix(3, 0.5)
        array([[0.5 , 0.25, 0.25],
               [0.25, 0.5 , 0.25],
               [0.25, 0.25, 0.5 ]])

    Reference: Ghosh, Kumar, Sastry. Robust loss functions under label noise for deep neural networks. AAAI 2017.
    """
    num_classes, rate = checked_num_classes(num_classes), checked_rate(rate)
    if over_all_classes:
        return (1 - rate) * np.eye(num_classes) + rate / num_classes
    check_other_classes(num_classes, rate)
    matrix = np.full((num_classes, num_classes), rate / max(num_classes - 1, 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix


def asymmetric_matrix(num_classes: int, rate: float, class_map: ClassMap) -> NDArray[np.float64]:
    r"""A class is mistaken for one other class.

    .. math:: T_{y\,m(y)} = \eta, \qquad T_{yy} = 1 - \eta \qquad (m(y) \ne y)

    Args:
        num_classes: the number of classes c.
        rate: the noise rate η of the classes that the map moves, from 0 to 1.
        class_map: ``"cifar10"``, a mapping ``{from: to}``, or a sequence with one target a class (itself: untouched).

    Returns:
        The transition matrix ``(c, c)``.

    Example:
        >>> asymmetric_matrix(3, 0.5, {0: 2})
        array([[0.5, 0. , 0.5],
               [0. , 1. , 0. ],
               [0. , 0. , 1. ]])

    Reference: Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: a loss correction
    approach. CVPR 2017.
    """
    num_classes, rate = checked_num_classes(num_classes), checked_rate(rate)
    targets = class_targets(class_map, num_classes)
    matrix = np.eye(num_classes)
    moved = np.flatnonzero(targets != np.arange(num_classes))
    matrix[moved, moved] = 1 - rate
    matrix[moved, targets[moved]] = rate
    return matrix


def pair_matrix(num_classes: int, rate: float) -> NDArray[np.float64]:
    r"""A class is mistaken for the next one, the last for the first.

    .. math:: T_{y,\,(y + 1) \bmod c} = \eta, \qquad T_{yy} = 1 - \eta

    Args:
        num_classes: the number of classes c.
        rate: the noise rate η, from 0 to 1.

    Returns:
        The transition matrix ``(c, c)``.

    Example:
        >>> pair_matrix(3, 0.25)
        array([[0.75, 0.25, 0.  ],
               [0.  , 0.75, 0.25],
               [0.25, 0.  , 0.75]])

    Reference: Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. Co-teaching: robust training of deep neural networks with
    extremely noisy labels. NeurIPS 2018.
    """
    num_classes, rate = checked_num_classes(num_classes), checked_rate(rate)
    check_other_classes(num_classes, rate)
    return asymmetric_matrix(num_classes, rate, np.roll(np.arange(num_classes), -1))


def hierarchical_matrix(num_classes: int, rate: float, superclasses: Superclasses) -> NDArray[np.float64]:
    r"""A class is mistaken for any other class of its superclass, each as likely as the next.

    .. math:: T_{yj} = \frac{\eta}{|S(y)| - 1} \; (j \in S(y),\, j \ne y), \qquad T_{yy} = 1 - \eta

    A class that is alone in its superclass S(y) is untouched.

    Args:
        num_classes: the number of classes c.
        rate: the noise rate η, from 0 to 1.
        superclasses: ``"cifar100"``, or a sequence with the superclass of each class (numbers or names).

    Returns:
        The transition matrix ``(c, c)``.

    Example:
        >>> hierarchical_matrix(4, 0.5, ["pet", "pet", "pet", "car"])
        array([[0.5 , 0.25, 0.25, 0.  ],
               [0.25, 0.5 , 0.25, 0.  ],
               [0.25, 0.25, 0.5 , 0.  ],
               [0.  , 0.  , 0.  , 1.  ]])

    Reference: Hendrycks, Mazeika, Wilson, Gimpel. Using trusted data to train deep networks on labels corrupted by
    severe noise. NeurIPS 2018. (Patrini et al., CVPR 2017, move each class to the next one of its superclass instead.)
    """
    num_classes, rate = checked_num_classes(num_classes), checked_rate(rate)
    superclass = superclass_ids(superclasses, num_classes)
    siblings = superclass[:, None] == superclass
    np.fill_diagonal(siblings, False)
    others = siblings.sum(axis=1, keepdims=True)
    stay = np.where(others[:, 0] > 0, 1 - rate, 1.0)
    matrix: NDArray[np.float64] = siblings * (rate / np.maximum(others, 1)) + np.diag(stay)
    return matrix


def checked_matrix(matrix: ArrayLike | Tensor) -> NDArray[np.float64]:
    """``matrix`` as float64 ``(c, c)``, checked to be row-stochastic."""
    given = matrix.detach().cpu().double().numpy() if isinstance(matrix, Tensor) else matrix
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise NoiseError(f"matrix is not a table of numbers ({error}): give c rows of c probabilities") from error
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
        raise NoiseError(
            f"matrix has shape {array.shape}, but a transition matrix is square: give one row and one column a class"
        )
    wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        row, column = wrong[0]
        raise NoiseError(
            f"matrix row {row} has {array[row, column]} in column {column}, but its entries are probabilities: "
            f"give finite numbers from 0 on"
        )
    sums = array.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > ROW_TOLERANCE:
        raise NoiseError(
            f"matrix row {row} sums to {sums[row]:.6g}, but each row must sum to 1: "
            f"divide each row by its sum, or transpose the matrix if its columns sum to 1"
        )
    return array
