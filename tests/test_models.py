"""The classifiers: structure against a written-out oracle, counts, initial weights, derivatives, errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from narl import models
from narl.errors import OptionError, UnknownNameError
from narl.models.building import build
from narl.models.resnet import ZeroPaddedShortcut

# The first forward-mode call of a process loads torch's decompositions, which use what torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

IMAGE_MODELS = ("convnet", "preact_resnet18", "resnet32", "resnet34")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SIZES: dict[str, dict[str, object]] = {
    "mlp": {"in_features": 3 * 16 * 16},
    "tabular": {"numbers": 3, "cardinalities": [4, 9], "dropout": 0.0},
    "text_cnn": {"vocabulary": 50, "dropout": 0.0},
    "text_transformer": {"vocabulary": 50, "dim": 64, "dropout": 0.0},
}


def make(name: str, num_classes: int = 10, seed: int = 0) -> nn.Sequential:
    """The model of that name, for inputs of :func:`inputs`, without dropout."""
    size = SIZES.get(name, {"in_channels": 3})
    return models.get(name)(num_classes=num_classes, generator=seeded(seed), **size)


def inputs(name: str, n: int) -> Tensor:
    """A batch for :func:`make`'s model of that name."""
    if name == "tabular":
        codes = [torch.randint(codes, (n, 1), generator=seeded(2)) for codes in (4, 9)]
        return torch.cat((torch.randn(n, 3, generator=seeded(1)), *codes), dim=1)
    if name.startswith("text"):
        lengths = torch.randint(1, 13, (n, 1), generator=seeded(3))
        return torch.randint(1, 50, (n, 12), generator=seeded(1)) * (torch.arange(12) < lengths)
    return images(n)


