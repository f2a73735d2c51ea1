"""Which model a run trains: the default of its kind of data, one of narl's by name, one's own, timm's, Hugging Face's.

resnet32, text_cnn, tabular, …      narl's own models
package.module:function             a function or class of yours that makes an nn.Module
timm:NAME                           image models of timm, with the extra ``vision``
hf:NAME                             text and image models of Hugging Face, by name or folder, with ``transformers``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from narl import models
from narl.checks import warn_of_probabilities
from narl.data import encoding
from narl.data.samples import Inputs, Texts
from narl.errors import ModelOutputError, NarlError, OptionError, UnknownNameError, nearest
from narl.models.committee import Networks
from narl.train.external_models import HF_TEXT, HfTextEncoder, hf_model, timm_model
from narl.train.own import load_object
from narl.train.own_models import arguments, global_state_from, made_by, reason

_DEFAULTS = {"image": "resnet32", "table": "tabular", "text": "text_cnn"}
_FITTING = {
    "image": ("resnet32", "convnet", "mlp", "preact_resnet18", "resnet34"),
    "table": ("tabular", "mlp"),
    "text": ("text_cnn", "text_transformer"),
}
_PLURALS = {"image": "images", "table": "tables", "text": "texts"}
_ONE = Networks()
_EXTERNAL: dict[str, Callable[..., nn.Module]] = {"hf": hf_model, "timm": timm_model}


def defaults() -> dict[str, str]:
    """The model that each kind of data gets when none is named.

    Returns:
        Names of models by kind.

    Example:
        >>> defaults()
        {'image': 'resnet32', 'table': 'tabular', 'text': 'text_cnn'}
    """
    return dict(_DEFAULTS)


def fitting(kind: str) -> tuple[str, ...]:
    """Names of narl's models for a kind of data, the default first.

    Args:
        kind: ``"image"``, ``"text"`` or ``"table"``.

    Returns:
        What :func:`build` takes, beside models from elsewhere.

    Raises:
        OptionError: no such kind.

    Example:
        >>> fitting("text")
        ('text_cnn', 'text_transformer')
    """
    if kind not in _FITTING:
        raise OptionError(f"data of kind {kind!r} is unknown: {nearest(kind, _FITTING)}")
    return _FITTING[kind]


def kind_of(model: str) -> str | None:
    """The kind of data that one of narl's models is for; None: several, or it is not one of narl's.

    Example:
        >>> kind_of("text_cnn"), kind_of("mlp")
        ('text', None)
    """
    kinds = [kind for kind, names in _FITTING.items() if model in names]
    return kinds[0] if len(kinds) == 1 else None


def build(
    name: str | Callable[..., nn.Module] | None,
    *,
    kind: str,
    shape: Mapping[str, Any],
    num_classes: int,
    generator: torch.Generator,
    pretrained: bool | None = None,
    networks: Networks = _ONE,
    **options: Any,
) -> nn.Module:
    """Make a model for data of this shape.

    Args:
        name: as the head of this module lists them, or one's own function or class itself; None means the default for
            the kind of data.
        kind: ``"image"``, ``"text"`` or ``"table"``.
        shape: of the encoder: ``in_channels`` and ``image_size``, ``vocabulary`` and ``length``, or ``numbers`` and
            ``cardinalities``.
        num_classes: c.
        generator: source of the initial weights. One's own models and those from elsewhere draw from torch's global
            random state: it is seeded from the generator while they are made, and put back.
        pretrained: whether to begin from published weights; None means yes for Hugging Face's and no for timm's.
            False when weights of an earlier run will be loaded.
        networks: how many, and whether averages are kept: more than one plain network is a committee of them, which
            begin from weights of their own.
        options: further arguments of the model, such as ``dropout``.

    Returns:
        The model, in training mode.

    Raises:
        UnknownNameError: no model has that name.
        OptionError: a model for another kind of data, an option that it does not have, or one's own function failed.
        MissingExtraError: the packages for a model from elsewhere are not installed.

    Example:
        >>> model = build(
        ...     None,
        ...     kind="table",
        ...     shape={"numbers": 16, "cardinalities": []},
        ...     num_classes=26,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> model(torch.zeros(2, 16)).shape
        torch.Size([2, 26])
    """
    fitting(kind)
    if not networks.plain:
        given: dict[str, Any] = {"kind": kind, "shape": shape, "num_classes": num_classes, "generator": generator}
        return networks.of(lambda: build(name, **given, pretrained=pretrained, **options)).train()
    name = _DEFAULTS[kind] if name is None else name
    if not isinstance(name, str):
        called = getattr(name, "__name__", type(name).__name__)
        with global_state_from(generator):
            return made_by(called, name, _offered(kind, shape, num_classes, generator), options).train()
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _EXTERNAL:
        with global_state_from(generator):
            model = _EXTERNAL[prefix](
                rest, kind=kind, shape=shape, num_classes=num_classes, pretrained=pretrained, **options
            )
        return model.train()
    offered = _offered(kind, shape, num_classes, generator)
    if colon:
        maker = load_object(name)
        if pretrained is not None:
            (options if pretrained else offered)["pretrained"] = pretrained
        with global_state_from(generator):
            return made_by(name, maker, offered, options).train()
    if pretrained:
        raise OptionError(
            f"{name} has no pretrained weights: name a model of timm (timm:NAME) or Hugging Face (hf:NAME)"
        )
    return _built_in(name, kind, offered, options)


def check_output(model: nn.Module, example: Tensor, num_classes: int) -> None:
    """Run a model once, in evaluation mode; refuse one that gives no class scores, warn of one that ends in softmax.

    Args:
        model: left as it was.
        example: a batch as it will be trained on, ``(N, …)``.
        num_classes: c.

    Raises:
        ModelOutputError: the model cannot be run on the batch, or does not return finite scores ``(N, c)``.

    Example:
        >>> check_output(nn.Linear(4, 3), torch.zeros(2, 4), num_classes=3)
        >>> check_output(nn.Linear(4, 2), torch.zeros(2, 4), num_classes=3)
        Traceback (most recent call last):
        narl.errors.ModelOutputError: Linear gives scores of shape (2, 2) for 2 samples of 3 classes: it must ...
    """
    kind, expected = type(model).__name__, (len(example), num_classes)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            output: object = model(example)
    except NarlError:
        raise
    except Exception as error:
        raise ModelOutputError(
            f"{kind} cannot be run on inputs of shape {tuple(example.shape)} and type {example.dtype} "
            f"({reason(error)}): use a model for such inputs, or give them the size that it wants"
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(output, Tensor):
        raise ModelOutputError(
            f"{kind} gives a {type(output).__name__}: wrap it in a module whose forward returns class scores of shape "
            f"{expected}, such as output.logits"
        )
    if tuple(output.shape) != expected or not output.is_floating_point():
        given = f"scores of shape {tuple(output.shape)}" if output.is_floating_point() else f"{output.dtype} values"
        raise ModelOutputError(
            f"{kind} gives {given} for {len(example)} samples of {num_classes} classes: it must give class scores of "
            f"shape {expected}, so build it with num_classes = {num_classes}"
        )
    if not bool(torch.isfinite(output).all()):
        raise ModelOutputError(f"{kind} gives NaN or infinity before any training: check its initial weights")
    warn_of_probabilities(output, kind)


def encoder_for(
    name: str | None, inputs: Inputs, *, image_size: int | None = None, text_length: int | None = None
) -> encoding.Encoder:
    """The encoder that a model wants: Hugging Face's text models bring their own tokenizer.

    Args:
        name: of the model, as for :func:`build`.
        inputs: the training inputs.
        image_size: side of the images that the model sees; None: chosen by the images.
        text_length: tokens that the model sees of a text; None: chosen by the texts.

    Returns:
        The encoder, fitted.

    Example:
        >>> import numpy as np
        >>> encoder_for("text_cnn", Texts(np.array(["Who?", "When?"], dtype=object))).shape
        {'vocabulary': 5, 'length': 2}
    """
    prefix, _, rest = (name or "").partition(":")
    if prefix == "hf" and isinstance(inputs, Texts):
        return HfTextEncoder.fit(rest, inputs, text_length)
    return encoding.fit(inputs, image_size=image_size, text_length=text_length)


def encoder_from_state(state: Mapping[str, Any]) -> encoding.Encoder:
    """The encoder that wrote this state, whichever :func:`encoder_for` gave.

    Args:
        state: from the encoder's ``state()``, perhaps by way of JSON.

    Returns:
        An encoder that gives the same tensors.

    Example:
        >>> encoder_from_state({"kind": "text", "vocabulary": ["who"], "length": 2}).shape
        {'vocabulary': 3, 'length': 2}
    """
    if isinstance(state, Mapping) and state.get("kind") == HF_TEXT:
        return HfTextEncoder.from_state(state)
    return encoding.from_state(state)


def _offered(kind: str, shape: Mapping[str, Any], num_classes: int, generator: torch.Generator) -> dict[str, Any]:
    """What a function that makes a model may ask for, by name."""
    offered = {**shape, "num_classes": num_classes, "generator": generator}
    if kind == "image":
        offered["in_features"] = shape["in_channels"] * shape["image_size"] ** 2
    elif kind == "table":
        offered["in_features"] = shape["numbers"] + len(shape["cardinalities"])
    return offered


def _built_in(name: str, kind: str, offered: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    key = name.lower()
    if key not in models.names():
        raise UnknownNameError(
            f"no model is called {name!r}: {nearest(name, models.names())}, or timm:NAME, hf:NAME, "
            "package.module:function"
        )
    if key not in fitting(kind):
        wanted = " and ".join(_PLURALS[other] for other in _FITTING if key in _FITTING[other])
        raise OptionError(
            f"{key} is a model for {wanted}, and these are {_PLURALS[kind]}: use {' or '.join(fitting(kind))}"
        )
    if key == "mlp" and offered.get("cardinalities"):
        raise OptionError("mlp takes numbers only, and this table has columns of categories: use tabular")
    builder = models.get(key)
    return builder(**arguments(key, builder, offered, options))
