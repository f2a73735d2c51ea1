"""Boosted steps as one CUDA graph each: the same training as steps as they are written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from engine_problem import Clean, apart
from graphed_problem import PREPARED, ROWS, SAMPLES, STEPS, Training, training
from narl.errors import NarlWarning
from narl.train.engine import STEPS_WORTH_COMPILING, Engine, make
from narl.train.engine.prepared import PreparedEngine

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before


def engine_of(one: Training, precision: str = "float32", steps: int = STEPS) -> PreparedEngine:
    clean = Clean([(one.x[:9], one.y[:9])])
    made = make("auto", one.method, one.model, one.optimizer, clean, rows=ROWS, steps=steps, precision=precision)
    assert isinstance(made, PreparedEngine)
    return made


def go(one: Training, engine: Engine, steps: range) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NarlWarning)  # nothing falls back
        one.go(engine, steps)


def assert_same_training(kind: str, trusted: int, steps: int = STEPS) -> None:
    name, options = PREPARED[kind]
    own, other = (training(name, device="cuda", trusted=trusted, **options) for _ in range(2))
    engine = engine_of(other, steps=steps)
    go(own, Engine(own.method), range(STEPS))
    go(other, engine, range(STEPS))
    engine.check()
    assert engine.steps == STEPS - other.method.begins  # type: ignore[attr-defined]
    assert apart(other.losses, own.losses) < 1e-4
    assert other.away_from(own) < 1e-3
    assert [r.meta_loss is None for r in other.reports] == [r.meta_loss is None for r in own.reports]


@pytest.mark.parametrize("trusted", [0, SAMPLES // 3])
@pytest.mark.parametrize("kind", PREPARED)
def test_twenty_steps(kind: str, trusted: int) -> None:
    assert_same_training(kind, trusted)


def test_twenty_compiled_steps() -> None:
    assert_same_training("posterior", SAMPLES // 3, steps=STEPS_WORTH_COMPILING)


def test_steps_do_not_wait_for_the_device() -> None:
    # A snapshot of the adjuster is copied to the CPU: the only one is due in the last step, which is left out.
    one = training("A-GCE+", device="cuda", doubt="posterior", snapshots=1)
    engine = engine_of(one)
    go(one, engine, range(12))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        go(one, engine, range(12, STEPS - 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.steps == STEPS - 1


def test_bfloat16_stays_near() -> None:
    own, other = (training("A-GCE+", device="cuda") for _ in range(2))
    engine = engine_of(other, "bfloat16")
    go(own, Engine(own.method), range(STEPS))
    go(other, engine, range(STEPS))
    assert engine.steps == STEPS
    assert max(abs(float(a - b)) for a, b in zip(other.losses, own.losses, strict=True)) < 0.1
