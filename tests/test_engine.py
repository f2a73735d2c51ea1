"""The plain functions of a step do what the method's own step does; capturing them is tested on GPUs."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from engine_problem import ROWS, SAMPLES, Twin, apart, twin
from narl import losses
from narl.adjuster import Adjuster
from narl.bilevel import StepReport
from narl.bilevel.optimizers import fill_state
from narl.errors import NonFiniteError, OptionError
from narl.train import engine
from narl.train.defaults import decide
from narl.train.engine.iteration import Iteration, drawn_on_host
from narl.train.engine.rates import Rates
from narl.train.methods.base import LossMethod
from narl.train.settings import Settings


def played(one: Twin, iteration: Iteration, batch: tuple[Tensor, Tensor, Tensor]) -> StepReport:
    move = one.method.move()
    if move is None:
        return one.method.step(*batch)
    clean = one.clean() if move.meta is not None else None
    iteration.refresh()
    iteration.prepare(move, *batch, clean)
    report = iteration.run(move, *batch, clean)
    one.method.moved()
    iteration.check()
    return report


def values_of(report: StepReport) -> list[Tensor]:
    losses = [report.loss] if report.meta_loss is None else [report.loss, report.meta_loss]
    assert report.margins is not None
    return [*losses, report.margins, *report.hyperparameters.values()]


METHODS: dict[str, dict[str, Any]] = {
    "CE": {},
    "GCE": {},
    "Forward": {},
    "ELR": {},
    "MW-Net": {"every": 2},
    "A-GCE": {"every": 2},
    "A-SL": {"every": 1, "margin": "latest"},
    "A-PolySoft": {"every": 3, "warmup": 0.25},
    "A-JS": {"every": 2, "virtual": "sgd", "input": "scaled+progress"},
    "T-GCE": {"adjusters": [Adjuster("gce", [5, 5, 9], margin="running", generator=torch.Generator())] * 3},
    "T-SL": {
        "adjusters": [Adjuster("sl", [5, 5, 9], margin="running", generator=torch.Generator())] * 3,
        "noise_rate": "estimated",
    },
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_same_training_as_the_methods_own_step(name: str, optimizer: str) -> None:
    rate = 0.05 if optimizer == "sgd" else 1e-3
    options = {"dtype": torch.float64, "optimizer": optimizer, "rate": rate, **METHODS[name]}
    own, other = twin(name, **options), twin(name, **options)
    iteration = Iteration(other.model, other.optimizer)
    for number, batch in enumerate(own.batches):
        for one in (own, other):
            one.optimizer.param_groups[0]["lr"] = rate * (1 - number / 24)
        expected, found = own.method.step(*batch), played(other, iteration, batch)
        assert apart(values_of(found), values_of(expected)) < 1e-5  # the adjuster's numbers are float32
        assert found.rivals is not None
        assert expected.rivals is not None
        assert torch.equal(found.rivals, expected.rivals)
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-6
    assert apart(other.learned, own.learned) < 1e-4
    assert other.method.state_dict().keys() == own.method.state_dict().keys()


def compiled(graph: fx.GraphModule) -> Callable[..., Any]:
    """As on a GPU, but for the last part of the compiler, which would write kernels."""
    return torch.compile(graph, dynamic=False, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("name", ["GCE", "T-GCE", "T-SL", "A-SL"])
def test_compiled_losses_do_what_the_methods_own_do(name: str) -> None:
    own, other = (twin(name, dtype=torch.float64, **METHODS[name]) for _ in range(2))
    iteration = Iteration(other.model, other.optimizer, compile=compiled)
    for batch in own.batches:
        expected, found = own.method.step(*batch), played(other, iteration, batch)
        assert list(found.hyperparameters) == list(expected.hyperparameters)
        assert apart(values_of(found), values_of(expected)) < 1e-5
    made = [iteration._slopes] if name == "A-SL" else list(iteration._compiled.values())
    assert len(made) == 1
    assert made[0] is not None, "it runs as it is written"
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-6
    remembered = [list(tensors_of(one.method.state_dict())) for one in (own, other)]
    assert len(remembered[0]) >= {"GCE": 0, "T-GCE": 1, "T-SL": 3, "A-SL": 1}[name]
    for one, its in zip(*remembered, strict=True):
        assert torch.equal(one.isnan(), its.isnan())
        assert torch.allclose(one.nan_to_num(), its.nan_to_num(), atol=1e-4)


def tensors_of(state: Any) -> Iterator[Tensor]:
    """All of them, in dictionaries and lists."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, (dict, list, tuple)):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_of(part)


