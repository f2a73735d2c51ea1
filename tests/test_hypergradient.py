"""The exact hypergradient against double backward and finite differences: optimisers, layers, state, bad input."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.utils.checkpoint import checkpoint

import narl
from narl import errors
from narl.bilevel.compositions import embedding_bag
from narl.bilevel.optimizers import rule_of, trained_parameters
from oracles import finite_differences, meta_loss_after_real_step, relative_error, unrolled

CLASSES = 3


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class WeightNet(nn.Module):
    """Meta-Weight-Net: the weight of a sample's cross entropy is a small network of that cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid())

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        values = narl.losses.ce(logits, targets)
        weights: Tensor = self.net(values.detach().unsqueeze(1)).squeeze(1)
        return weights * values


def adjuster(loss: str = "gce", hidden: int = 6) -> narl.Adjuster:
    """An adjuster that is past its start: with zero head weights half of the gradient would be zero."""
    made = narl.Adjuster(loss, [40, 40, 10], families=2, hidden=hidden)
    with torch.no_grad():
        made.heads.weight.normal_(0, 0.5)
    return made


def vectors(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5), torch.randint(0, CLASSES, (n,))


def small_model() -> nn.Module:
    # No bias before BatchNorm: its gradient is zero, where Adam's square root in the oracle has no derivative.
    return nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, CLASSES))


def warmed_up(model: nn.Module, optimizer: Optimizer, make_batch: Callable[[], tuple[Any, Tensor]]) -> None:
    """A few real steps, so that the optimiser has a history."""
    for _ in range(3):
        x, y = make_batch()
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(*x) if isinstance(x, tuple) else model(x), y))
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.3),
    "sgd-decay": lambda p: SGD(p, lr=0.3, weight_decay=0.1),
    "sgd-momentum": lambda p: SGD(p, lr=0.3, momentum=0.9, weight_decay=0.01),
    "sgd-dampening": lambda p: SGD(p, lr=0.3, momentum=0.8, dampening=0.4),
    "sgd-nesterov": lambda p: SGD(p, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd-maximize": lambda p: SGD(p, lr=0.05, momentum=0.9, maximize=True),
    "adam": lambda p: Adam(p, lr=0.02),
    "adam-decay": lambda p: Adam(p, lr=0.02, weight_decay=0.1, betas=(0.8, 0.95)),
    "adam-amsgrad": lambda p: Adam(p, lr=0.02, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=0.02, weight_decay=0.2),
    "adamw-amsgrad": lambda p: AdamW(p, lr=0.02, weight_decay=0.2, amsgrad=True, betas=(0.7, 0.9)),
    "adamw-maximize": lambda p: AdamW(p, lr=0.02, maximize=True),
}


@pytest.mark.parametrize("warm", [True, False], ids=["with-history", "first-step"])
@pytest.mark.parametrize("virtual", ["optimizer", "sgd"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_unrolled_double_backward_for_every_optimizer(name: str, virtual: str, warm: bool) -> None:
    model, objective = small_model(), adjuster()
    optimizer = OPTIMIZERS[name](model.parameters())
    if warm:
        warmed_up(model, optimizer, vectors)
    batch, clean = vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean, virtual=virtual)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean, virtual)) < 1e-6


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_finite_differences_of_the_loss_after_torchs_own_step(name: str) -> None:
    model, objective = small_model(), adjuster(hidden=2)
    optimizer = OPTIMIZERS[name](model.parameters())
    warmed_up(model, optimizer, vectors)
    batch, clean = vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    expected = finite_differences(
        lambda: meta_loss_after_real_step(model, optimizer, objective, batch, clean, seed=0),
        list(objective.parameters()),
    )
    assert relative_error(found, expected) < 1e-6


