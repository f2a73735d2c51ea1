"""Models of timm and Hugging Face: what narl asks of these packages, played by stand-ins, and what it says without."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from narl.data.samples import Images, Texts
from narl.errors import DataError, MissingExtraError, OptionError, UnknownNameError
from narl.train import architectures
from narl.train.external_models import HfTextEncoder

IMAGES = {"in_channels": 2, "image_size": 4}
TEXTS = Texts(np.array(["b a", "a", "c b a a"], dtype=object))


def build(name: str, kind: str, shape: dict[str, Any], seed: int = 0, **options: Any) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return architectures.build(name, kind=kind, shape=shape, num_classes=3, generator=generator, **options)


class FakeTimm(ModuleType):
    """Knows two models."""

    def __init__(self) -> None:
        super().__init__("timm")
        self.asked: dict[str, Any] = {}

    def list_models(self) -> list[str]:
        return ["resnet18", "vit_tiny"]

    def is_model(self, name: str) -> bool:
        return name in self.list_models()

    def create_model(self, name: str, **arguments: Any) -> nn.Module:
        self.asked = {"name": name, **arguments}
        if "bad" in arguments:
            raise TypeError("unexpected keyword\nargument")
        return nn.Sequential(nn.Flatten(), nn.Linear(arguments["in_chans"] * 16, arguments["num_classes"])).eval()


class FakeTokenizer:
    """One id a word: its letter's place in the alphabet and one; 1 at the beginning; pads with 0 unless told so."""

    def __init__(self, pad: int | None = 0, eos: int | None = 29) -> None:
        self.pad_token_id, self.eos_token_id = pad, eos
        self.model_max_length = 10**30
        self.padding_side = "left"

    @property
    def eos_token(self) -> str:
        return "</s>"

    def __len__(self) -> int:
        return 30

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__("pad_token_id" if name == "pad_token" else name, 29 if name == "pad_token" else value)

    def __call__(
        self, texts: list[str], truncation: bool, max_length: int, padding: str | None = None
    ) -> dict[str, list[list[int]]]:
        assert truncation
        rows = [[1, *(ord(word[0]) - ord("a") + 2 for word in text.split())][:max_length] for text in texts]
        if padding == "max_length":
            assert self.padding_side == "right"
            rows = [row + [self.pad_token_id or 0] * (max_length - len(row)) for row in rows]
        return {"input_ids": rows}