def images(n: int, size: int = 16, channels: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(n, channels, size, size, generator=seeded(seed))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# Structure


def block_parameters(before: int, width: int, *, projected: bool) -> int:
    """Two 3x3 convolutions and two BatchNorms; with a projection, a 1x1 convolution and a third BatchNorm."""
    return 9 * before * width + 9 * width**2 + 4 * width + projected * (before * width + 2 * width)


def resnet_parameters(
    widths: list[int], depths: list[int], num_classes: int, in_channels: int, *, projected: bool
) -> int:
    total = 9 * in_channels * widths[0] + 2 * widths[0] + (widths[-1] + 1) * num_classes
    before = widths[0]
    for width, depth in zip(widths, depths, strict=True):
        total += block_parameters(before, width, projected=projected and before != width)
        total += (depth - 1) * block_parameters(width, width, projected=False)
        before = width
    return total


def preact_parameters(num_classes: int, in_channels: int) -> int:
    """The block's first BatchNorm is as wide as its input, its projection has none, and one more ends the network."""
    total = 9 * in_channels * 64 + 2 * 512 + (512 + 1) * num_classes
    before = 64
    for width in (64, 128, 256, 512):
        total += 2 * before + 9 * before * width + 2 * width + 9 * width**2 + (before != width) * before * width
        total += 2 * width + 9 * width**2 + 2 * width + 9 * width**2
        before = width
    return total


def convnet_parameters(num_classes: int, in_channels: int, width: int) -> int:
    return 9 * (in_channels * width + 7 * width**2) + 2 * 6 * width + (2 * width + 1) * num_classes


@pytest.mark.parametrize(
    ("name", "literal"),
    [("resnet32", 464_154), ("resnet34", 21_282_122), ("preact_resnet18", 11_172_170), ("convnet", 66_410)],
)
def test_parameter_counts_at_ten_classes(name: str, literal: int) -> None:
    formula = {
        "resnet32": resnet_parameters([16, 32, 64], [5, 5, 5], 10, 3, projected=False),
        "resnet34": resnet_parameters([64, 128, 256, 512], [3, 4, 6, 3], 10, 3, projected=True),
        "preact_resnet18": preact_parameters(10, 3),
        "convnet": convnet_parameters(10, 3, 32),
    }
    assert count(make(name)) == literal == formula[name]


def test_parameter_counts_at_other_sizes() -> None:
    assert count(models.resnet32(100, 1)) == resnet_parameters([16, 32, 64], [5, 5, 5], 100, 1, projected=False)
    assert count(models.resnet34(2, 4)) == resnet_parameters([64, 128, 256, 512], [3, 4, 6, 3], 2, 4, projected=True)
    assert count(models.preact_resnet18(14, 1)) == preact_parameters(14, 1)
    assert count(models.convnet(7, 1, 12)) == convnet_parameters(7, 1, 12)
    assert count(models.mlp(20, 5)) == 21 * 128 + 129 * 128 + 129 * 5
    assert count(models.mlp(20, 5, hidden=[8], dropout=0.5)) == 21 * 8 + 9 * 5
    assert count(models.mlp(20, 5, hidden=())) == 21 * 5


def test_preact_without_its_last_batchnorm_has_the_count_of_the_usual_cifar_code() -> None:
    model = make("preact_resnet18")
    assert count(model) - count(model.get_submodule("activation")) == 11_171_146


@pytest.mark.parametrize(("name", "layers"), [("resnet32", 32), ("resnet34", 34), ("preact_resnet18", 18)])
def test_the_number_in_the_name_counts_layers_with_weights(name: str, layers: int) -> None:
    weights = [p for p in make(name).parameters() if p.ndim > 1]
    assert len([w for w in weights if w.shape[2:] != (1, 1)]) == layers


class Replay:
    """Hands out a model's layers in the order of its definition, as functions."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: Iterator[nn.Parameter] = iter(list(model.parameters()))

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        weight = next(self.weights)
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(self, x: Tensor) -> Tensor:
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        scale, shift = next(self.weights)[:, None, None], next(self.weights)[:, None, None]
        return (x - mean) / torch.sqrt(variance + 1e-5) * scale + shift

    def head(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) @ next(self.weights).T + next(self.weights)


def resnet_oracle(model: nn.Module, x: Tensor, depths: list[int], *, projected: bool) -> Tensor:
    net = Replay(model)
    x = net.norm(net.conv(x)).relu()
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.norm(net.conv(net.norm(net.conv(x, stride)).relu()))
            if stride == 1:
                shortcut = x
            elif projected:
                shortcut = net.norm(net.conv(x, 2))
            else:
                quarter = torch.zeros_like(y[:, : y.shape[1] // 4])
                shortcut = torch.cat((quarter, x[:, :, ::2, ::2], quarter), dim=1)
            x = (y + shortcut).relu()
    return net.head(x)


def preact_oracle(model: nn.Module, x: Tensor) -> Tensor:
    net = Replay(model)
    x = net.conv(x)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            a = net.norm(x).relu()
            y = net.conv(net.norm(net.conv(a, stride)).relu())
            if stride == 2:
                x = net.conv(a, 2)
            elif stage == block == 0:
                x = a
            x = y + x
    return net.head(net.norm(x).relu())


def convnet_oracle(model: nn.Module, x: Tensor) -> Tensor:
    net = Replay(model)
    for stride in (1, 2, 1, 2):
        x = net.norm(net.conv(x, stride)).relu()
    return net.head(x)


ORACLES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "convnet": convnet_oracle,
    "preact_resnet18": preact_oracle,
    "resnet32": lambda model, x: resnet_oracle(model, x, [5, 5, 5], projected=False),
    "resnet34": lambda model, x: resnet_oracle(model, x, [3, 4, 6, 3], projected=True),
}


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models_compute_what_the_written_out_network_computes(name: str) -> None:
    model = make(name).double()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight, mean=1.0, std=0.1, generator=seeded(norm.num_features))
        nn.init.normal_(norm.bias, std=0.1, generator=seeded(norm.num_features))
    x = images(4).double()
    with torch.no_grad():
        torch.testing.assert_close(model(x), ORACLES[name](model, x))


def test_mlp_computes_what_the_written_out_network_computes() -> None:
    model = models.mlp(6, 3, hidden=(5, 4), generator=seeded())
    w1, b1, w2, b2, w3, b3 = model.parameters()
    nn.init.normal_(b1, generator=seeded(2))
    x = torch.randn(7, 6, generator=seeded(1))
    expected = ((x @ w1.T + b1).relu() @ w2.T + b2).relu() @ w3.T + b3
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model(x.reshape(7, 1, 2, 3)), expected)


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize(("n", "size", "channels", "classes"), [(2, 32, 3, 10), (3, 17, 1, 100), (5, 9, 4, 2)])
def test_shapes(name: str, n: int, size: int, channels: int, classes: int) -> None:
    model = models.get(name)(num_classes=classes, in_channels=channels, generator=seeded())
    logits = model(images(n, size, channels))
    assert logits.shape == (n, classes)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_one_image_even_of_one_pixel_passes_in_evaluation(name: str) -> None:
    model = make(name, num_classes=4).eval()
    for x in (images(1, 1), images(1, 8), torch.zeros(2, 3, 7, 12)):
        assert model(x).shape == (len(x), 4)


@pytest.mark.parametrize("name", models.names())
def test_the_last_layer_is_the_head_and_the_rest_gives_features(name: str) -> None:
    model = make(name).eval()
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    assert model[-1] is head
    x = inputs(name, 2)
    features = model[:-1](x)
    assert features.shape == (2, head.in_features)
    torch.testing.assert_close(head(features), model(x))


def test_models_begin_in_training_mode_and_every_parameter_learns() -> None:
    for name in models.names():
        model = make(name)
        assert model.training
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())


# Option A


@pytest.mark.parametrize(
    ("channels", "out", "stride", "size"), [(16, 32, 2, 8), (16, 32, 2, 7), (3, 6, 2, 5), (4, 8, 1, 3)]
)
def test_option_a_equals_a_loop_and_a_fixed_convolution(channels: int, out: int, stride: int, size: int) -> None:
    x = images(2, size, channels)
    y = ZeroPaddedShortcut(channels, out, stride)(x)
    before = (out - channels) // 2
    side = math.ceil(size / stride)
    expected = torch.zeros(2, out, side, side)
    for channel in range(channels):
        for row in range(side):
            for column in range(side):
                expected[:, before + channel, row, column] = x[:, channel, stride * row, stride * column]
    assert torch.equal(y, expected)
    weight = torch.zeros(out, channels, 1, 1)
    weight[torch.arange(channels) + before, torch.arange(channels)] = 1
    assert torch.equal(y, F.conv2d(x, weight, stride=stride))


def test_option_a_derivatives_are_exact() -> None:
    x = images(2, 5, 2).double().requires_grad_()
    shortcut = ZeroPaddedShortcut(2, 5, 2)
    assert torch.autograd.gradcheck(shortcut, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: shortcut(x) ** 2, (x,), check_fwd_over_rev=True)


def test_option_a_keeps_channels_last() -> None:
    x = images(2, 8, 16).to(memory_format=torch.channels_last)
    assert ZeroPaddedShortcut(16, 32, 2)(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_channels_last_gives_the_same_logits(name: str) -> None:
    x = images(4)
    expected = make(name)(x)
    model = make(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layouts = []
    model.get_submodule("pool").register_forward_pre_hook(
        lambda _, inputs: layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), expected, atol=1e-3, rtol=1e-3)
    assert layouts == [True]


# Initial weights


@pytest.mark.parametrize("name", models.names())
def test_initial_weights_are_he_normal(name: str) -> None:
    standardised = []
    for path, module in make(name, num_classes=100).named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            weight = module.weight.detach() * (10 if path.endswith((".mix", ".narrow")) else 1)  # small branches
            n, n_in = weight.numel(), weight[0].numel()
            z = (weight / math.sqrt(2 / n_in)).flatten()
            assert abs(z.mean()) < 5 / math.sqrt(n)
            assert abs(z.std() - 1) < 5 / math.sqrt(2 * n)
            standardised.append(z)
            if module.bias is not None:
                assert not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            assert module.num_batches_tracked is not None
            assert (module.weight == 1).all()
            assert (module.running_var == 1).all()
            assert not module.bias.any()
            assert not module.running_mean.any()
            assert module.num_batches_tracked == 0
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()
        elif isinstance(module, nn.Embedding):
            assert not module.weight[0].any()
            z = module.weight[1:].detach().flatten() * math.sqrt(module.embedding_dim)
            assert abs(z.mean()) < 5 / math.sqrt(len(z))
            assert abs(z.std() - 1) < 5 / math.sqrt(2 * len(z))
    z = torch.cat(standardised)
    for quantile in (-2.0, -1.0, 1.0, 2.0):  # a uniform distribution of the same variance would fail here
        share = 0.5 * (1 + math.erf(quantile / math.sqrt(2)))
        assert (z < quantile).float().mean() == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("name", models.names())
def test_a_generator_decides_everything_and_the_global_state_stays(name: str) -> None:
    state = torch.get_rng_state()
    first, second, other = make(name, seed=3), make(name, seed=3), make(name, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key
    for a, b in zip(first.parameters(), other.parameters(), strict=True):
        assert a.ndim == 1 or not torch.equal(a, b)


@pytest.mark.parametrize("name", models.names())
def test_without_a_generator_the_global_state_decides(name: str) -> None:
    size = SIZES.get(name, {"in_channels": 1})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = models.get(name)(num_classes=3, **size)
    expected = models.get(name)(num_classes=3, generator=seeded(5), **size)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_generator_advances_so_two_models_of_one_generator_differ() -> None:
    generator = seeded()
    first, second = (models.mlp(4, 2, generator=generator) for _ in range(2))
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


def test_no_forward_pass_draws_random_numbers() -> None:
    state = torch.get_rng_state()
    for name in models.names():
        make(name)(inputs(name, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_acts_in_training_only() -> None:
    model = models.mlp(8, 3, dropout=0.5, generator=seeded())
    x = images(4, 2, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(model(x), model(x))
    model.eval()
    plain = models.mlp(8, 3, generator=seeded()).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(x), plain(x))


def test_building_refuses_layers_whose_beginning_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="GroupNorm"):
        build(lambda: nn.Sequential(nn.GroupNorm(1, 3)), None)


def test_default_type_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = models.convnet(generator=seeded())
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


# Derivatives


@pytest.mark.parametrize("name", models.names())
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    model = make(name)
    torch.autograd.backward(F.cross_entropy(model(inputs(name, 8)), torch.arange(8)))
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


class Problem:
    """A model in float64 as a function of its parameters, with a direction of unit length relative to each of them."""

    def __init__(self, name: str) -> None:
        self.model = make(name, num_classes=3).double()
        self.x = inputs(name, 4)
        self.x = self.x.double() if self.x.is_floating_point() else self.x
        self.parameters = {key: p.detach() for key, p in self.model.named_parameters()}
        generator = seeded(2)
        self.direction = {}
        for key, p in self.parameters.items():
            v = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            self.direction[key] = v / v.norm() * max(float(p.norm()), 1.0)

    def __call__(self, parameters: dict[str, Tensor]) -> Tensor:
        buffers = {key: b.clone() for key, b in self.model.named_buffers()}
        logits: Tensor = functional_call(self.model, (parameters, buffers), (self.x,))
        return logits

    def moved(self, step: float) -> dict[str, Tensor]:
        return {key: p + step * self.direction[key] for key, p in self.parameters.items()}

    def tangent(self) -> Tensor:
        with forward_ad.dual_level():
            dual = {}
            for key, p in self.parameters.items():
                dual[key] = forward_ad.make_dual(p, self.direction[key])  # type: ignore[no-untyped-call]
            tangent: Tensor | None = forward_ad.unpack_dual(self(dual)).tangent  # type: ignore[no-untyped-call]
        assert tangent is not None
        return tangent


@pytest.mark.parametrize("name", models.names())
def test_the_forward_mode_tangent_is_the_derivative(name: str) -> None:
    problem = Problem(name)
    tangent = problem.tangent()
    step = 1e-9  # deep networks have a kink of some ReLU within 1e-7 of almost every point
    with torch.no_grad():
        difference = (problem(problem.moved(step)) - problem(problem.moved(-step))) / (2 * step)
    assert tangent.norm() > 0.1
    assert (tangent - difference).norm() < 1e-5 * tangent.norm()


@pytest.mark.parametrize("name", models.names())
def test_double_backward_gives_the_same_tangent(name: str) -> None:
    problem = Problem(name)
    parameters = {key: p.clone().requires_grad_() for key, p in problem.parameters.items()}
    logits = problem(parameters)
    u = torch.zeros_like(logits, requires_grad=True)
    pulled = torch.autograd.grad(logits, list(parameters.values()), u, create_graph=True)
    (twice,) = torch.autograd.grad(pulled, u, list(problem.direction.values()))
    torch.testing.assert_close(twice, problem.tangent(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["convnet", "mlp", "resnet32", "tabular", "text_cnn", "text_transformer"])
def test_the_hessian_by_double_backward_is_symmetric(name: str) -> None:
    problem = Problem(name)
    parameters = {key: p.clone().requires_grad_() for key, p in problem.parameters.items()}
    values = list(parameters.values())
    loss = F.cross_entropy(problem(parameters), torch.tensor([0, 1, 2, 0]))
    gradient = torch.autograd.grad(loss, values, create_graph=True)
    v = list(problem.direction.values())
    u = [d.flip(0) for d in v]
    hv = torch.autograd.grad(gradient, values, v, retain_graph=True)
    hu = torch.autograd.grad(gradient, values, u)
    uhv = sum(float((a * b).sum()) for a, b in zip(u, hv, strict=True))
    vhu = sum(float((a * b).sum()) for a, b in zip(v, hu, strict=True))
    assert uhv == pytest.approx(vhu, rel=1e-8)
    assert uhv != 0


# Names and errors


def test_exported_names() -> None:
    own = ("convnet", "mlp", "preact_resnet18", "resnet32", "resnet34", "tabular", "text_cnn", "text_transformer")
    assert models.__all__ == sorted((*own, "get", "names"))
    assert models.names() == own


@pytest.mark.parametrize("name", models.names())
def test_get_finds_the_function_of_that_name(name: str) -> None:
    assert models.get(name) is getattr(models, name)
    assert models.get(name.upper()) is models.get(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet-32", r"no model is called 'resnet-32': did you mean 'resnet32'\? Known: convnet, mlp"),
        ("zzz", r"no model is called 'zzz': known: convnet, mlp"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        models.get(name)


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize(
    ("option", "value"),
    [("num_classes", 1), ("num_classes", 10.0), ("num_classes", "10"), ("in_channels", 0), ("in_channels", None)],
)
def test_image_models_refuse_bad_sizes(name: str, option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{option} must be a whole number of at least [12], got {value!r}"):
        models.get(name)(**{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_features": 0}, "in_features must be a whole number of at least 1, got 0"),
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, got 0"),
        ({"hidden": 128}, r"hidden must be a sequence of widths such as \(128, 128\), got 128"),
        ({"hidden": "64"}, r"hidden\[0\] must be a whole number"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"dropout": math.nan}, r"dropout must lie in \[0, 1\), got nan"),
    ],
)
def test_mlp_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        models.get("mlp")(**{"in_features": 4, "num_classes": 3, **options})


def test_convnet_refuses_a_bad_width() -> None:
    with pytest.raises(OptionError, match="width must be a whole number of at least 1, got 0"):
        models.convnet(width=0)
