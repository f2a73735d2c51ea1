"""Tangents from a forward pass that was written down against dual numbers, and what cannot be written down."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

import narl
from narl.bilevel.calls import RandomState, snapshot
from narl.bilevel.compositions import differentiable_kernels
from narl.bilevel.linear_maps import Unrecorded
from narl.bilevel.tangents import TrainingPass, _dual_pass
from narl.bilevel.tape import Tape
from oracles import relative_error, unrolled
from test_hypergradient import CLASSES, LAYERS, OwnGenerator, WithOnce, adjuster, images, vectors


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(model: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """The tangent along a random direction, from the tape and from dual numbers."""
    weights = dict(model.named_parameters())
    directions = {name: torch.randn_like(weight) for name, weight in weights.items()}
    buffers, state = snapshot(model), RandomState.now(model)
    with Tape() as tape:
        logits = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    with differentiable_kernels(model):
        found = tape.tangent(logits, {weights[name]: along for name, along in directions.items()})
    return found, _dual_pass(TrainingPass(model, inputs, state, buffers, logits), directions)


# One gives its activations away, the other has an operation without forward mode.
NOT_TO_BE_FOLLOWED = {"checkpointed": Unrecorded, "weight-norm": NotImplementedError}


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in NOT_TO_BE_FOLLOWED])
def test_equals_dual_numbers_for_every_layer(name: str) -> None:
    make_model, make_batch = LAYERS[name]
    found, expected = both(make_model(), make_batch()[0])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NOT_TO_BE_FOLLOWED)
def test_what_cannot_be_followed_is_said(name: str) -> None:
    make_model, make_batch = LAYERS[name]
    with pytest.raises(NOT_TO_BE_FOLLOWED[name]):
        both(make_model(), make_batch()[0])


@pytest.mark.parametrize("name", ["resnet32", "resnet34", "preact_resnet18", "convnet"])
def test_equals_dual_numbers_for_networks(name: str) -> None:
    found, expected = both(narl.models.get(name)(CLASSES, in_channels=2), torch.randn(4, 2, 8, 8))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


class Written(nn.Module):
    """A network written as a function of its input and two layers."""

    def __init__(self, function: Callable[[Tensor, nn.Linear, nn.Linear], Tensor]) -> None:
        super().__init__()
        self.function, self.layer, self.head = function, nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.layer, self.head)


def relu_in_place(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    logits: Tensor = head(F.relu(layer(x), inplace=True))
    return logits


def sum_in_place(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = torch.tanh(layer(x)) * 2
    h += layer(x).relu_()
    h.add_(layer(x), alpha=-0.5)
    logits: Tensor = head(h)
    return logits


def sums_of_all_kinds(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = 1 + layer(x) + 2.5 + layer.bias + x.sum(1, keepdim=True)
    h = torch.add(x.mean(), h, alpha=3) + torch.add(layer.bias, 1)
    logits: Tensor = head(h + layer.weight.sum(1).unsqueeze(0))
    return logits


def products_of_all_kinds(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = torch.matmul(x, layer.weight.T) @ torch.mm(layer.weight, layer.weight.T)
    h = torch.bmm(h.unsqueeze(1), layer.weight.T.expand(len(x), 5, 6).mT @ torch.ones(5, 6)).squeeze(1)
    return torch.tanh(h).matmul(other=head.weight.T)


def several_results(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    first, second = layer(x).chunk(2, dim=1)
    largest, _ = torch.stack([first, second]).max(dim=0)
    logits: Tensor = head(torch.cat([largest, first - second], dim=1))
    return logits


def random_between(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = F.dropout(layer(x), 0.3)
    h = h * torch.rand_like(h) + F.dropout(h, 0.5, inplace=False)
    logits: Tensor = head(F.rrelu(h, training=True))
    return logits


def same_object(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = layer(x).contiguous().to(torch.float64).requires_grad_()
    logits: Tensor = head(h.double() + h.detach())
    return logits


def only_the_bias(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    return F.linear(x, layer.weight.detach(), layer.bias) @ head.weight.detach().T


def sum_into_a_constant(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = torch.ones(len(x), 6)
    h += layer(x)
    logits: Tensor = head(h)
    return logits


def sums_of_several_types(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    logits: Tensor = head(torch.tanh(layer(x) + torch.arange(6) + layer(x).float()))
    return logits


def by_name(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = F.linear(input=x, weight=layer.weight, bias=layer.bias)
    out = torch.add(input=h, other=F.relu(input=h))
    return F.linear(out, head.weight)


FOLLOWED = [
    relu_in_place,
    sum_in_place,
    sums_of_all_kinds,
    products_of_all_kinds,
    several_results,
    random_between,
    same_object,
    only_the_bias,
    sum_into_a_constant,
    sums_of_several_types,
    by_name,
]


@pytest.mark.parametrize("function", FOLLOWED, ids=lambda f: f.__name__)
def test_equals_dual_numbers_however_it_is_written(function: Callable[..., Tensor]) -> None:
    found, expected = both(Written(function), torch.randn(8, 5))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def view_in_place(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = layer(x) * 1
    h[:, :2].relu_()
    logits: Tensor = head(h)
    return logits


def item_set(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = layer(x) * 1
    h[0] = 3
    logits: Tensor = head(h)
    return logits


def item_set_in_a_constant(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = torch.zeros(len(x), 6)
    h[:, :] = layer(x)
    logits: Tensor = head(h)
    return logits


def constant_changed_later(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    offset = torch.ones(6)
    logits: Tensor = head(torch.tanh(layer(x) - offset))
    offset += 1
    return logits


def multiplied_in_place(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    logits: Tensor = head(layer(x).mul_(2))
    return logits


def mixed_sum_in_place(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = layer(x) * 1
    h += torch.arange(6)
    logits: Tensor = head(h)
    return logits


def drawn_from_its_own(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    h = layer(x)
    mask = torch.bernoulli(torch.sigmoid(h), generator=torch.Generator().manual_seed(0))
    logits: Tensor = head(h * mask)
    return logits


def half_inside(x: Tensor, layer: nn.Linear, head: nn.Linear) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = layer(x)
    logits: Tensor = head(h.to(x.dtype))
    return logits


LOST = {
    mixed_sum_in_place: "writes over its input",
    drawn_from_its_own: "generator",
    half_inside: "half precision",
    view_in_place: "in place",
    item_set: "in place",
    item_set_in_a_constant: "in place",
    constant_changed_later: "afterwards",
    multiplied_in_place: "mul_ changes",
}


@pytest.mark.parametrize("function", LOST, ids=lambda f: f.__name__)
def test_what_is_lost_sight_of_is_not_followed_wrongly(function: Callable[..., Tensor]) -> None:
    with pytest.raises(Unrecorded, match=LOST[function]):
        both(Written(function), torch.randn(8, 5))


@pytest.mark.parametrize("function", [f for f in (*FOLLOWED, *LOST) if f is not half_inside], ids=lambda f: f.__name__)
def test_hypergradient_is_exact_whether_followed_or_not(function: Callable[..., Tensor]) -> None:
    model, objective = Written(function), adjuster()
    optimizer = SGD(model.parameters(), lr=0.3)
    batch, clean = vectors(), vectors()
    torch.manual_seed(1)
    found = narl.hypergradient(model, optimizer, objective, batch, clean, tangent="forward")
    torch.manual_seed(1)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-6


@pytest.mark.parametrize("moving", ["layer.bias", "layer.weight", "head.bias"])
def test_a_direction_of_few_weights(moving: str) -> None:
    model, x = Written(relu_in_place), torch.randn(8, 5)
    model.layer.weight.requires_grad_(moving == "layer.weight")
    model.head.weight.requires_grad_(moving != "head.bias")
    weight = model.get_parameter(moving)
    directions = {moving: torch.randn_like(weight)}
    with Tape() as tape:
        logits = model(x)
    run = TrainingPass(model, x, RandomState.now(model), {}, logits)
    torch.testing.assert_close(tape.tangent(logits, {weight: directions[moving]}), _dual_pass(run, directions))


class Counting(nn.Module):
    """Keeps statistics by some normalisation."""

    def __init__(self, normalise: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.normalise, self.layer, self.head = normalise, nn.Conv2d(2, 4, 3), nn.Linear(64, CLASSES)
        self.mean, self.var = nn.Buffer(torch.zeros(4)), nn.Buffer(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.normalise(self.layer(x), self.mean, self.var).flatten(1))
        return logits


NORMALISATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch": lambda h, mean, var: F.batch_norm(h, mean, var, training=True),
    "batch-kernel": lambda h, mean, var: torch.batch_norm(h, None, None, mean, var, True, 0.1, 1e-5, False),
    "instance": lambda h, mean, var: F.instance_norm(h, mean, var),
    "instance-kernel": lambda h, mean, var: torch.instance_norm(h, None, None, mean, var, True, 0.1, 1e-5, False),
}


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_statistics_move_once(name: str) -> None:
    model, objective = Counting(NORMALISATIONS[name]), adjuster()
    alone = copy.deepcopy(model)
    (x, y), clean = images(), images()
    alone(x)
    narl.MetaStep(model, SGD(model.parameters(), lr=0.1), objective, every=1).step(x, y, clean)
    torch.testing.assert_close(model.mean, alone.mean, rtol=0, atol=0)
    torch.testing.assert_close(model.var, alone.var, rtol=0, atol=0)


def test_functions_of_ones_own_are_not_followed() -> None:
    with pytest.raises(Unrecorded, match="does not show"):
        both(WithOnce(), torch.randn(8, 5))


def test_scripted_parts_are_not_followed() -> None:
    with pytest.warns(DeprecationWarning, match="script"):
        scripted = torch.jit.script(nn.Linear(5, 6))
    with pytest.raises(Unrecorded, match="does not show"):
        both(nn.Sequential(scripted, nn.Tanh(), nn.Linear(6, CLASSES)), torch.randn(8, 5))


def test_numbers_from_a_generator_of_ones_own_are_constants() -> None:
    model = OwnGenerator()
    state = model.draw.get_state()
    along = {model.layer.weight: torch.randn_like(model.layer.weight)}
    x = torch.randn(8, 5)
    with Tape() as tape:
        logits = model(x)
    model.draw.set_state(state)
    noise = torch.randn(x.shape, generator=model.draw)
    torch.testing.assert_close(tape.tangent(logits, along), (x * noise) @ along[model.layer.weight].T)


@settings(max_examples=25, deadline=None)
@given(
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    kernel=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "same"]),
    bias=st.booleans(),
    affine=st.booleans(),
    training=st.booleans(),
    frozen=st.sampled_from(["", "weight", "bias"]),
)
def test_convolution_and_batch_normalisation(
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    padding: int | str,
    bias: bool,
    affine: bool,
    training: bool,
    frozen: str,
) -> None:
    torch.set_default_dtype(torch.float64)
    conv = nn.Conv2d(*channels, kernel, 1 if padding == "same" else stride, padding, bias=bias)
    norm = nn.BatchNorm2d(channels[1], affine=affine)
    again = nn.Conv2d(channels[1], 2, 1)
    model = nn.Sequential(conv, norm, nn.ReLU(), again, nn.AdaptiveAvgPool2d(1), nn.Flatten()).train(training)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or not name.endswith(frozen))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return
    x = torch.randn(3, channels[0], 5, 5) * 2 + 1
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    directions = {name: torch.randn_like(weight) for name, weight in weights.items()}
    buffers, state = snapshot(model), RandomState.now(model)
    with Tape() as tape:
        logits = model(x)
    found = tape.tangent(logits, {weights[name]: along for name, along in directions.items()})
    expected = _dual_pass(TrainingPass(model, x, state, buffers, logits), directions)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_no_model_is_called_twice() -> None:
    model, calls = nn.Linear(5, CLASSES), []
    model.register_forward_hook(lambda *_: calls.append(len(calls)))
    narl.hypergradient(model, SGD(model.parameters(), lr=0.3), adjuster(), vectors(), vectors())
    assert len(calls) == 2  # the noisy batch, the clean batch


def test_inputs_from_inference_mode() -> None:
    with torch.inference_mode():
        offset = torch.randn(8, 6)
    model = Written(lambda x, layer, head: head(torch.tanh(layer(x) + offset - offset)))
    found, expected = both(model, torch.randn(8, 5))
    torch.testing.assert_close(found, expected)


def test_single_precision_agrees_with_dual_numbers() -> None:
    torch.set_default_dtype(torch.float32)
    model = narl.models.resnet32(CLASSES, in_channels=2)
    found, expected = both(model, torch.randn(16, 2, 16, 16).contiguous(memory_format=torch.channels_last))
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_tape_leaves_nothing_behind() -> None:
    model = narl.models.convnet(CLASSES, in_channels=2, width=4)
    gc.collect()
    gc.disable()  # reference counting alone must do
    try:
        with Tape() as tape:
            logits = model(images()[0])
        tape.tangent(logits, {p: torch.ones_like(p) for p in model.parameters()})
        left = weakref.ref(tape), weakref.ref(logits)
        del tape, logits
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()
