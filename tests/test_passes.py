"""A network's three passes, cut out of one trace, against the network itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.testing import assert_close

from narl import models
from narl.bilevel.passes import Left, Passes
from oracles import relative_error

CLASSES = 3
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)


class Tied(nn.Module):
    """One layer used twice, and the words' vectors once more as the last layer's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(CLASSES, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(torch.tanh(self.layer(self.words(x % CLASSES).mean(1)))))
        return logits


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(20, 6, mode="mean"), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.words(x)))
        return logits


class Idle(nn.Module):
    """Has a parameter that no output depends on, and one whose effect is nothing but itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.shift = nn.Linear(5, CLASSES), nn.Linear(2, 2), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x).tanh() + self.shift
        return logits


class Counter(nn.Module):
    """Changes its buffers in ways of its own, one of them an integer."""

    seen: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, CLASSES)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("largest", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.largest = torch.maximum(self.largest, x.amax(0))
        logits: Tensor = self.layer(x * (1 + self.largest))
        return logits


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
    model[2].requires_grad_(False)
    return model


def normalised(**options: Any) -> nn.Module:
    norm = nn.BatchNorm1d(6, **options)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1, 0.3)
    return nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, CLASSES))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))


def vectors() -> Tensor:
    return torch.randn(6, 5)


def images() -> Tensor:
    return 2 * torch.randn(4, 2, 8, 8) + 1


def words() -> Tensor:
    return torch.randint(1, 20, (4, 6)) * (torch.arange(6) < torch.tensor([[6], [4], [2], [5]]))


def rows() -> Tensor:
    return torch.cat([torch.randn(6, 3), torch.randint(0, 4, (6, 2)).double()], dim=1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: models.mlp(5, CLASSES, (8, 8), 0.3), vectors),
    "convnet": (lambda: models.convnet(CLASSES, in_channels=2, width=4), images),
    "convolutions": (convolutions, images),
    "resnet32": (lambda: models.resnet32(CLASSES, in_channels=2), images),
    "text_transformer": (lambda: models.text_transformer(20, CLASSES, 8, 2, 1, 0.2), words),
    "text_cnn": (lambda: models.text_cnn(20, CLASSES, 6, (2, 3), channels=4), words),
    "tabular": (lambda: models.tabular(3, [4, 5], CLASSES, (8,)), rows),
    "tied": (Tied, words),
    "embedding-bag": (Bag, words),
    "idle": (Idle, vectors),
    "buffers": (Counter, vectors),
    "frozen": (frozen, vectors),
    "plain-norm": (lambda: normalised(affine=False, track_running_stats=False), vectors),
    "norm": (lambda: normalised(momentum=0.4), vectors),
    "norm-eval": (lambda: normalised().eval(), vectors),
}


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def elsewhere(model: nn.Module) -> nn.Module:
    """The same network with other weights and buffers: what was traced must not be built in."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer in model.buffers():
            buffer.add_(torch.rand_like(buffer) if buffer.is_floating_point() else 2)
    return model


def forward(passes: Passes, model: nn.Module, x: Tensor) -> Left:
    torch.manual_seed(7)
    return passes.forward([p.detach() for p in model.parameters()], [b.clone() for b in model.buffers()], x)


def own(model: nn.Module, x: Tensor) -> tuple[Tensor, nn.Module]:
    """The network's own logits with the same random numbers, and the network after that."""
    model = copy.deepcopy(model)
    torch.manual_seed(7)
    logits: Tensor = model(x)
    return logits, model