@pytest.mark.parametrize("warm", [True, False], ids=["with-history", "first-step"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_virtual_weights_are_those_after_the_optimizers_step(name: str, warm: bool) -> None:
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    if warm:
        warmed_up(model, optimizer, vectors)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    rule, group = rule_of(optimizer, "optimizer"), optimizer.param_groups[0]
    with torch.no_grad():
        expected = [
            rule(p, p.grad, group, optimizer.state.get(p, {}))[0] for p in model.parameters() if p.grad is not None
        ]
    optimizer.step()
    for weights, parameter in zip(expected, model.parameters(), strict=True):
        torch.testing.assert_close(weights, parameter.detach(), rtol=1e-12, atol=1e-14)


def test_adam_gradient_of_zero_gives_a_finite_result() -> None:
    model, objective = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES)), adjuster()
    batch, clean = vectors(), vectors()
    batch[0][:, 2] = 0.0  # the weights of this input get no gradient at all
    found = narl.hypergradient(model, Adam(model.parameters()), objective, batch, clean)
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("loss", [name for name in narl.losses.names() if narl.losses.get(name).hyperparameters])
def test_every_adjustable_loss(loss: str) -> None:
    model, objective = small_model(), adjuster(loss)
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    batch, clean = vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-6


def test_any_module_with_a_loss_is_an_objective() -> None:
    model, objective = small_model(), WeightNet()
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    batch, clean = vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-6


def test_sample_ids_reach_the_objective() -> None:
    model = small_model()
    objective = narl.Adjuster("gce", [40, 40, 10], hidden=6, margin="running")
    with torch.no_grad():
        objective.heads.weight.normal_()
    (x, y), clean, ids = vectors(), vectors(), torch.arange(12)
    objective.observe(torch.randn(12, CLASSES), y, ids)
    optimizer = SGD(model.parameters(), lr=0.3)
    found = narl.hypergradient(model, optimizer, objective, (x, y, ids), clean)
    assert relative_error(found, unrolled(model, optimizer, objective, (x, y, ids), clean)) < 1e-6
    with pytest.raises(errors.SampleIdsError, match="ids"):
        narl.hypergradient(model, optimizer, objective, (x, y), clean)


# Layers -------------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cells = kind(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(x)[0][:, -1])
        return logits


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.mix = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        logits: Tensor = self.head(self.norm(h + self.mix(h, h, h, need_weights=False)[0]).mean(1))
        return logits


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.to_qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.words(x)).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        logits: Tensor = self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))
        return logits


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.words(x)).mean(1))
        return logits


class Bag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 6, mode=mode), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.words(x)))
        return logits


class SharedLayer(nn.Module):
    """One layer used twice, and the embedding's weight used once more as the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(torch.tanh(self.layer(self.words(x % CLASSES).mean(1)))))
        return logits


class Viewed(nn.Module):
    """Looks at memory: view() wants it contiguous, and the stride says how it is laid out."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self.layer, self.head, self.silent = nn.Conv2d(2, 4, 3), nn.Linear(64, CLASSES), silent

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        flat = h.as_strided((len(h), 64), (64, 1)) if self.silent else h.view(len(h), 64)
        logits: Tensor = self.head(flat)
        return logits


class FunctionalDropout(nn.Module):
    """Drops units without a layer for it, and so little comes through that branch that a wrong mask hardly shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(2, 4, 3), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        logits: Tensor = self.head((h + 1e-4 * F.dropout(h, 0.5)).flatten(1))
        return logits


class Kept(nn.Module):
    """Keeps its parameters in a list and uses them from there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.kept = [self.first.weight, self.second.weight]

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.kept[0].T) @ self.kept[1].T


class Frozen(nn.Module):
    """Divides by a scale that takes no part in the derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        with torch.no_grad():
            scale = h.pow(2).mean(0, keepdim=True).sqrt()
        logits: Tensor = self.head(torch.tanh(h / scale))
        return logits


class Checkpointed(nn.Module):
    """Computes its middle again in the backward pass, BatchNorm included."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(checkpoint(self.middle, x, use_reentrant=False))
        return logits


def one_layer_three_times() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Linear(5, CLASSES))


def one_batchnorm_twice() -> nn.Module:
    norm = nn.BatchNorm1d(5)
    return nn.Sequential(nn.Linear(5, 5, bias=False), norm, nn.Tanh(), nn.Linear(5, 5), norm, nn.Linear(5, CLASSES))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits: Tensor = self.left(a) * torch.tanh(self.right(b))
        return logits