class InPhases(LossMethod):
    """Cross entropy first, then twice that."""

    factor = torch.ones(())

    @property
    def phase(self) -> str:
        return "once" if self.steps < 3 else "twice"

    @property
    def compiles_with(self) -> nn.Module:
        return nn.Module()

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        return losses.ce(logits, y) * (1 if self.steps < 3 else 2)


class Elsewhere(InPhases):
    """Looks at a tensor that it does not say."""

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        return super().values(logits, y, ids) * self.factor


@pytest.mark.parametrize("kind", [InPhases, Elsewhere])
def test_a_loss_that_changes_is_compiled_anew_or_runs_as_written(kind: type[InPhases]) -> None:
    own, other = twin("CE", dtype=torch.float64), twin("CE", dtype=torch.float64)
    for one in (own, other):
        one.method = kind(one.method.setting)  # type: ignore[attr-defined]
    iteration = Iteration(other.model, other.optimizer, compile=compiled)
    for batch in own.batches:
        expected, found = own.method.step(*batch), played(other, iteration, batch)
        assert apart(values_of(found), values_of(expected)) < 1e-5
    assert {phase: made is not None for phase, made in iteration._compiled.items()} == dict.fromkeys(
        ("once", "twice"), kind is InPhases
    )


def test_where_samples_are_trusted_or_nobody_has_said_what_it_looks_at_a_loss_runs_as_written() -> None:
    for one in (twin("Forward"), twin("T-SL", trusted=5, **METHODS["T-SL"])):
        move = one.method.move()
        assert move is not None
        assert move.holder is None


def test_a_training_that_is_over_keeps_nothing_alive() -> None:
    one = twin("T-SL", **METHODS["T-SL"])
    played(one, Iteration(one.model, one.optimizer), one.batches[0])
    remembered = weakref.ref(one.method), weakref.ref(one.model)
    gc.disable()
    try:
        del one
        assert [seen() for seen in remembered] == [None, None]
    finally:
        gc.enable()


def test_running_margins_are_remembered() -> None:
    own, other = twin("A-GCE", every=2), twin("A-GCE", every=2)
    iteration = Iteration(other.model, other.optimizer)
    for batch in own.batches:
        own.method.step(*batch)
        played(other, iteration, batch)
    tables = [one.method.adjuster.running.table for one in (own, other)]  # type: ignore[union-attr]
    assert [len(table) for table in tables] == [SAMPLES, SAMPLES]
    assert torch.equal(tables[0].isnan(), tables[1].isnan())
    assert torch.allclose(tables[0].nan_to_num(), tables[1].nan_to_num(), atol=1e-4)


def test_an_engine_may_take_over_in_the_middle() -> None:
    own, other = twin("A-GCE", every=2), twin("A-GCE", every=2)
    iteration = Iteration(other.model, other.optimizer)
    for number, batch in enumerate(own.batches):
        own.method.step(*batch)
        played(other, iteration, batch) if number % 3 else other.method.step(*batch)
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3


def test_what_is_not_finite_is_refused() -> None:
    one = twin("A-GCE")
    iteration = Iteration(one.model, one.optimizer)
    x, y, ids = one.batches[0]
    played(one, iteration, (x, y, ids))
    with pytest.raises(NonFiniteError, match="not finite"):
        played(one, iteration, (torch.full_like(x, torch.inf), y, ids))
    with pytest.raises(NonFiniteError):  # it does not heal by itself
        iteration.check()


