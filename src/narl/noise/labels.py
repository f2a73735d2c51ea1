"""Labels of any kind in, class indices as numpy int64 inside, the same kind out."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narl.errors import LabelError
from narl.noise.arguments import MOST_CLASSES, checked_num_classes

AnyLabels: TypeAlias = list[int] | NDArray[Any] | Tensor
Labels = TypeVar("Labels", bound=AnyLabels)
Indices: TypeAlias = NDArray[np.int64]


def read(labels: AnyLabels, name: str = "labels") -> Indices:
    """The labels as class indices ``(N,)``, checked to be integers, at least 0 and in one dimension."""
    array = _as_array(labels, name)
    if array.dtype.kind not in "iu":
        raise LabelError(
            f"{name} are {array.dtype}, but class indices are integers: convert them, e.g. numpy.asarray({name}, "
            f"dtype='int64') or, for a tensor, {name}.long(); number class names with "
            f"numpy.unique({name}, return_inverse=True)"
        )
    if array.ndim != 1:
        raise LabelError(
            f"{name} have shape {array.shape}, but one class index a sample, (N,), is needed: "
            f"take the argmax of one-hot labels, flatten a single column"
        )
    if array.size:
        lowest, highest = int(array.min()), int(array.max())
        if lowest < 0:
            raise LabelError(
                f"{name} contain {lowest} (sample {int(array.argmin())}), but class indices start at 0: "
                f"leave unlabelled samples out, or count the classes from 0"
            )
        if highest >= MOST_CLASSES:
            raise LabelError(
                f"{name} contain {highest} (sample {int(array.argmax())}), but at most {MOST_CLASSES} classes are "
                f"supported: number the classes from 0 with numpy.unique({name}, return_inverse=True)"
            )
    return array.astype(np.int64)


def like(labels: Labels, noisy: Indices) -> Labels:
    """``noisy`` as the kind of thing that ``labels`` is: its type, integer type and device."""
    if isinstance(labels, Tensor):
        return cast(Labels, torch.from_numpy(noisy).to(device=labels.device, dtype=labels.dtype))
    if isinstance(labels, np.ndarray):
        return cast(Labels, noisy.astype(labels.dtype))
    return cast(Labels, noisy.tolist())


def class_count(labels: AnyLabels, num_classes: int | None, name: str = "labels") -> int:
    """The number of classes: as given, or the largest label plus one. No label may lie outside."""
    indices = read(labels, name)
    if num_classes is None:
        if not indices.size:
            raise LabelError(f"{name} are empty, so the number of classes cannot be taken from them: give num_classes")
        return int(indices.max()) + 1
    num_classes = checked_num_classes(num_classes)
    if indices.size and indices.max() >= num_classes:
        raise LabelError(
            f"{name} contain {indices.max()} (sample {indices.argmax()}), which is outside 0 … {num_classes - 1}: "
            f"there are {num_classes} classes here; correct the labels, or give the right number of classes"
        )
    return num_classes


def check_room(labels: AnyLabels, num_classes: int) -> None:
    """Labels of a small integer type must be able to hold every class that they may move to."""
    dtype = np.dtype(np.int64) if isinstance(labels, list) else _as_array(labels, "labels").dtype
    if num_classes - 1 > np.iinfo(dtype).max:
        raise LabelError(
            f"labels are {dtype}, which cannot hold class {num_classes - 1}, and a label may move there: "
            f"convert them to int64 first"
        )


def rows_by_class(indices: Indices, num_classes: int) -> list[NDArray[np.intp]]:
    """For each class the positions of its samples, ascending."""
    order = np.argsort(indices, kind="stable")
    ends = np.cumsum(np.bincount(indices, minlength=num_classes))
    return np.split(order, ends[:-1])


def _as_array(labels: object, name: str) -> NDArray[Any]:
    if isinstance(labels, np.ndarray):
        return labels
    if isinstance(labels, Tensor):
        if labels.dtype == torch.bfloat16:  # numpy has no such type; the caller refuses every float alike
            labels = labels.float()
        return labels.detach().cpu().numpy()
    if isinstance(labels, list):
        try:
            return np.asarray(labels) if labels else np.empty(0, dtype=np.int64)
        except ValueError as ragged:
            raise LabelError(
                f"{name} are a list of unequal parts, but one class index a sample is needed: give a flat list of ints"
            ) from ragged
    raise LabelError(
        f"{name} are a {type(labels).__name__}, but a list, a numpy array or a torch tensor is needed: "
        f"convert them, e.g. with numpy.asarray({name})"
    )