def images(n: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 6, 6), torch.randint(0, CLASSES, (n,))


def sequences(n: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 7, 4), torch.randint(0, CLASSES, (n,))


def tokens(n: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (n, 7)), torch.randint(0, CLASSES, (n,))


def pairs(n: int = 8) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (torch.randn(n, 5), torch.randn(n, 5)), torch.randint(0, CLASSES, (n,))


def convolutional(norm: nn.Module, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Tanh(), *more, nn.Flatten(), nn.Linear(64, CLASSES))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), vectors),
    "batchnorm-train": (lambda: convolutional(nn.BatchNorm2d(4)), images),
    "batchnorm-eval": (lambda: convolutional(nn.BatchNorm2d(4)).eval(), images),
    "batchnorm-stateless": (lambda: convolutional(nn.BatchNorm2d(4, track_running_stats=False)), images),
    "dropout": (lambda: convolutional(nn.Identity(), nn.Dropout(0.4)), images),
    "dropout-eval": (lambda: convolutional(nn.Identity(), nn.Dropout(0.4)).eval(), images),
    "functional-dropout": (FunctionalDropout, images),
    "batchnorm-dropout": (lambda: convolutional(nn.BatchNorm2d(4), nn.Dropout2d(0.3)), images),
    "groupnorm": (lambda: convolutional(nn.GroupNorm(2, 4)), images),
    "instancenorm": (lambda: convolutional(nn.InstanceNorm2d(4, affine=True)), images),
    "layernorm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, CLASSES)), vectors),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "lstm": (lambda: Recurrent(nn.LSTM), sequences),
    "attention": (Attention, tokens),
    "attention-dropout": (lambda: Attention(0.3), tokens),
    "attention-fused": (Fused, tokens),
    "transformer": (Encoder, tokens),
    "transformer-dropout": (lambda: Encoder(0.2), tokens),
    "transformer-eval": (lambda: Encoder(0.2).eval(), tokens),
    "shared-weights": (SharedLayer, tokens),
    "view": (lambda: Viewed(silent=False), images),
    "memory-layout": (lambda: Viewed(silent=True), images),
    "layer-thrice": (one_layer_three_times, vectors),
    "batchnorm-twice": (one_batchnorm_twice, vectors),
    "kept-in-a-list": (Kept, vectors),
    "no-grad-inside": (Frozen, vectors),
    "checkpointed": (Checkpointed, vectors),
    "weight-norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(5, CLASSES))), vectors),
    "two-inputs": (TwoInputs, pairs),
    "convnet": (lambda: narl.models.convnet(CLASSES, in_channels=2, width=4), images),
}


# The unrolled oracle replaces weights by torch's functional_call, which does not reach these; finite differences do.
OUT_OF_THE_ORACLES_REACH = {"layer-thrice", "batchnorm-twice", "kept-in-a-list", "checkpointed"}
# The clean loss's gradient, by autograd's rules, leaves out what happens under no_grad; finite differences do not.
BEYOND_AUTOGRAD = {"no-grad-inside"}


@pytest.mark.filterwarnings("ignore::narl.errors.NarlWarning")
@pytest.mark.parametrize("tangent", ["auto", "reverse"])
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in OUT_OF_THE_ORACLES_REACH])
def test_equals_unrolled_double_backward_for_every_layer(name: str, tangent: str) -> None:
    make_model, make_batch = LAYERS[name]
    model, objective = make_model(), adjuster()
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01)
    warmed_up(model, optimizer, make_batch)
    batch, clean = make_batch(), make_batch()
    torch.manual_seed(1)
    found = narl.hypergradient(model, optimizer, objective, batch, clean, tangent=tangent)
    torch.manual_seed(1)
    expected = unrolled(model, optimizer, objective, batch, clean)
    assert relative_error(found, expected) < 1e-6


