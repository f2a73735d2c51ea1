"""Models of timm and Hugging Face, by name: their packages are imported when one is asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor, nn

from narl.data.encoding import Encoder
from narl.data.samples import Inputs, Texts
from narl.errors import DataError, MissingExtraError, OptionError, UnknownNameError
from narl.train.own_models import reason

HF_TEXT = "hf_text"
_LONGEST_DEFAULT = 256
_EXTRAS = {"timm": "vision", "transformers": "transformers"}
_AUTO_MODELS = {"image": "AutoModelForImageClassification", "text": "AutoModelForSequenceClassification"}

Result = TypeVar("Result")


def missing_package(name: str) -> str | None:
    """Why a model from elsewhere cannot be made here: its package is not installed; None: it is, or needs none.

    Args:
        name: of any model.

    Example:
        >>> missing_package("resnet32")
    """
    package = {"timm": "timm", "hf": "transformers"}.get(name.partition(":")[0])
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    return f"{name} needs the package {package}: pip install 'narl[{_EXTRAS[package]}]'"


def timm_model(
    name: str,
    *,
    kind: str,
    shape: Mapping[str, Any],
    num_classes: int,
    pretrained: bool | None = None,
    **options: Any,
) -> nn.Module:
    """An image model of timm.

    Args:
        name: as ``timm.list_models()`` has it.
        kind: of the data.
        shape: with ``in_channels``.
        num_classes: c.
        pretrained: whether to begin from published weights; None means no.
        options: further arguments of ``timm.create_model``.

    Returns:
        A model from images ``(N, in_channels, H, W)`` to logits ``(N, c)``.

    Raises:
        MissingExtraError: timm is not installed.
        UnknownNameError: timm has no such model.
        OptionError: the data are no images, or timm refuses an option or cannot fetch the weights.
    """
    if kind != "image":
        raise OptionError(f"timm:{name} is a model for images, and this data is of kind {kind}")
    timm = _package("timm", f"timm:{name}")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        raise UnknownNameError(
            f"timm has no model {name!r}: "
            + (f"did you mean {' or '.join(close)}?" if close else "see timm.list_models()")
        )

    def make() -> nn.Module:
        model: nn.Module = timm.create_model(
            name, pretrained=bool(pretrained), num_classes=num_classes, in_chans=shape["in_channels"], **options
        )
        return model

    return _foreign(make, f"timm:{name}")


def hf_model(
    name: str,
    *,
    kind: str,
    shape: Mapping[str, Any],
    num_classes: int,
    pretrained: bool | None = None,
    **options: Any,
) -> nn.Module:
    """A text or image classifier of Hugging Face.

    Weights are read from safetensors files only, and no code that comes with a model is run.

    Args:
        name: of a model on the hub, or a folder.
        kind: of the data.
        shape: of the encoder; for texts, of :class:`HfTextEncoder`.
        num_classes: c.
        pretrained: whether to begin from the model's weights, with a new head; None means yes.
        options: values of its configuration to change.

    Returns:
        A model from token ids ``(N, L)`` or images ``(N, C, H, W)`` to logits ``(N, c)``.

    Raises:
        MissingExtraError: transformers is not installed.
        OptionError: the data is a table, there is no such model, or it cannot be read.
    """
    if kind not in _AUTO_MODELS:
        raise OptionError(f"hf:{name} is a model for texts or images, and this data is of kind {kind}: use tabular")
    transformers = _package("transformers", f"hf:{name}")
    auto = getattr(transformers, _AUTO_MODELS[kind])
    source = _source(name)

    def make() -> nn.Module:
        changes = dict(options, num_labels=num_classes)
        if kind == "text":
            changes["pad_token_id"] = shape["pad"]
        config = transformers.AutoConfig.from_pretrained(source, **changes)
        model: nn.Module
        if pretrained is None or pretrained:
            model = auto.from_pretrained(source, config=config, use_safetensors=True, ignore_mismatched_sizes=True)
        else:
            model = auto.from_config(config)
        return model

    model = _foreign(make, f"hf:{name}")
    return HfTexts(model, shape["pad"]) if kind == "text" else HfImages(model)


@final
class HfTexts(nn.Module):
    """A text classifier of Hugging Face as a function of the token ids alone.

    Args:
        model: takes ``input_ids`` and ``attention_mask``, returns an object with ``logits``.
        pad: the id that stands for no word.

    Shape: token ids ``(N, L)`` to logits ``(N, c)``.
    """

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        self.model = model
        self.pad = pad

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.model(input_ids=ids, attention_mask=(ids != self.pad).long()).logits
        return logits


@final
class HfImages(nn.Module):
    """An image classifier of Hugging Face that returns its logits.

    Args:
        model: takes ``pixel_values``, returns an object with ``logits``.

    Shape: images ``(N, C, H, W)`` to logits ``(N, c)``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


