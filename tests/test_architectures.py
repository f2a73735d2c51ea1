"""Models by name and kind of data: defaults, one's own functions, reproducible weights, and clear refusals."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from narl import models
from narl.data import encoding
from narl.data.samples import Table, Texts
from narl.errors import DataError, ModelOutputError, OptionError, UnknownNameError
from narl.train import architectures

SHAPES: dict[str, dict[str, Any]] = {
    "image": {"in_channels": 1, "image_size": 8},
    "table": {"numbers": 3, "cardinalities": [4]},
    "text": {"vocabulary": 20, "length": 5},
}
EXAMPLES = {
    "image": torch.zeros(2, 1, 8, 8),
    "table": torch.ones(2, 4),
    "text": torch.tensor([[3, 4, 0, 0, 0], [5, 6, 7, 8, 9]]),
}
OWN = """
import torch
from torch import nn

seen = {}

class Net(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.head = nn.Linear(in_features, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1))

def make(num_classes, in_channels=None, vocabulary=None, width=7, **kwargs):
    seen.update(num_classes=num_classes, in_channels=in_channels, vocabulary=vocabulary, width=width, **kwargs)
    return nn.Linear(4, num_classes)

def with_generator(generator, numbers, cardinalities):
    seen.update(generator=generator, numbers=numbers, cardinalities=cardinalities)
    return nn.Linear(4, 2).eval()

def wants_more(num_classes, depth):
    return nn.Linear(4, depth)

def positional(x, /, num_classes):
    return nn.Linear(4, 2)

def fails(num_classes):
    raise KeyError("width")

def no_module(num_classes):
    return "net"