@pytest.mark.filterwarnings("ignore::narl.errors.NarlWarning")
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in BEYOND_AUTOGRAD])
def test_equals_finite_differences_for_every_layer(name: str) -> None:
    make_model, make_batch = LAYERS[name]
    model, objective = make_model(), adjuster(hidden=2)
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    warmed_up(model, optimizer, make_batch)
    batch, clean = make_batch(), make_batch()
    torch.manual_seed(1)
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    expected = finite_differences(
        lambda: meta_loss_after_real_step(model, optimizer, objective, batch, clean, seed=1),
        list(objective.parameters()),
    )
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_embedding_bag_has_no_second_derivative_in_torch_but_here(mode: str) -> None:
    model, objective = Bag(mode), adjuster(hidden=2)
    optimizer = SGD(model.parameters(), lr=0.5)
    batch, clean = tokens(), tokens()
    expected = finite_differences(
        lambda: meta_loss_after_real_step(model, optimizer, objective, batch, clean, seed=0),
        list(objective.parameters()),
    )
    for tangent in ("forward", "reverse"):
        found = narl.hypergradient(model, optimizer, objective, batch, clean, tangent=tangent)
        assert relative_error(found, expected) < 1e-6


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_composed_embedding_bag_equals_torchs(mode: str, padding: int | None) -> None:
    table = torch.randn(7, 4)
    flat, offsets = torch.randint(0, 7, (10,)), torch.tensor([0, 3, 3, 7])
    weights = torch.rand(10) if mode == "sum" else None
    for words, starts, last in (
        (flat, offsets, False),
        (flat, torch.tensor([0, 3, 3, 7, 10]), True),
        (flat.view(2, 5), None, False),
    ):
        sample_weights = None if weights is None else weights.view_as(words)
        options: dict[str, Any] = {
            "offsets": starts,
            "mode": mode,
            "padding_idx": padding,
            "include_last_offset": last,
            "per_sample_weights": sample_weights,
        }
        torch.testing.assert_close(
            embedding_bag(words, table, **options), F.embedding_bag(words, table, **options), rtol=1e-12, atol=1e-12
        )


