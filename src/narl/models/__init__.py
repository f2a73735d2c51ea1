"""Classifiers that give logits ``(N, c)``, and how to choose one by name.

Each is a plain ``nn.Sequential`` whose last layer is the linear ``head``, so ``model[:-1]`` gives the features before
it. None of them is needed to use narl: any ``nn.Module`` that gives logits trains as well.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from narl.errors import UnknownNameError, nearest
from narl.models.convnet import convnet
from narl.models.mlp import mlp
from narl.models.preact import preact_resnet18
from narl.models.resnet import resnet32, resnet34
from narl.models.tabular import tabular
from narl.models.text import text_cnn, text_transformer

__all__ = [
    "convnet",
    "get",
    "mlp",
    "names",
    "preact_resnet18",
    "resnet32",
    "resnet34",
    "tabular",
    "text_cnn",
    "text_transformer",
]

_BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    "convnet": convnet,
    "mlp": mlp,
    "preact_resnet18": preact_resnet18,
    "resnet32": resnet32,
    "resnet34": resnet34,
    "tabular": tabular,
    "text_cnn": text_cnn,
    "text_transformer": text_transformer,
}


def names() -> tuple[str, ...]:
    """Names of all models, in alphabetical order.

    Returns:
        What :func:`get` knows.

    Example:
        >>> names()
        ('convnet', 'mlp', 'preact_resnet18', 'resnet32', 'resnet34', 'tabular', 'text_cnn', 'text_transformer')
    """
    return tuple(sorted(_BUILDERS))


def get(name: str) -> Callable[..., nn.Sequential]:
    """The function that builds the model of that name.

    Args:
        name: one of :func:`names`; case is ignored.

    Returns:
        The builder. All take ``num_classes`` and ``generator``; where the image models take ``in_channels``, ``mlp``
        takes ``in_features``, ``tabular`` takes ``numbers`` and ``cardinalities``, text models take ``vocabulary``.

    Raises:
        UnknownNameError: no model has that name.

    Example:
        >>> get("resnet32") is resnet32
        True
        >>> get("resnet-32")
        Traceback (most recent call last):
        narl.errors.UnknownNameError: no model is called 'resnet-32': did you mean 'resnet32'? Known: convnet, ...
    """
    try:
        return _BUILDERS[name.lower()]
    except KeyError:
        raise UnknownNameError(f"no model is called {name!r}: {nearest(name, _BUILDERS)}") from None