class FakeHfModel(nn.Module):
    """Means of the words that are not masked; means of the channels."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(30, 2)
        self.head = nn.Linear(2, config.num_labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
    ) -> SimpleNamespace:
        if input_ids is not None:
            assert attention_mask is not None
            mask = attention_mask.unsqueeze(2)
            features = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        else:
            assert pixel_values is not None
            features = pixel_values.mean((2, 3))
        return SimpleNamespace(logits=self.head(features))


class FakeTransformers(ModuleType):
    """Has one model, in the folder ``here``."""

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        super().__init__("transformers")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.AutoConfig = SimpleNamespace(from_pretrained=self._config)
        self.AutoTokenizer = SimpleNamespace(from_pretrained=lambda name: tokenizer)
        self.AutoModelForSequenceClassification = self._auto("text")
        self.AutoModelForImageClassification = self._auto("image")

    def _config(self, name: str, **changes: Any) -> SimpleNamespace:
        if name != "here":
            raise OSError(f"{name} is not a local folder\nand more")
        return SimpleNamespace(max_position_embeddings=6, **changes)

    def _auto(self, kind: str) -> SimpleNamespace:
        def from_pretrained(name: str, config: SimpleNamespace, **arguments: Any) -> FakeHfModel:
            self.calls.append((f"{kind} {name}", arguments))
            return FakeHfModel(config).eval()

        def from_config(config: SimpleNamespace) -> FakeHfModel:
            self.calls.append((f"{kind} from config", {}))
            return FakeHfModel(config)

        return SimpleNamespace(from_pretrained=from_pretrained, from_config=from_config)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm()
    monkeypatch.setitem(sys.modules, "timm", fake)
    return fake


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> FakeTransformers:
    fake = FakeTransformers(FakeTokenizer())
    monkeypatch.setitem(sys.modules, "transformers", fake)
    return fake


@pytest.mark.parametrize(
    ("name", "package", "extra", "kind"),
    [("timm:resnet18", "timm", "vision", "image"), ("hf:x", "transformers", "transformers", "text")],
)
def test_without_the_packages_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{name} needs the package {package} .*: pip install 'narl\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=message):
        build(name, kind, {**IMAGES, "pad": 0})
    if kind == "text":
        with pytest.raises(MissingExtraError, match=message):
            architectures.encoder_for(name, TEXTS)


# timm


def test_timm_models_fit_the_data_and_begin_the_same_each_time(timm: FakeTimm) -> None:
    state = torch.get_rng_state()
    first, second = (build("timm:resnet18", "image", IMAGES, drop_rate=0.1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert timm.asked == {"name": "resnet18", "num_classes": 3, "in_chans": 2, "pretrained": False, "drop_rate": 0.1}
    assert first.training
    assert torch.equal(first.get_parameter("1.weight"), second.get_parameter("1.weight"))
    architectures.check_output(first, torch.zeros(2, 2, 4, 4), 3)
    build("timm:resnet18", "image", IMAGES, pretrained=True)
    assert timm.asked["pretrained"] is True


def test_timm_refusals(timm: FakeTimm) -> None:
    with pytest.raises(UnknownNameError, match=r"timm has no model 'resnet81': did you mean resnet18\?"):
        build("timm:resnet81", "image", IMAGES)
    with pytest.raises(UnknownNameError, match=r"timm has no model '': see timm.list_models\(\)"):
        build("timm:", "image", IMAGES)
    with pytest.raises(OptionError, match="timm:resnet18 is a model for images, and this data is of kind text"):
        build("timm:resnet18", "text", {"vocabulary": 5, "length": 2})
    with pytest.raises(OptionError, match=r"timm:resnet18 cannot be loaded \(TypeError: unexpected keyword\): check"):
        build("timm:resnet18", "image", IMAGES, bad=1)


# Hugging Face


def test_hf_texts_are_encoded_by_the_models_own_tokenizer(transformers: FakeTransformers) -> None:
    encoder = architectures.encoder_for("hf:here", TEXTS)
    assert encoder.shape == {"vocabulary": 30, "length": 5, "pad": 0}
    ids = encoder.encode(TEXTS)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[1, 3, 2, 0, 0], [1, 2, 0, 0, 0], [1, 4, 3, 2, 2]]
    assert encoder.finish(ids) is ids
    assert encoder.encode(TEXTS.take(np.array([], dtype=np.int64))).shape == (0, 5)
    again = architectures.encoder_from_state(json.loads(json.dumps(encoder.state())))
    assert isinstance(again, HfTextEncoder)
    assert torch.equal(again.encode(TEXTS), ids)
    assert architectures.encoder_for("hf:here", TEXTS, text_length=2).encode(TEXTS).shape == (3, 2)


def test_hf_text_models_ignore_padding_and_return_logits(transformers: FakeTransformers) -> None:
    encoder = architectures.encoder_for("hf:here", TEXTS)
    first, second = (build("hf:here", "text", encoder.shape, hidden=8) for _ in range(2))
    assert transformers.calls[0] == ("text here", {"use_safetensors": True, "ignore_mismatched_sizes": True})
    assert first.training
    inner = first.get_submodule("model")
    assert isinstance(inner, FakeHfModel)
    config = inner.config
    assert (config.num_labels, config.pad_token_id, config.hidden) == (3, 0, 8)
    ids = encoder.encode(TEXTS)
    architectures.check_output(first, ids, 3)
    torch.testing.assert_close(first(ids[:1]), first(ids[:1, :3]))
    assert torch.equal(first(ids), second(ids))
    build("hf:here", "text", encoder.shape, pretrained=False)
    assert transformers.calls[-1] == ("text from config", {})


def test_hf_image_models_return_logits(transformers: FakeTransformers) -> None:
    images = Images(np.zeros((2, 4, 4, 3), np.uint8))
    assert architectures.encoder_for("hf:here", images).shape == {"in_channels": 3, "image_size": 4}
    model = build("hf:here", "image", IMAGES)
    assert transformers.calls == [("image here", {"use_safetensors": True, "ignore_mismatched_sizes": True})]
    architectures.check_output(model, torch.zeros(2, 2, 4, 4), 3)


def test_a_tokenizer_without_padding_pads_with_the_end_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", FakeTransformers(FakeTokenizer(pad=None)))
    encoder = architectures.encoder_for("hf:here", TEXTS)
    assert encoder.shape["pad"] == 29
    assert encoder.encode(TEXTS)[1].tolist() == [1, 2, 29, 29, 29]
    monkeypatch.setitem(sys.modules, "transformers", FakeTransformers(FakeTokenizer(pad=None, eos=None)))
    with pytest.raises(OptionError, match="the tokenizer of hf:here has no token for padding"):
        architectures.encoder_for("hf:here", TEXTS)


def test_hf_refusals(transformers: FakeTransformers) -> None:
    shape = {"vocabulary": 30, "length": 5, "pad": 0}
    with pytest.raises(OptionError, match=r"hf:here is a model for texts or images, .* of kind table: use tabular"):
        build("hf:here", "table", {"numbers": 1, "cardinalities": []})
    with pytest.raises(OptionError, match=r"hf:there cannot be loaded \(OSError: there is not a local folder\): check"):
        build("hf:there", "text", shape)
    with pytest.raises(OptionError, match="hf: names no model: write hf:NAME"):
        build("hf:", "text", shape)
    with pytest.raises(OptionError, match="text length is 7, but hf:here takes 6 tokens at most"):
        architectures.encoder_for("hf:here", TEXTS, text_length=7)
    with pytest.raises(OptionError, match="text length is 0"):
        architectures.encoder_for("hf:here", TEXTS, text_length=0)
    with pytest.raises(DataError, match="there are no training inputs"):
        architectures.encoder_for("hf:here", TEXTS.take(np.array([], dtype=np.int64)))
    with pytest.raises(DataError, match="these inputs are images, but the model was trained on texts"):
        architectures.encoder_for("hf:here", TEXTS).encode(Images(np.zeros((1, 2, 2, 1), np.uint8)))


def test_a_state_that_is_broken_or_of_another_tokenizer_is_refused(transformers: FakeTransformers) -> None:
    state = architectures.encoder_for("hf:here", TEXTS).state()
    with pytest.raises(DataError, match="the tokenizer of hf:here has changed since the training"):
        architectures.encoder_from_state({**state, "vocabulary": 31})
    del state["pad"]
    with pytest.raises(DataError, match=r"incomplete or changed \(KeyError\('pad'\)\): train again"):
        architectures.encoder_from_state(state)