def test_lstm_in_single_precision_falls_back_to_reverse_and_says_so_once() -> None:
    torch.set_default_dtype(torch.float32)
    model, objective = Recurrent(nn.LSTM), adjuster()  # oneDNN's LSTM has no forward mode
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    batch, clean = sequences(), sequences()
    with pytest.warns(errors.NarlWarning, match="Recurrent has no forward mode"):
        found = narl.hypergradient(model, optimizer, objective, batch, clean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-4
    assert relative_error(again, found) < 1e-6
    with pytest.raises(errors.TangentError, match=r"Recurrent has no forward mode.*difference"):
        narl.hypergradient(model, optimizer, objective, batch, clean, tangent="forward")


def test_difference_is_close_in_single_precision() -> None:
    torch.set_default_dtype(torch.float32)
    model, objective = narl.models.convnet(CLASSES, in_channels=2, width=8), adjuster()
    optimizer = SGD(model.parameters(), lr=0.1)
    batch, clean = images(32), images(32)
    exact = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert (
        relative_error(narl.hypergradient(model, optimizer, objective, batch, clean, tangent="difference"), exact)
        < 1e-2
    )


class OwnGenerator(nn.Module):
    """Draws noise from a generator that nobody can replay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(5, CLASSES), torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x * torch.randn(x.shape, generator=self.draw))
        return logits


class DifferentiableOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = 2 * ctx.saved_tensors[0] * gradient
        return result


class WithOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        squared = DifferentiableOnce.apply(self.layer(x))  # type: ignore[no-untyped-call]
        logits: Tensor = self.head(squared)
        return logits


@pytest.mark.parametrize("make_model", [OwnGenerator, WithOnce])
def test_a_pass_that_cannot_be_repeated_is_an_error_not_a_wrong_gradient(make_model: Callable[[], nn.Module]) -> None:
    model = make_model()
    with pytest.raises(errors.TangentError, match="difference"):
        narl.hypergradient(model, SGD(model.parameters(), lr=0.3), adjuster(), vectors(), vectors(), tangent="reverse")


def test_the_check_of_the_tangent_costs_no_sound_model_in_single_precision() -> None:
    torch.set_default_dtype(torch.float32)
    model, objective = narl.models.resnet32(CLASSES, in_channels=2), adjuster()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmed_up(model, optimizer, images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = narl.hypergradient(model, optimizer, objective, images(), images())
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_sparse_gradients(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Flatten(), nn.Linear(42, CLASSES))
    optimizer = SGD(model.parameters(), lr=0.3, **options)
    warmed_up(model, optimizer, tokens)
    objective, batch, clean = adjuster(hidden=2), tokens(), tokens()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    expected = finite_differences(
        lambda: meta_loss_after_real_step(model, optimizer, objective, batch, clean, seed=0),
        list(objective.parameters()),
    )
    assert relative_error(found, expected) < 1e-5


def test_difference_in_half_precision_is_refused() -> None:
    model = small_model().bfloat16()
    (x, y), (clean_x, clean_y) = vectors(), vectors()
    batch, clean = (x.bfloat16(), y), (clean_x.bfloat16(), clean_y)
    with pytest.raises(errors.TangentError, match="nothing but rounding"):
        narl.hypergradient(model, SGD(model.parameters(), lr=0.3), adjuster(), batch, clean, tangent="difference")


def test_objective_of_another_shape_is_refused() -> None:
    class Column(WeightNet):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits, targets).unsqueeze(1)

    model = small_model()
    with pytest.raises(errors.OptionError, match=r"Column.loss returned shape \(12, 1\) for 12 samples"):
        narl.hypergradient(model, SGD(model.parameters(), lr=0.3), Column(), vectors(), vectors())


def test_objective_may_give_the_mean_itself() -> None:
    class Mean(WeightNet):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits, targets).mean()

    model, objective, mean = small_model(), WeightNet(), Mean()
    mean.load_state_dict(objective.state_dict())
    optimizer, batch, clean = SGD(model.parameters(), lr=0.3), vectors(), vectors()
    expected = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(narl.hypergradient(model, optimizer, mean, batch, clean), expected) < 1e-12


# Which parameters ----------------------------------------------------------------------------------------------------


def test_parameter_groups_frozen_and_unused_parameters() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    model.register_parameter("unused", nn.Parameter(torch.randn(4)))
    first, second, third = model[0], model[2], model[4]
    second.requires_grad_(False)
    optimizer = SGD(
        [
            {"params": first.parameters(), "lr": 0.5, "momentum": 0.9},
            {"params": [*second.parameters(), *third.parameters()], "weight_decay": 0.2},
            {"params": [model.get_parameter("unused")], "weight_decay": 0.5},
        ],
        lr=0.1,
    )
    warmed_up(model, optimizer, vectors)
    objective, batch, clean = adjuster(), vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-6


def test_parameters_that_the_optimizer_does_not_hold_stand_still() -> None:
    model, objective = small_model(), adjuster()
    optimizer = SGD(list(model.parameters())[-2:], lr=0.3)
    batch, clean = vectors(), vectors()
    found = narl.hypergradient(model, optimizer, objective, batch, clean)
    assert relative_error(found, unrolled(model, optimizer, objective, batch, clean)) < 1e-6
    assert list(trained_parameters(model, optimizer)) == ["3.weight", "3.bias"]


def test_frozen_parameters_of_the_objective_get_zero() -> None:
    model, objective = small_model(), adjuster()
    objective.hidden.weight.requires_grad_(False)
    found = narl.hypergradient(model, SGD(model.parameters(), lr=0.3), objective, vectors(), vectors())
    assert float(found[0].abs().sum()) == 0.0
    assert all(float(gradient.abs().sum()) > 0 for gradient in found[1:])


# What is left as it was ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::narl.errors.NarlWarning")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("optimizer_name", ["sgd-nesterov", "adam-amsgrad"])
def test_nothing_changes(name: str, optimizer_name: str) -> None:
    make_model, make_batch = LAYERS[name]
    model, objective = make_model(), adjuster()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    warmed_up(model, optimizer, make_batch)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), objective.state_dict(), model.training))
    slots = [(id(p), type(p)) for m in model.modules() for p in (*m._parameters.values(), *m._buffers.values())]
    narl.hypergradient(model, optimizer, objective, make_batch(), make_batch())
    assert_identical(before, (model.state_dict(), optimizer.state_dict(), objective.state_dict(), model.training))
    assert_identical(gradients, [p.grad for p in model.parameters()])
    assert slots == [(id(p), type(p)) for m in model.modules() for p in (*m._parameters.values(), *m._buffers.values())]
    assert all(p.grad is None for p in objective.parameters())


def assert_identical(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_identical(left, right)
    else:
        assert a == b


# Bad input -----------------------------------------------------------------------------------------------------------


class Answers(nn.Module):
    """A model that returns whatever it was told to."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(5, CLASSES), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@pytest.mark.parametrize(
    "answer",
    [lambda z: z[:, 0], lambda z: z[:, :, None, None], lambda z: (z, z), lambda z: {"logits": z}, lambda z: z[:-1]],
    ids=["vector", "map", "tuple", "dict", "too-few-rows"],
)
def test_output_that_is_not_class_scores(answer: Callable[[Tensor], Any]) -> None:
    model = Answers(answer)
    with pytest.raises(errors.ModelOutputError, match=r"Answers returned .* wrap the model"):
        narl.hypergradient(model, SGD(model.parameters(), lr=0.1), adjuster(), vectors(), vectors())


