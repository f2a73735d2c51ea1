"""From logits and targets of either kind to a curve over the label's log-probability."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from narl.checks import at_least_float32, can_read, check_logits, check_targets
from narl.errors import HyperparameterError
from narl.losses.spec import Hyperparameter


def over_labels(
    curve: Callable[..., Tensor],
    logits: Tensor,
    targets: Tensor,
    *hyperparameters: tuple[Hyperparameter, float | Tensor],
) -> Tensor:
    r"""A loss that is a function of the label's log-probability, for both kinds of targets.

    .. math:: \ell(z, y) = \phi(\log p_y; \Lambda), \qquad \ell(z, t) = \sum_j t_j\, \phi(\log p_j; \Lambda)

    Probability targets give the expected loss of a label drawn from them: linear in the targets, as mixup wants it and
    as ``torch.nn.functional.cross_entropy`` does it, and equal to the index form for one-hot rows.

    Args:
        curve: :math:`\phi`, elementwise in the log-probability and its hyperparameters.
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        hyperparameters: pairs of specification and value, a float or ``(N,)``.

    Returns:
        ``(N,)``, at least float32.

    Example:
        >>> over_labels(lambda log_p: 1 - log_p.exp(), torch.zeros(1, 2), torch.tensor([0]))  # MAE
        tensor([0.5000])
    """
    check_logits(logits)
    check_targets(targets, num_classes=logits.shape[1], num_samples=logits.shape[0])
    log_p = at_least_float32(logits).log_softmax(dim=1)
    by_index = targets.dim() == 1
    values = [_value(spec, value, log_p) for spec, value in hyperparameters]
    if by_index:
        return curve(log_p.gather(1, targets.long().unsqueeze(1)).squeeze(1), *values)
    columns = [value.unsqueeze(1) if value.dim() else value for value in values]
    return (targets.to(log_p.dtype) * curve(log_p, *columns)).sum(dim=1)


def _value(spec: Hyperparameter, value: float | Tensor, log_p: Tensor) -> Tensor:
    """The hyperparameter as a tensor of the logits' kind, after a look at its range."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise HyperparameterError(f"{spec.name} = {value!r} is no number: give a float or a (N,) tensor") from None
    if tensor.dim() and tensor.shape != log_p.shape[:1]:
        raise HyperparameterError(
            f"{spec.name} has shape {tuple(tensor.shape)} but there are {log_p.shape[0]} samples: "
            f"give one number, or one a sample, shape ({log_p.shape[0]},)"
        )
    values = at_least_float32(tensor.detach())  # in half precision 1.001 would be 1
    if can_read(values) and not bool(((values >= spec.low) & (values <= spec.high)).all()):
        lowest, highest = float(values.min()), float(values.max())
        shown = f"{lowest:g} … {highest:g}" if values.dim() else f"{lowest:g}"
        raise HyperparameterError(
            f"{spec.name} = {shown} is outside its range [{spec.low}, {spec.high}]: choose a value inside; "
            f"{spec.default:g} is the default"
        )
    if isinstance(value, Tensor) or tensor.dim():
        return tensor.to(log_p)
    # Filled in on the device: a copy from the host has no place in a CUDA graph.
    return torch.full((), float(value), dtype=log_p.dtype, device=log_p.device)