constant = 5
"""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(name: str | None, kind: str, **options: Any) -> nn.Module:
    return architectures.build(name, kind=kind, shape=SHAPES[kind], num_classes=3, generator=seeded(), **options)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_net").seen
    del sys.modules["own_net"]


# Names and kinds


@pytest.mark.parametrize("kind", SHAPES)
def test_every_fitting_model_gives_logits_and_the_first_is_the_default(kind: str) -> None:
    assert architectures.fitting(kind)[0] == architectures.defaults()[kind]
    for name in (*architectures.fitting(kind), None):
        shape = SHAPES[kind] if name != "mlp" or kind == "image" else {"numbers": 4, "cardinalities": []}
        model = architectures.build(name, kind=kind, shape=shape, num_classes=3, generator=seeded())
        architectures.check_output(model, EXAMPLES[kind], 3)
        assert model.training


def test_every_model_fits_some_kind_of_data() -> None:
    assert {name for kind in SHAPES for name in architectures.fitting(kind)} == set(models.names())


def test_none_is_the_default_and_the_generator_decides_its_weights() -> None:
    model, expected = build(None, "table"), models.tabular(3, [4], 3, generator=seeded())
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def test_options_reach_the_model() -> None:
    model = build("TABULAR", "table", hidden=(5,), dropout=0.0)
    assert model.get_submodule("head").in_features == 5
    with pytest.raises(OptionError, match="tabular has no option 'hiden': did you mean 'hidden'"):
        build("tabular", "table", hiden=(5,))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("resnet32", "text", "resnet32 is a model for images, and these are texts: use text_cnn or text_transformer"),
        ("text_cnn", "table", "text_cnn is a model for texts, and these are tables: use tabular or mlp"),
        ("mlp", "text", "mlp is a model for images and tables, and these are texts"),
        ("tabular", "image", "tabular is a model for tables, and these are images: use resnet32 or"),
        ("mlp", "table", "mlp takes numbers only, and this table has columns of categories: use tabular"),
    ],
)
def test_a_model_for_another_kind_of_data_is_refused(name: str, kind: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(name, kind)


def test_unknown_names_kinds_and_pretrained_weights_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no model is called 'resnet-32': did you mean 'resnet32'\?.*timm:NAME"):
        build("resnet-32", "image")
    with pytest.raises(OptionError, match="data of kind 'sound' is unknown: known: image, table, text"):
        architectures.fitting("sound")
    with pytest.raises(OptionError, match="resnet32 has no pretrained weights: name a model of timm"):
        build("resnet32", "image", pretrained=True)
    architectures.check_output(build("convnet", "image", pretrained=False), EXAMPLES["image"], 3)


# One's own


def test_ones_own_function_gets_what_it_names(own: dict[str, Any]) -> None:
    build("own_net:make", "image", width=9, colour="red")
    assert own == {"num_classes": 3, "in_channels": 1, "vocabulary": None, "width": 9, "colour": "red"}
    own.clear()
    build("own_net:make", "text")
    assert own == {"num_classes": 3, "in_channels": None, "vocabulary": 20, "width": 7}
    own.clear()
    assert build("own_net:with_generator", "table").training
    assert (own["numbers"], own["cardinalities"]) == (3, [4])
    assert isinstance(own["generator"], torch.Generator)


def test_ones_own_class_begins_the_same_each_time_and_the_global_state_stays(own: dict[str, Any]) -> None:
    state = torch.get_rng_state()
    first, second = build("own_net:Net", "image"), build("own_net:Net", "image")
    other = architectures.build("own_net:Net", kind="image", shape=SHAPES["image"], num_classes=3, generator=seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [model.get_parameter("head.weight") for model in (first, second, other)]
    assert weights[0].shape == (3, 64)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wants_more", "own_net:wants_more wants 'depth', which this data does not have: it can have generator, im"),
        ("positional", "own_net:positional wants 'x'"),
        ("fails", r"own_net:fails failed to make a model \(KeyError: 'width'\): correct it"),
        ("no_module", "own_net:no_module returned a str: it must return an nn.Module"),
        ("constant", "own_net:constant is a int: name a function or class"),
        ("Net", None),
    ],
)
def test_what_makes_no_model_is_refused(own: dict[str, Any], name: str, message: str | None) -> None:
    with pytest.raises(OptionError, match=message or "own_net:Net has no option 'depth'"):
        build(f"own_net:{name}", "image", **({} if message else {"depth": 3}))
    assert not own


def test_pretrained_is_asked_for_only_where_it_exists(own: dict[str, Any]) -> None:
    build("own_net:Net", "image", pretrained=False)
    with pytest.raises(OptionError, match="own_net:Net has no option 'pretrained'"):
        build("own_net:Net", "image", pretrained=True)
    build("own_net:make", "image", pretrained=True)
    assert own["pretrained"] is True


# What comes out


class Returns(nn.Module):
    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> object:
        self.norm(x)
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.zeros(2, 5), r"Returns gives scores of shape \(2, 5\) for 2 samples of 3 classes: .* num_classes = 3"),
        (torch.zeros(6), r"scores of shape \(6,\)"),
        (torch.zeros(2, 3, dtype=torch.int64), "Returns gives torch.int64 values"),
        ((torch.zeros(2, 3),), r"Returns gives a tuple: wrap it .* shape \(2, 3\), such as output.logits"),
        (torch.full((2, 3), torch.nan), "Returns gives NaN or infinity before any training"),
        (
            RuntimeError("mat1 and mat2\nno"),
            r"cannot be run on inputs of shape \(2, 4\) and type torch.float32 \(RuntimeError: mat1 and mat2\)",
        ),
    ],
)
def test_models_that_give_no_class_scores_are_refused_and_left_alone(output: object, message: str) -> None:
    model = Returns(output)
    model.norm.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ModelOutputError, match=message):
        architectures.check_output(model, torch.randn(2, 4, generator=seeded()), 3)
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_errors_that_are_clear_already_stay_as_they_are() -> None:
    with pytest.raises(DataError, match="token ids run from 0 to 99"):
        architectures.check_output(build("text_cnn", "text"), torch.tensor([[99, 0]]), 3)


# Encoders


def test_encoders_are_those_of_the_data_room() -> None:
    texts = Texts(np.array(["who wrote it", "when"], dtype=object))
    encoder = architectures.encoder_for(None, texts, text_length=2)
    assert encoder.state() == encoding.fit(texts, text_length=2).state()
    assert architectures.encoder_from_state(encoder.state()).state() == encoder.state()
    table = Table(np.ones((2, 1), np.float32), np.array([["a"], ["b"]], dtype=object), ("width",), ("colour",))
    encoder = architectures.encoder_for("tabular", table)
    model = architectures.build("tabular", kind="table", shape=encoder.shape, num_classes=2, generator=seeded())
    architectures.check_output(model, encoder.finish(encoder.encode(table)), 2)
    with pytest.raises(DataError, match="encoder of kind 'sound' is unknown"):
        architectures.encoder_from_state({"kind": "sound"})