def difference(model: nn.Module, x: Tensor, directions: list[Tensor]) -> Tensor:
    """How the logits move along the directions, by two forward passes."""
    step = 1e-5 / float(torch.cat([along.flatten() for along in directions]).norm())  # across few kinks
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, along in zip(trained(moved).values(), directions, strict=True):
                parameter.add_(along, alpha=sign * step)
            ends.append(own(moved, x)[0])
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("name", MODELS)
def test_passes_are_the_networks_own(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    traced = make_model()
    before = copy.deepcopy(traced.state_dict())
    passes = Passes(traced, list(trained(traced)), make_inputs())
    assert_close(traced.state_dict(), before, rtol=0, atol=0)
    model, x = elsewhere(traced), make_inputs()
    left = forward(passes, model, x)
    drawn = torch.get_rng_state()

    logits, after = own(model, x)
    assert_close(left.logits, logits.detach(), rtol=1e-9, atol=1e-10)
    assert passes.buffers == [buffer_name for buffer_name, _ in after.named_buffers()]
    assert_close(left.buffers, list(after.buffers()), rtol=1e-9, atol=1e-10)

    for slope in torch.randn(2, *logits.shape).unbind():
        expected = _gradients(model, x, slope)
        found = passes.backward(left, slope)
        assert_close(found, expected, rtol=1e-7, atol=1e-9)
    directions = [torch.randn_like(parameter) for parameter in trained(model).values()]
    torch.set_rng_state(drawn)
    tangent = passes.tangent(left, directions)
    assert torch.equal(torch.get_rng_state(), drawn)  # the masks are those of the forward pass
    assert relative_error([tangent], [difference(model, x, directions)]) < 1e-5
    product = sum(float((gradient * along).sum()) for gradient, along in zip(found, directions, strict=True))
    assert_close(float((slope * tangent).sum()), product, rtol=1e-8, atol=1e-9)


def _gradients(model: nn.Module, x: Tensor, slope: Tensor) -> list[Tensor]:
    logits, used = own(model, x)
    wanted = list(trained(used).values())
    found = torch.autograd.grad(logits, wanted, slope, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]


def dual(model: nn.Module, x: Tensor, directions: dict[str, Tensor]) -> Tensor:
    """How the logits move, by torch's own forward mode."""

    def logits(values: dict[str, Tensor]) -> Tensor:
        buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}
        found: Tensor = torch.func.functional_call(model, {**values, **buffers}, (x,))
        return found

    torch.manual_seed(7)
    weights = {key: model.get_parameter(key).detach() for key in directions}
    moved: Tensor = torch.func.jvp(logits, (weights,), (directions,))[1]
    return moved


@pytest.mark.parametrize("name", ["norm", "text_cnn", "tied"])
def test_tangents_are_those_of_dual_numbers(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, x = make_model(), make_inputs()
    passes = Passes(model, list(trained(model)), x)
    directions = {key: torch.randn_like(weight) for key, weight in trained(model).items()}
    found = passes.tangent(forward(passes, model, x), list(directions.values()))
    assert_close(found, dual(model, x, directions), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["convolutions", "mlp", "idle"])
def test_without_a_tangent_pass(name: str, compiled: bool) -> None:
    make_model, make_inputs = MODELS[name]
    graphs: list[fx.GraphModule] = []

    def compile(graph: fx.GraphModule) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *arguments: graph(*arguments)

    traced = make_model()
    passes = Passes(traced, list(trained(traced)), make_inputs(), tangents=False, compile=compile if compiled else None)
    model, x = elsewhere(traced), make_inputs()
    left = forward(passes, model, x)
    logits, after = own(model, x)
    slope = torch.randn_like(logits)
    assert len(graphs) == (2 if compiled else 0)
    assert_close(left.logits, logits.detach(), rtol=1e-9, atol=1e-10)
    assert_close(left.buffers, list(after.buffers()), rtol=1e-9, atol=1e-10)
    assert_close(passes.backward(left, slope), _gradients(model, x, slope), rtol=1e-7, atol=1e-9)


def test_some_weights_only() -> None:
    model, x = normalised(), vectors()
    names = ["3.weight", "0.bias"]  # in an order of one's own
    passes = Passes(model, names, x)
    left = forward(passes, model, x)
    logits, used = own(model, x)
    slope = torch.randn_like(logits)
    expected = torch.autograd.grad(logits, [used.get_parameter(name) for name in names], slope)
    assert_close(passes.backward(left, slope), list(expected))
    directions = [torch.randn_like(model.get_parameter(name)) for name in names]
    product = sum(float((g * d).sum()) for g, d in zip(expected, directions, strict=True))
    assert_close(float((slope * passes.tangent(left, directions)).sum()), product)


def channels_last() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def transposed() -> nn.Module:
    """Its first layer's gradient comes in rows, whatever the weights' order."""
    layer = nn.Embedding(20, 4, _weight=torch.randn(4, 20).T)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, CLASSES))


