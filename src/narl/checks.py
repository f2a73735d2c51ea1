"""What every room does with the tensors it is given: refuse what cannot be meant, with a way out."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from narl.errors import LabelError, LogitsError, NarlWarning, SampleIdsError


def check_logits(logits: Tensor) -> None:
    """Refuse what is not a batch of finite class scores."""
    if not isinstance(logits, Tensor):
        raise LogitsError(f"logits are a {type(logits).__name__}: pass a tensor, torch.as_tensor(logits)")
    if logits.dim() != 2 or not logits.is_floating_point():
        raise LogitsError(
            f"logits must be class scores of shape (N, c) and floating type, got shape {tuple(logits.shape)} of "
            f"{logits.dtype}: pass the classifier's raw output, one row a sample"
        )
    if logits.shape[1] < 2:
        raise LogitsError("logits have one class only: narl needs two or more; give a binary classifier two outputs")
    if can_read(logits) and not bool(torch.isfinite(logits).all()):
        raise LogitsError(
            f"logits hold NaN or infinity in {int((~torch.isfinite(logits)).any(dim=1).sum())} of {len(logits)} rows: "
            "the inputs are not finite or training has diverged; check the inputs or lower the learning rate"
        )


def check_targets(targets: Tensor, *, num_classes: int, num_samples: int) -> None:
    """Refuse what is neither class indices ``(N,)`` nor probabilities ``(N, c)``."""
    if not isinstance(targets, Tensor):
        raise LabelError(f"labels are a {type(targets).__name__}: pass a tensor, torch.as_tensor(labels)")
    if targets.is_floating_point() and targets.dim() == 2:
        _check_probabilities(targets, num_classes, num_samples)
        return
    if targets.dtype == torch.bool or targets.is_floating_point() or targets.is_complex():
        raise LabelError(
            f"labels are of type {targets.dtype}: class indices must be integers (labels.long()); "
            f"probabilities must be floats of shape (N, c) = ({num_samples}, {num_classes})"
        )
    if targets.shape != (num_samples,):
        raise LabelError(
            f"labels have shape {tuple(targets.shape)} but there are {num_samples} samples: class indices need shape "
            f"({num_samples},), probabilities ({num_samples}, {num_classes}) of floating type"
        )
    if num_samples and can_read(targets):
        lowest, highest = int(targets.long().min()), int(targets.long().max())
        if lowest < 0 or highest >= num_classes:
            more = f", or give the classifier {highest + 1} outputs" if lowest >= 0 else ", or leave such samples out"
            raise LabelError(
                f"labels run from {lowest} to {highest} but the logits have {num_classes} classes: labels must be in "
                f"0 … {num_classes - 1}; renumber them{more}"
            )


def _check_probabilities(targets: Tensor, num_classes: int, num_samples: int) -> None:
    if targets.shape != (num_samples, num_classes):
        raise LabelError(
            f"target probabilities have shape {tuple(targets.shape)} but the logits {(num_samples, num_classes)}: "
            "give one probability a class and sample"
        )
    if can_read(targets):
        total = targets.double().sum(dim=1)
        if bool((targets < 0).any()) or bool(((total - 1).abs() > 1e-2).any()) or bool(torch.isnan(total).any()):
            raise LabelError("target probabilities must be at least 0 and sum to 1 in every row: normalise them")


def checked_ids(ids: Tensor, count: int) -> Tensor:
    """Sample ids, ``(count,)``, as int64, or one clear error; their values are not looked at."""
    if not isinstance(ids, Tensor):
        raise SampleIdsError(f"ids are a {type(ids).__name__}: pass a tensor of integers, torch.as_tensor(ids)")
    if ids.shape != (count,) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise SampleIdsError(
            f"ids of shape {tuple(ids.shape)} and type {ids.dtype} don't name {count} samples: "
            "give one integer a sample, its position in the data set"
        )
    return ids.long()


def warn_of_probabilities(output: Tensor, whose: str, *, stacklevel: int = 2) -> None:
    """Warn if a classifier's output is what a softmax gives: no row outside [0, 1], all rows summing to 1.

    One look makes the host wait for the device: meant for the first batch only. Inside a graph nothing is looked at.

    Args:
        output: ``(N, c)``.
        whose: name of the model, or what else gave it.
        stacklevel: of the warning.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_probabilities(torch.tensor([[2.0, -1.0], [0.3, 0.6]]), "the model")
        ...     warn_of_probabilities(torch.tensor([[0.4, 0.6], [0.7, 0.3]]), "the model")
        >>> [str(warning.message).split(":")[0] for warning in caught]
        ['the model gives probabilities, as if it ended in a softmax']
    """
    if type(output) not in (Tensor, torch.nn.Parameter) or torch.compiler.is_compiling() or output.dim() != 2:
        return
    if not output.numel() or (output.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    values = output.detach().double()
    rounding = 1e-2 if output.dtype in (torch.float16, torch.bfloat16) else 1e-4
    # One-hot rows are no softmax's: somebody's toy scores.
    found = (values >= 0).all() & ((values.sum(dim=1) - 1).abs() < rounding).all() & (values % 1 > 0).any()
    if bool(found):
        warnings.warn(
            f"{whose} gives probabilities, as if it ended in a softmax: narl takes raw class scores and applies the "
            "softmax itself, and a second one leaves hardly a gradient; remove the last softmax layer",
            NarlWarning,
            stacklevel=stacklevel + 1,
        )


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision lifted to float32, everything else as it is."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def can_read(values: Tensor) -> bool:
    """Whether looking at the values costs nothing: in host memory, and not while a graph is being traced.

    On an accelerator every look would make the host wait for the device; there the training step checks the loss.
    """
    traced = type(values) not in (Tensor, torch.nn.Parameter) or torch.compiler.is_compiling()
    return values.device.type == "cpu" and not traced