@final
class HfTextEncoder(Encoder):
    """Texts as the token ids of a Hugging Face model's own tokenizer, ``(N, L)``.

    Args:
        name: of the model on the hub, or a folder.
        length: tokens that the model sees of a text, with those that the tokenizer adds.
    """

    kind: ClassVar[str] = "text"

    def __init__(self, name: str, length: int) -> None:
        if length < 1:
            raise OptionError(f"text length is {length}, but a text needs room for at least one token: try 64")
        self.name = name
        self.length = length
        self._tokenizer = _tokenizer(name)
        most = _most_tokens(name, self._tokenizer)
        if length > most:
            raise OptionError(f"text length is {length}, but hf:{name} takes {most} tokens at most: use a shorter one")

    @classmethod
    def fit(cls, name: str, inputs: Texts, length: int | None = None) -> HfTextEncoder:
        """The encoder of that model for training texts like these.

        Args:
            name: of the model on the hub, or a folder.
            inputs: the training texts.
            length: None: enough for the longest of them, at most 256 and at most what the model takes.

        Returns:
            The encoder.
        """
        if not len(inputs):
            raise DataError("there are no training inputs to learn an encoding from: give at least one sample")
        if length is None:
            tokenizer = _tokenizer(name)
            most = min(_LONGEST_DEFAULT, _most_tokens(name, tokenizer))
            found = tokenizer([str(text) for text in inputs.texts], truncation=True, max_length=most)["input_ids"]
            length = max(1, *(len(ids) for ids in found))
        return cls(name, length)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> HfTextEncoder:
        """The encoder that wrote this state.

        Raises:
            DataError: the state is incomplete, or the model's tokenizer has changed since.
        """
        try:
            encoder = cls(str(state["name"]), int(state["length"]))
            expected = {"vocabulary": int(state["vocabulary"]), "pad": int(state["pad"])}
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, OptionError):
                raise
            raise DataError(f"the text encoder's state is incomplete or changed ({error!r}): train again") from error
        if not expected.items() <= encoder.shape.items():
            raise DataError(
                f"the tokenizer of hf:{encoder.name} has changed since the training: use the version of then, or "
                "train again"
            )
        return encoder

    def state(self) -> dict[str, Any]:
        """What it takes to make the encoder again, where the model can still be found."""
        return {"kind": HF_TEXT, "name": self.name, **self.shape}

    @property
    def shape(self) -> dict[str, Any]:
        """How many token ids there are, how many a text has, and which stands for none."""
        return {"vocabulary": len(self._tokenizer), "length": self.length, "pad": int(self._tokenizer.pad_token_id)}

    def encode(self, inputs: Inputs) -> Tensor:
        """The texts' token ids, ``(N, L)``, int64."""
        if not isinstance(inputs, Texts):
            raise self.refuse(inputs)
        if not len(inputs):
            return torch.empty(0, self.length, dtype=torch.int64)
        encoded = self._tokenizer(
            [str(text) for text in inputs.texts], truncation=True, max_length=self.length, padding="max_length"
        )
        return torch.tensor(encoded["input_ids"], dtype=torch.int64)


def _tokenizer(name: str) -> Any:
    """The model's tokenizer; it pads at the end, with the end-of-text token if it has no other for that."""
    transformers = _package("transformers", f"hf:{name}")
    tokenizer = _foreign(
        lambda: transformers.AutoTokenizer.from_pretrained(_source(name)), f"the tokenizer of hf:{name}"
    )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise OptionError(
                f"the tokenizer of hf:{name} has no token for padding: set one and save it with the model"
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def _most_tokens(name: str, tokenizer: Any) -> int:
    """Some tokenizers know the model's limit, some only the model itself does."""
    transformers = _package("transformers", f"hf:{name}")
    config = _foreign(lambda: transformers.AutoConfig.from_pretrained(_source(name)), f"hf:{name}")
    most = int(tokenizer.model_max_length)
    return min(most, int(getattr(config, "max_position_embeddings", None) or most))


def _source(name: str) -> str:
    """The name, with the user's folder written out where it is one."""
    if not name:
        raise OptionError("hf: names no model: write hf:NAME, such as hf:distilbert-base-uncased, or hf:FOLDER")
    return str(Path(name).expanduser()) if name.startswith("~") else name


def _package(name: str, wanted_by: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{wanted_by} needs the package {name} ({error}): pip install 'narl[{_EXTRAS[name]}]'"
        ) from error


def _foreign(make: Callable[[], Result], what: str) -> Result:
    """What another library makes, its errors turned into ours."""
    try:
        return make()
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs a package that is not installed ({reason(error)}): install it"
        ) from error
    except Exception as error:  # they raise whatever the file system, the network or a configuration makes them
        raise OptionError(
            f"{what} cannot be loaded ({reason(error)}): check the name, the options and that it can be reached"
        ) from error