class Jumpy(nn.Module):
    """Draws a number on the host in its forward pass."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.linear, self.draw = nn.Linear(768, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x.flatten(1))
        return scores * (1 + self.draw())


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
def test_random_numbers_of_the_host_are_refused(draw: Callable[[], float]) -> None:
    one = twin("CE", model=Jumpy(draw))
    iteration = Iteration(one.model, one.optimizer)
    with pytest.raises(OptionError, match="random numbers on the host"):
        played(one, iteration, one.batches[0])


def test_what_torch_draws_on_the_host_counts_for_models_elsewhere() -> None:
    before = [drawn_on_host(torch.device(kind)) for kind in ("cpu", "meta")]
    with torch.random.fork_rng(devices=[]):
        torch.rand(())
        assert [drawn_on_host(torch.device(kind)) == b for kind, b in zip(("cpu", "meta"), before, strict=True)] == [
            True,
            False,
        ]


class Scaled(nn.Module):
    """Its first parameter is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.linear = nn.Linear(768, 4)
        nn.init.uniform_(self.linear.weight, -0.1, 0.1, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x.flatten(1))
        return scores * self.scale


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_parameter_of_one_number_looks_ahead_with_its_own_momentum(optimizer: str) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "rate": 1e-2, "every": 1, "dtype": torch.float64}
    own, other = (twin("A-GCE", model=Scaled(), **options) for _ in range(2))
    iteration = Iteration(other.model, other.optimizer)
    for batch in own.batches:
        expected, found = own.method.step(*batch), played(other, iteration, batch)
        assert apart(values_of(found), values_of(expected)) < 1e-5


def test_weights_of_several_types_are_refused() -> None:
    one = twin("CE")
    one.model[4].double()  # type: ignore[index]
    with pytest.raises(OptionError, match="several types"):
        Iteration(one.model, one.optimizer)


class Replacing(nn.Module):
    """Gives itself a new buffer in every pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, 4)
        nn.init.uniform_(self.linear.weight, -0.1, 0.1, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.mean() + 0 * self.linear.bias.sum()  # not even detached
        scores: Tensor = self.linear(x.flatten(1) - self.mean.detach())
        return scores


def test_buffers_that_a_model_replaces_are_taken_over() -> None:
    own, other = (twin("CE", model=Replacing()) for _ in range(2))
    iteration = Iteration(other.model, other.optimizer)
    first = other.model.get_buffer("mean")
    for number, batch in enumerate(own.batches):
        own.method.step(*batch)
        if number % 3 == 2:
            other.method.step(*batch)
            assert other.model.get_buffer("mean") is not first
        else:
            played(other, iteration, batch)
            assert other.model.get_buffer("mean") is first  # a captured step would know no other
        assert torch.allclose(other.model.get_buffer("mean"), own.model.get_buffer("mean"))
    assert apart(other.model.parameters(), own.model.parameters()) < 1e-4


def test_dropout_masks_are_shared_by_the_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(768, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4)]
    for layer in layers:
        for weights in layer.parameters():
            nn.init.uniform_(weights, -0.1, 0.1, generator=generator)
    one = twin("A-GCE", model=nn.Sequential(*layers), every=1)
    iteration = Iteration(one.model, one.optimizer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        losses = [float(played(one, iteration, one.batches[0]).loss) for _ in one.batches]
    assert float(iteration._bad_tangent) == 0  # ⟨g_z, J d⟩ = ⟨Jᵀ g_z, d⟩ in every meta step
    assert len(set(losses)) == len(losses)


def test_frozen_weights_stay() -> None:
    own, other = (twin("A-GCE", model=_frozen(), every=2) for _ in range(2))
    iteration = Iteration(other.model, other.optimizer)
    before = [p.clone() for p in other.model[1].parameters()]  # type: ignore[index]
    for batch in own.batches:
        own.method.step(*batch)
        played(other, iteration, batch)
    assert apart(other.model[1].parameters(), before) == 0  # type: ignore[index]
    assert apart(other.model.parameters(), own.model.parameters()) < 1e-4


def _frozen() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.Tanh(), nn.Linear(16, 4))
    for weights in model.parameters():
        nn.init.uniform_(weights, -0.1, 0.1, generator=generator)
    model[1].requires_grad_(False)
    return model


class Spare(nn.Module):
    """Holds a parameter that its logits do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))
        self.linear = nn.Linear(768, 4)
        for weights in self.linear.parameters():
            nn.init.uniform_(weights, -0.1, 0.1, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x.flatten(1))
        return scores


