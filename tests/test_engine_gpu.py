"""Captured and compiled steps on a GPU: the same training as the eager path."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_problem import ROWS, Clean, Peeking, Twin, apart, twin
from narl.adjuster import Adjuster
from narl.errors import NarlWarning, NonFiniteError
from narl.models import get as model_of
from narl.train import plan, start
from narl.train.engine import make
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.stack import Stack
from narl.train.settings import Settings

pytestmark = pytest.mark.gpu

STEPS = 50
METHODS: dict[str, dict[str, Any]] = {
    "CE": {},
    "GCE": {},
    "SL": {},
    "PolySoft": {},
    "JS": {},
    "Forward": {},
    "A-GCE": {"every": 2, "adjuster_weight_decay": 0.0},
    "A-SL": {"every": 1, "margin": "latest", "adjuster_weight_decay": 0.0},
    "MW-Net": {"every": 5, "adjuster_weight_decay": 0.0},
    "T-GCE": {
        "adjusters": [
            Adjuster("gce", [5, 5, 9], margin="running", input="margin+progress").begin_at(q=q) for q in (0.2, 0.9, 0.5)
        ]
    },
}
GRAPHS = dict.fromkeys(METHODS, 1) | {"Forward": 2, "A-GCE": 2, "MW-Net": 2}


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def engine_of(one: Twin, *, compiled: bool = False) -> CapturedEngine:
    return CapturedEngine(
        one.method,
        one.model,
        one.optimizer,
        one.clean,
        rows=ROWS,
        precision=None,
        compiled=compiled,
    )


def gradients(one: Twin) -> list[Tensor]:
    return [p.grad for p in one.learned if p.grad is not None]


@pytest.mark.parametrize("compiled", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("name", METHODS)
def test_losses_and_adjuster_gradients_over_50_steps(name: str, compiled: bool) -> None:
    own, other = (twin(name, device="cuda", steps=STEPS, rate=0.02, **METHODS[name]) for _ in range(2))
    engine = engine_of(other, compiled=compiled)
    for number, batch in enumerate(own.batches):
        for one in (own, other):
            one.optimizer.param_groups[0]["lr"] = 0.02 * (1 - number / (2 * STEPS))  # a schedule, no recapture
        with warnings.catch_warnings():
            warnings.simplefilter("error", NarlWarning)  # nothing falls back
            found = engine.step(*batch)
        expected = own.method.step(*batch)
        assert abs(float(found.loss - expected.loss)) < 1e-4
        if expected.meta_loss is not None:
            assert found.meta_loss is not None
            assert abs(float(found.meta_loss - expected.meta_loss)) < 1e-4
            assert apart(gradients(other), gradients(own)) < 1e-4
    engine.check()
    assert len(engine._graphs) == GRAPHS[name]
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3


def test_resnet32_compiled_over_50_steps() -> None:
    """Step by step from the same state, in float64.

    On their own, two such runs part at the first ReLU that rounding moves over its kink.
    """
    own, other = (
        twin(
            "A-GCE",
            model="resnet32",
            device="cuda",
            dtype=torch.float64,
            steps=STEPS,
            rate=0.01,
            every=5,
            adjuster_weight_decay=0.0,
        )
        for _ in range(2)
    )
    engine = engine_of(other, compiled=True)
    for number, batch in enumerate(own.batches):
        if number:
            other.follow(own)
        found, expected = engine.step(*batch), own.method.step(*batch)
        assert abs(float(found.loss - expected.loss)) < 1e-6
        assert apart(other.model.parameters(), own.model.parameters()) < 1e-6
        if expected.meta_loss is not None:
            assert apart(gradients(other), gradients(own)) < 1e-4  # the adjuster's numbers are float32


def test_another_batch_size_runs_eagerly_in_between() -> None:
    own, other = (twin("A-GCE", device="cuda", every=2) for _ in range(2))
    engine = engine_of(other)
    for number, (x, y, ids) in enumerate(own.batches):
        rows = slice(0, 7 if number % 4 == 3 else ROWS)
        engine.step(x[rows], y[rows], ids[rows])
        own.method.step(x[rows], y[rows], ids[rows])
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3


@pytest.mark.parametrize("name", ["CE", "A-GCE"])
def test_a_step_that_is_not_finite_moves_nothing_and_is_told(name: str) -> None:
    one = twin(name, device="cuda")
    engine = engine_of(one)
    x, y, ids = one.batches[0]
    engine.step(x, y, ids)
    before = [p.clone() for p in one.model.parameters()]
    engine.step(torch.full_like(x, torch.inf), y, ids)
    engine.step(x, y, ids)
    assert apart(one.model.parameters(), before) == 0
    with pytest.raises(NonFiniteError, match="not finite"):
        engine.check()


def test_a_model_that_cannot_be_captured_trains_eagerly_and_says_so() -> None:
    own, other = (twin("A-GCE", model=_seeded(Peeking()), device="cuda", every=2) for _ in range(2))
    engine = engine_of(other, compiled=True)
    with pytest.warns(NarlWarning) as told:
        engine.step(*own.batches[0])
    for batch in own.batches[1:]:
        engine.step(*batch)
    lines = [str(warning.message).split(" (")[0] for warning in told]
    assert [line for line in lines if line.startswith("Peeking with")] == [
        "Peeking with A-GCE trains without compiled kernels",
        "Peeking with A-GCE trains without CUDA graphs",
    ]
    for batch in own.batches:
        own.method.step(*batch)
    assert apart(other.model.parameters(), own.model.parameters()) < 1e-4


def _seeded(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        nn.init.uniform_(weights, -0.05, 0.05, generator=generator)
    return model


def test_dropout_draws_anew_in_every_replay() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    one = twin("CE", model=_seeded(model), device="cuda", rate=0.0)
    engine = engine_of(one)
    losses = [float(engine.step(*one.batches[0]).loss) for _ in range(6)]
    assert len(set(losses)) > 3


def test_transformer_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    model = model_of("text_transformer")(100, 4, layers=2, generator=generator)
    one = twin("A-GCE", model=model, device="cuda", every=2, optimizer="adamw", rate=1e-3, steps=30)
    words = torch.randint(1, 100, (ROWS, 16), device="cuda")
    clean = Clean([(torch.randint(1, 100, (9, 16), device="cuda"), torch.randint(0, 4, (9,), device="cuda"))])
    engine = CapturedEngine(
        one.method, one.model, one.optimizer, clean, rows=ROWS, precision=torch.bfloat16, compiled=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", NarlWarning)
        losses = [float(engine.step(words, *one.batches[0][1:]).loss) for _ in range(30)]
    engine.check()
    assert losses[-1] < losses[0]


def test_a_run_on_images(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 600)
    images = (generator.normal(size=(600, 16, 16, 3)) * 20 + 60 * labels[:, None, None, None]).clip(0, 255)
    np.savez(tmp_path / "data.npz", x=images.astype(np.uint8), y=labels)
    settings = Settings(
        data=str(tmp_path / "data.npz"), clean="60", test="0.2", epochs=3, model="convnet", batch_size=50, seed=1
    )
    made = plan(settings)
    assert (made.recipe.precision, made.recipe.device) == ("bfloat16", "cuda")
    outcome = start(made, tmp_path / "run", tensorboard=False)
    assert outcome.finished
    assert outcome.summary["last"]["test_accuracy"] > 0.8


def test_auto_takes_graphs_on_a_gpu() -> None:
    one = twin("CE", device="cuda")
    made = make("auto", one.method, one.model, one.optimizer, None, rows=ROWS, steps=10)
    assert isinstance(made, CapturedEngine)
    eager = make("eager", one.method, one.model, one.optimizer, None, rows=ROWS, steps=10)
    assert not isinstance(eager, CapturedEngine)


@pytest.mark.parametrize("compiled", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    "names",
    [("CE", "GCE", "JS", "PolySoft"), ("CE", "T-GCE", "GCE", "T-GCE"), ("A-GCE", "A-SL", "MW-Net")],
    ids=["fixed", "transferred", "learned"],
)
def test_a_stack_over_50_steps(names: tuple[str, ...], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narl.train.engine.STEPS_WORTH_COMPILING", 0 if compiled else STEPS + 1)
    learned: dict[str, Any] = {"every": 2, "adjuster_weight_decay": 0.0}
    options = {name: METHODS[name] if name.startswith("T-") else {} for name in names}
    options |= {name: learned for name in names if name in ("A-GCE", "A-SL", "MW-Net")}
    own, stacked = (
        [twin(name, device="cuda", steps=STEPS, rate=0.02, dtype=torch.float64, **options[name]) for name in names]
        for _ in range(2)
    )
    stack = Stack()
    seats = [
        stack.seat("auto", one.method, one.model, one.optimizer, one.clean, rows=ROWS, steps=STEPS) for one in stacked
    ]
    for number in range(STEPS):
        for one in (*own, *stacked):
            one.optimizer.param_groups[0]["lr"] = 0.02 * (1 - number / (2 * STEPS))
        with warnings.catch_warnings():
            warnings.simplefilter("error", NarlWarning)  # nothing falls back
            found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            expected = one.method.step(*one.batches[number])
            assert abs(float(report.loss - expected.loss)) < 1e-4
            assert (report.meta_loss is None) == (expected.meta_loss is None)
    stack.check()
    if compiled and "A-GCE" not in names:
        assert stack._engine is not None
        assert stack._engine._iteration is not None
        made = list(stack._engine._iteration._compiled.values())
        assert made
        assert None not in made, "their losses run as they are written"
    for one, other in zip(stacked, own, strict=True):
        assert apart(one.model.state_dict().values(), other.model.state_dict().values()) < 1e-4
        assert apart(one.learned, other.learned) < 1e-3


def test_a_shared_adjuster_and_one_that_leaves() -> None:
    options: dict[str, Any] = {"every": 2, "adjuster_weight_decay": 0.0}
    graphs, eager = (
        [twin("A-GCE", device="cuda", steps=STEPS, rate=0.02, dtype=torch.float64, **options) for _ in range(3)]
        for _ in range(2)
    )
    stacks = [Stack(shared=True) for _ in range(2)]
    seats = [
        [stack.seat(name, one.method, one.model, one.optimizer, one.clean, rows=ROWS, steps=STEPS) for one in trainings]
        for stack, name, trainings in zip(stacks, ("auto", "eager"), (graphs, eager), strict=True)
    ]
    for number in range(STEPS):
        for here, stack, trainings in zip(seats, stacks, (graphs, eager), strict=True):
            left = slice(1 if number > STEPS // 2 else 0, None)
            stack.step(here[left], [one.batches[number] for one in trainings[left]])
    for one, other in zip(graphs, eager, strict=True):
        assert apart(one.model.state_dict().values(), other.model.state_dict().values()) < 1e-4
        assert apart(one.learned, other.learned) < 1e-3


def test_a_stack_in_bfloat16_stays_near() -> None:
    own, stacked = ([twin(name, device="cuda", steps=20, rate=0.02) for name in ("CE", "GCE")] for _ in range(2))
    stack = Stack()
    seats = [
        stack.seat("auto", s.method, s.model, s.optimizer, s.clean, rows=ROWS, steps=20, precision="bfloat16")
        for s in stacked
    ]
    for number in range(20):
        found = stack.step(seats, [one.batches[number] for one in stacked])
        for one, report in zip(own, found, strict=True):
            assert abs(float(report.loss - one.method.step(*one.batches[number]).loss)) < 0.1
