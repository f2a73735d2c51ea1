"""The classifier's network: made for the data, and asked for its scores."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from narl.data.encoder import Encoder
from narl.data.samples import Inputs
from narl.errors import OptionError
from narl.integrations.sklearn.inputs import pool_of
from narl.integrations.sklearn.sparse import SparseEncoder
from narl.train import architectures
from narl.train.evaluate import logits_of

_BATCH = 1000
_HIDDEN, _HIDDEN_SPARSE = (256, 256), (64,)


def build(model: Any, hidden: Any, encoder: Encoder, num_classes: int, seed: int) -> nn.Module:
    """A new network.

    Args:
        model: None, a name, an ``nn.Module``, or a function that makes one.
        hidden: widths of a perceptron's hidden layers; None: by the kind of data.
        encoder: of its inputs.
        num_classes: c.
        seed: of its initial weights.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if model is not None and not isinstance(model, str) and not callable(model):
        raise OptionError(f"model is a {type(model).__name__}: give a name, an nn.Module or a function that makes one")
    if model is None and encoder.kind == "image":
        model = "convnet"  # an estimator is mostly fitted on a CPU, where a ResNet takes an hour
    options: dict[str, Any] = {}
    if model is None or model in ("tabular", "mlp"):
        usual = _HIDDEN_SPARSE if isinstance(encoder, SparseEncoder) else _HIDDEN
        options["hidden"] = usual if hidden is None else tuple(np.atleast_1d(np.asarray(hidden)).tolist())
    elif hidden is not None:
        raise OptionError(
            "hidden_layer_sizes are those of the perceptron, and model names another network: leave it out"
        )
    return architectures.build(
        model,
        kind=encoder.kind,
        shape=encoder.shape,
        num_classes=num_classes,
        generator=torch.Generator().manual_seed(seed),
        **options,
    )


def check(model: nn.Module, encoder: Encoder, inputs: Inputs, num_classes: int, device: str) -> None:
    """Refuse a network that does not give class scores for such inputs."""
    rows = np.arange(min(len(inputs), 2))
    example = encoder.finish(encoder.encode(inputs.take(rows)).to(device))
    architectures.check_output(model.to(device), example, num_classes)


def logits(model: nn.Module, encoder: Encoder, inputs: Inputs, num_classes: int, device: str) -> NDArray[np.float64]:
    """The network's scores, ``(N, c)``.

    A perceptron's are computed in float64: those of a sample then do not depend on the samples beside it.
    """
    place = torch.device(device)
    pool = pool_of(inputs, encoder, place)
    rows = torch.split(torch.arange(len(inputs)), _BATCH) if len(inputs) else ()
    exact = encoder.kind == "table" and place.type == "cpu"
    used = copy.deepcopy(model).double() if exact else model

    def finish(x: torch.Tensor) -> torch.Tensor:
        return encoder.finish(x).double() if exact else encoder.finish(x)

    found = logits_of(used.to(place), pool.stream(rows), finish, num_classes)
    model.cpu()
    result: NDArray[np.float64] = found.double().numpy()
    return result


def score(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    """Accuracy, and to choose between equals, the mean log-probability of the labels.

    Example:
        >>> score(np.array([[0.0, 0.0], [0.0, 2.0]]), np.array([1, 1]))[0]
        0.5
    """
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    return float((z.argmax(dim=1) == y).double().mean()), -float(nn.functional.cross_entropy(z, y))