@pytest.mark.parametrize("name", ["CE", "A-GCE"])
def test_unused_parameters_are_left_alone(name: str) -> None:
    own, other = (twin(name, model=Spare()) for _ in range(2))
    iteration = Iteration(other.model, other.optimizer)
    for batch in own.batches:
        own.method.step(*batch)
        played(other, iteration, batch)
    assert torch.equal(other.model.get_parameter("spare"), torch.ones(3))
    assert apart(other.model.parameters(), own.model.parameters()) < 1e-4


def test_several_groups_are_refused() -> None:
    one = twin("CE")
    first, *others = one.model.parameters()
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": others}], lr=0.1)
    with pytest.raises(OptionError, match="several groups"):
        Iteration(one.model, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_filled_state_is_what_the_first_step_would_make(kind: Any) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    plain, filled = kind([weights[0]], lr=0.1, amsgrad=True), kind([weights[1]], lr=0.1, amsgrad=True)
    fill_state(filled)
    for weight, optimizer in zip(weights, (plain, filled), strict=True):
        weight.grad = torch.tensor([1.0, -2.0, 3.0])
        optimizer.step()
    assert torch.equal(*weights)
    assert plain.state[weights[0]].keys() == filled.state[weights[1]].keys()


def test_decay_by_gradient_is_the_optimisers_own() -> None:
    weights = [torch.tensor([1.0, -2.0], requires_grad=True) for _ in range(2)]
    own, other = (torch.optim.Adam([w], lr=0.1, weight_decay=0.3) for w in weights)
    rates = Rates(other, decay=True)
    for step in range(5):
        gradient = torch.tensor([0.5, step - 2.0])
        for optimizer in (own, other):
            optimizer.param_groups[0].update(lr=0.1 / (step + 1), weight_decay=0.3 / (step + 1))
        rates.refresh()
        weights[0].grad = gradient.clone()
        own.step()
        weights[1].grad = rates.decayed({weights[1]: gradient})[weights[1]]
        with rates.in_use():
            other.step()
    assert torch.allclose(weights[0], weights[1])
    assert other.param_groups[0]["weight_decay"] == 0.3 / 5


def test_on_the_cpu_steps_run_as_written() -> None:
    one = twin("CE")
    made = engine.make("auto", one.method, one.model, one.optimizer, None, rows=ROWS, steps=100)
    assert type(made) is engine.Engine
    assert made.step(*one.batches[0]).margins is not None


@pytest.mark.parametrize(
    ("kind", "device", "asked", "options", "found"),
    [
        ("image", "cuda", "auto", {}, "bfloat16"),
        ("text", "cuda", "auto", {}, "bfloat16"),
        ("table", "cuda", "auto", {}, "float32"),
        ("table", "cuda", "bfloat16", {}, "bfloat16"),
        ("image", "cuda", "auto", {"tangent": "difference"}, "float32"),
        ("image", "cuda", "float32", {}, "float32"),
        ("image", "cpu", "auto", {}, "float32"),
    ],
)
def test_precision_where_nobody_said(
    kind: str, device: str, asked: str, options: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    settings = Settings(data="x.npz", precision=asked, options=options)
    assert decide(settings, kind=kind, samples=100, device=device, threads=1).precision == found


def test_bfloat16_steps_stay_near() -> None:
    own, other = twin("A-GCE", every=2), twin("A-GCE", every=2)
    made = engine.make(
        "auto", other.method, other.model, other.optimizer, None, rows=ROWS, steps=100, precision="bfloat16"
    )
    for batch in own.batches[:4]:
        expected, found = own.method.step(*batch), made.step(*batch)
        assert abs(float(found.loss - expected.loss)) < 0.05
    assert next(other.model.parameters()).dtype == torch.float32
