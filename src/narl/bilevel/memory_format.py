"""The order of an image's numbers in memory: convolutions on CPUs are faster with the channels last."""

from __future__ import annotations

import copy
import weakref

import torch
from torch import Tensor, nn

from narl.bilevel.calls import Inputs, is_compiled

_TAKES_CHANNELS_LAST: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def faster_layout(model: nn.Module, inputs: Inputs) -> Inputs:
    """The same images with the channels last, where that is faster and the model takes them; else the inputs as given.

    Values and shapes are the same. A model that looks at memory, such as by ``view`` where it means ``reshape``, does
    not take them: whether it does is tried once, forwards and backwards, on a copy of the model and two samples.

    Args:
        model: any classifier.
        inputs: of a batch; only single tensors ``(N, C, H, W)`` in float32 on a CPU are touched.

    Returns:
        What to call the model with.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
        >>> faster_layout(model, torch.zeros(5, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)
        True
    """
    if not _may_gain(model, inputs):
        return inputs
    images = inputs.contiguous(memory_format=torch.channels_last)
    if model not in _TAKES_CHANNELS_LAST:
        _TAKES_CHANNELS_LAST[model] = _works(model, images[:2])
    return images if _TAKES_CHANNELS_LAST[model] else inputs


def _may_gain(model: nn.Module, inputs: Inputs) -> bool:
    return (
        isinstance(inputs, Tensor)
        and inputs.dim() == 4
        and len(inputs) > 1
        and inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and inputs.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
        and any(isinstance(module, nn.Conv2d) for module in model.modules())
        and not is_compiled(model)
    )


def _works(model: nn.Module, images: Tensor) -> bool:
    """Whether the model gives the same logits for both layouts, and has a backward pass; in float64, to be sure."""
    try:
        trial = copy.deepcopy(model).double()  # the model's own state, buffers and generators see nothing of this
        images = images.to(torch.float64, memory_format=torch.channels_last)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            weights = [parameter for parameter in trial.parameters() if parameter.requires_grad]
            torch.autograd.grad(trial(images).sum(), weights, allow_unused=True)
            trial.eval()
            expected = trial(images.contiguous())
            return bool((trial(images) - expected).abs().max() <= 1e-6 * expected.abs().max())
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever is wrong with the model, the real pass will say it
        return False