def test_optimizer_of_another_model() -> None:
    with pytest.raises(errors.OptimizerError, match=r"holds 5 of 5 parameters that are not the model's"):
        narl.hypergradient(small_model(), SGD(small_model().parameters(), lr=0.1), adjuster(), vectors(), vectors())


def test_optimizer_without_a_parameter_to_train() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(errors.OptimizerError, match="nothing would be trained"):
        trained_parameters(model, SGD(model.parameters(), lr=0.1))


def test_optimizer_without_known_derivative() -> None:
    model = small_model()
    optimizer = RMSprop(model.parameters())
    with pytest.raises(errors.OptimizerError, match=r"RMSprop.*virtual='sgd'"):
        narl.hypergradient(model, optimizer, adjuster(), vectors(), vectors())
    assert len(narl.hypergradient(model, optimizer, adjuster(), vectors(), vectors(), virtual="sgd")) == 4


@pytest.mark.parametrize(
    ("clean", "message"),
    [
        ((torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)), "empty"),
        (torch.zeros(3, 5), r"give \(x, y\)"),
        (None, r"give \(x, y\)"),
        ((torch.zeros(3, 5),), r"give \(x, y\)"),
    ],
)
def test_clean_batch_that_is_none(clean: Any, message: str) -> None:
    model = small_model()
    with pytest.raises(errors.CleanBatchError, match=message):
        narl.hypergradient(model, SGD(model.parameters(), lr=0.1), adjuster(), vectors(), clean)


def test_labels_and_inputs_that_cannot_be_meant() -> None:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    (x, y), clean = vectors(), vectors()
    with pytest.raises(errors.LabelError, match=r"0 … 2"):
        narl.hypergradient(model, optimizer, adjuster(), (x, y + 1 + (y == 2) * 5), clean)
    with pytest.raises(errors.LabelError, match=r"labels\.long\(\)"):
        narl.hypergradient(model, optimizer, adjuster(), (x, y.double()), clean)
    with pytest.raises(errors.LabelError, match=r"0 … 2"):
        narl.hypergradient(model, optimizer, adjuster(), (x, y), (clean[0], clean[1] - 5))
    with pytest.raises(errors.LogitsError, match="NaN"):
        narl.hypergradient(model, optimizer, adjuster(), (x * torch.nan, y), clean)
    with pytest.raises(errors.LogitsError, match="NaN"):
        narl.hypergradient(model, optimizer, adjuster(), (x, y), (clean[0] * torch.nan, clean[1]))


def test_unknown_options() -> None:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(errors.OptionError, match="'optimizer'"):
        narl.hypergradient(model, optimizer, adjuster(), vectors(), vectors(), virtual="adam")
    with pytest.raises(errors.OptionError, match="'auto', 'forward'"):
        narl.hypergradient(model, optimizer, adjuster(), vectors(), vectors(), tangent="backward")