@pytest.mark.parametrize(("make_model", "make_inputs"), [(channels_last, images), (transposed, words)])
@pytest.mark.parametrize("tangents", [True, False])
def test_gradients_lie_in_memory_as_their_weights_do(
    make_model: Callable[[], nn.Module], make_inputs: Callable[[], Tensor], tangents: bool
) -> None:
    model = make_model()
    passes = Passes(model, list(trained(model)), make_inputs(), tangents=tangents)
    x = make_inputs()
    left = forward(passes, model, x)
    slope = torch.randn_like(left.logits)
    gradients = passes.backward(left, slope)
    assert [gradient.stride() for gradient in gradients] == [p.stride() for p in trained(model).values()]
    assert not next(iter(trained(model).values())).is_contiguous()
    assert_close(gradients, _gradients(model, x, slope), rtol=1e-9, atol=1e-10)


def test_no_convolution_is_done_twice() -> None:
    """A layer has one in the forward pass and two in the tangent pass; the first one, whose inputs stay, has one."""
    model = convolutions()
    graphs: list[fx.GraphModule] = []

    def compile(graph: fx.GraphModule) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    Passes(model, list(trained(model)), images(), compile=compile)
    layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    counts = [[node.target for node in graph.graph.nodes].count(aten.convolution.default) for graph in graphs]
    assert counts == [layers, 0, 2 * layers - 1]
    backward = [
        [node.target for node in graph.graph.nodes].count(aten.convolution_backward.default) for graph in graphs
    ]
    assert backward == [0, layers, 0]


def test_nothing_holds_a_graph() -> None:
    model, x = normalised(), vectors()
    passes = Passes(model, list(trained(model)), x)
    left = passes.forward([p.detach() for p in model.parameters()], list(model.buffers()), x)
    gradients = passes.backward(left, torch.ones_like(left.logits))
    tangent = passes.tangent(left, gradients)
    assert not any(t.requires_grad for t in (left.logits, *left.buffers, *left.values, *gradients, tangent))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["convolutions", "text_cnn"])
def test_half_precision_on_the_cpu(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    make_model, make_inputs = MODELS[name]
    model, x = make_model(), torch.cat([make_inputs() for _ in range(8)])
    passes = Passes(model, list(trained(model)), x, precision=torch.bfloat16)
    left = forward(passes, model, x)
    with torch.autocast("cpu", torch.bfloat16):
        logits, after = own(model, x)
    assert left.logits.dtype == logits.dtype == torch.bfloat16
    assert relative_error([left.logits.float()], [logits.detach().float()]) < 0.03
    assert_close(left.buffers, list(after.buffers()), rtol=0.02, atol=0.01)

    slope = torch.randn(logits.shape).bfloat16()
    wanted = list(trained(after).values())
    gradients = passes.backward(left, slope)
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert relative_error(gradients, torch.autograd.grad(logits, wanted, slope)) < 0.05

    directions = [torch.randn_like(parameter) for parameter in wanted]
    tangent = passes.tangent(left, directions)
    assert tangent.dtype == torch.bfloat16
    torch.set_default_dtype(torch.float64)
    exact, inputs = copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x
    expected = difference(exact, inputs, [along.double() for along in directions])
    assert relative_error([tangent], [expected]) < 0.25  # some units are rounded to the other side of their kink


def test_tracing_without_gradients_leaves_forward_mode_on() -> None:
    """A step as written may follow a captured one: its own tangent pass must find forward mode as it was."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        Passes(model, [name for name, _ in model.named_parameters()], torch.randn(4, 2))
    assert torch._C._is_fwd_grad_enabled()
