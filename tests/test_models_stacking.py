"""Several models as one."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from narl import models
from narl.errors import OptionError
from narl.models.stacking import joined, piece

IMAGES = ["convnet", "preact_resnet18", "resnet32", "resnet34"]


def some(name: str, count: int) -> list[nn.Module]:
    """Models with weights of their own, batch statistics included."""
    made = [models.get(name)(num_classes=5, generator=torch.Generator().manual_seed(i)).double() for i in range(count)]
    for number, model in enumerate(made):
        draws = torch.Generator().manual_seed(100 + number)
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.data.mul_(0.5 + torch.rand(tensor.shape, generator=draws, dtype=tensor.dtype))
    return list(made)


def images(count: int) -> list[Tensor]:
    return [torch.randn(3, 3, 9, 9, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("training", [True, False])
def test_it_gives_what_its_parts_give(name: str, training: bool) -> None:
    parts, inputs = some(name, 3), images(3)
    whole = joined(parts).train(training)
    expected = [part.train(training)(x) for part, x in zip(parts, inputs, strict=True)]
    assert torch.allclose(whole(torch.cat(inputs, dim=1)), torch.cat(expected, dim=1), atol=1e-10)
    for name, buffer in whole.named_buffers():
        own = [part.get_buffer(name) for part in parts]
        assert all(torch.allclose(piece(buffer, i, one), one) for i, one in enumerate(own))


@pytest.mark.parametrize("name", IMAGES)
def test_so_are_its_gradients(name: str) -> None:
    parts, inputs = some(name, 2), images(2)
    whole = joined(parts)
    slopes = [torch.randn(3, 5, dtype=torch.float64) for _ in parts]
    whole(torch.cat(inputs, dim=1)).backward(torch.cat(slopes, dim=1))
    for part, x, slope in zip(parts, inputs, slopes, strict=True):
        part(x).backward(slope)
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        for number, part in enumerate(parts):
            own = part.get_parameter(name).grad
            assert own is not None
            assert torch.allclose(piece(parameter.grad, number, own), own, rtol=1e-6, atol=1e-9)


@given(st.integers(1, 4), st.integers(1, 5), st.lists(st.integers(1, 6), max_size=3), st.booleans())
def test_linear_layers_of_any_width(count: int, features: int, hidden: list[int], bias: bool) -> None:
    def network() -> nn.Sequential:
        widths = [features, *hidden, 3]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
        return nn.Sequential(*layers)

    parts, inputs = [network() for _ in range(count)], [torch.randn(4, features) for _ in range(count)]
    expected = torch.cat([part(x) for part, x in zip(parts, inputs, strict=True)], dim=1)
    assert torch.allclose(joined(parts)(torch.cat(inputs, dim=1)), expected, atol=1e-5)


def test_weights_keep_their_names_and_their_layout() -> None:
    parts = [part.to(memory_format=torch.channels_last) for part in some("resnet32", 2)]  # type: ignore[call-overload]
    whole = joined(parts)
    assert list(whole.state_dict()) == list(parts[0].state_dict())
    assert whole.get_parameter("stage1.0.residual.0.weight").is_contiguous(memory_format=torch.channels_last)
    frozen = joined([nn.Linear(2, 2).requires_grad_(False) for _ in range(2)])
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_what_cannot_be_stacked_is_said() -> None:
    with pytest.raises(OptionError, match="a Dropout cannot be stacked"):
        joined([nn.Sequential(OrderedDict(drop=nn.Dropout())) for _ in range(2)])
    with pytest.raises(OptionError, match="of several kinds cannot be stacked"):
        joined([nn.Linear(2, 3), nn.Linear(2, 4)])
    with pytest.raises(OptionError, match="of several kinds cannot be stacked"):
        joined([nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3, padding=1)])
    with pytest.raises(OptionError, match="padding_mode 'circular' cannot be stacked"):
        joined([nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")])
