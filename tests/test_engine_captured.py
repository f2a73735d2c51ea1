"""What the captured engine does around its graphs; here steps are run where a GPU would replay them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from engine_problem import ROWS, Twin, apart, replay_on_cpu, twin
from narl.errors import NarlWarning, NonFiniteError
from narl.train.engine import captured
from narl.train.engine.captured import CapturedEngine
from narl.train.methods import Move


def engine_of(one: Twin, *, compiled: bool = False) -> CapturedEngine:
    return CapturedEngine(one.method, one.model, one.optimizer, one.clean, rows=ROWS, precision=None, compiled=compiled)


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("name", ["CE", "Forward", "ELR", "A-GCE", "MW-Net"])
def test_smaller_batches_in_between(name: str) -> None:
    options: dict[str, Any] = {"every": 2} if name in ("A-GCE", "MW-Net") else {}
    own, other = (twin(name, **options) for _ in range(2))
    engine = engine_of(other)
    for number, (x, y, ids) in enumerate(own.batches):
        rows = slice(0, 7 if number % 3 == 2 else ROWS)
        expected, found = (each(x[rows], y[rows], ids[rows]) for each in (own.method.step, engine.step))
        assert abs(float(found.loss - expected.loss)) < 1e-3
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3
    assert own.clean()[0].equal(other.clean()[0])  # as many clean batches were drawn


@pytest.mark.usefixtures("replaying")
def test_trainings_of_one_kind_share_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that go other ways, and a third of another kind."""
    compiled: list[object] = []

    def compile(graph: Any, **options: Any) -> Any:
        compiled.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(captured, "_compiled", {})
    counts = []
    for name, rate in (("A-GCE", 0.05), ("A-GCE", 0.02), ("A-JS", 0.05)):
        own, other = (twin(name, rate=rate, every=2) for _ in range(2))
        engine = engine_of(other, compiled=True)
        for batch in own.batches:
            expected, found = (each(*batch) for each in (own.method.step, engine.step))
            assert abs(float(found.loss - expected.loss)) < 1e-3
        assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3
        counts.append(len(compiled))
    assert counts[0] == counts[1] < counts[2] < 2 * counts[0]  # the network's passes are the same for all


def test_what_holds_a_training_s_tensors_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    for held in (1.0, 2.0):
        factor = torch.tensor([held, 0.0])
        graph = make_fx(factor.mul)(torch.ones(2))
        assert captured._compile(graph)(torch.ones(2)).tolist() == [held, 0.0]


@pytest.mark.usefixtures("replaying")
def test_another_state_is_taken_over() -> None:
    own, other = (twin("A-GCE", every=2) for _ in range(2))
    engine, half = engine_of(other), len(own.batches) // 2
    for batch in own.batches[:half]:
        own.method.step(*batch)
    for batch in reversed(own.batches[:3]):  # it has gone another way so far
        engine.step(*batch)
    model, optimizer, method = (_copied(part.state_dict()) for part in (own.model, own.optimizer, own.method))
    other.model.load_state_dict(model)
    other.optimizer.load_state_dict(optimizer)
    other.method.load_state_dict(method)
    engine.reset()
    other.clean, engine._clean = own.clean, None
    for batch in own.batches[half:]:
        clean = own.clean()
        for one in (own, other):
            object.__setattr__(one.method.setting, "clean", lambda clean=clean: clean)  # type: ignore[attr-defined]
        engine._clean = Always(clean)
        own.method.step(*batch)
        engine.step(*batch)
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3
    assert apart(other.learned, own.learned) < 1e-2


class Always:
    def __init__(self, batch: tuple[Tensor, Tensor]) -> None:
        self._batch = batch

    def __call__(self) -> tuple[Tensor, Tensor]:
        return self._batch

    def example(self) -> tuple[Tensor, Tensor]:
        return self._batch


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("no such kernel"), ["compiled kernels", "CUDA graphs"]),
        (torch.OutOfMemoryError("too little memory"), ["CUDA graphs"]),
    ],
    ids=["error", "memory"],
)
def test_what_cannot_be_captured_runs_as_written(
    error: Exception, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(CapturedEngine, "_capture", fail)
    own, other = (twin("A-GCE", every=2) for _ in range(2))
    engine = engine_of(other, compiled=True)
    with pytest.warns(NarlWarning) as warned:
        engine.step(*own.batches[0])
    assert [str(each.message).split("without ")[1] for each in warned] == [f"{part} ({error})" for part in told]
    own.method.step(*own.batches[0])
    for batch in own.batches[1:]:
        engine.step(*batch)
        own.method.step(*batch)
    assert apart(other.model.parameters(), own.model.parameters()) == 0
    assert own.clean()[0].equal(other.clean()[0])


@pytest.mark.usefixtures("replaying")
def test_a_bad_step_is_not_forgotten_when_a_later_phase_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    one = twin("A-GCE", every=2)
    engine = engine_of(one)
    x, y, ids = one.batches[0]
    engine.step(x, y, ids)
    assert engine._iteration is not None
    engine._iteration._watch(torch.tensor(torch.nan))
    capture: Callable[..., Any] = CapturedEngine._capture

    def fail(self: CapturedEngine, move: Move, *batch: Tensor) -> Any:
        if move.meta is None:
            raise RuntimeError("no such kernel")
        return capture(self, move, *batch)

    monkeypatch.setattr(CapturedEngine, "_capture", fail)
    with pytest.raises(NonFiniteError):
        engine.step(x, y, ids)


@pytest.mark.usefixtures("replaying")
def test_losses_that_were_reported_stay() -> None:
    one = twin("A-GCE", every=1)
    engine = engine_of(one)
    first = engine.step(*one.batches[0])
    assert first.meta_loss is not None
    shown = float(first.loss), float(first.meta_loss)
    for found in engine._graphs.values():
        found.report.loss.fill_(7.0)
        assert found.report.meta_loss is not None
        found.report.meta_loss.fill_(7.0)
    assert (float(first.loss), float(first.meta_loss)) == shown


def test_a_method_that_does_not_say_its_steps_is_told_once() -> None:
    own, other = (twin("A-GCE", every=2, tangent="reverse") for _ in range(2))
    engine = engine_of(other, compiled=True)
    with pytest.warns(NarlWarning, match="with A-GCE trains without CUDA graphs .it weighs its samples") as told:
        engine.step(*own.batches[0])
    assert len(told) == 1
    for batch in own.batches[1:]:
        engine.step(*batch)  # a second line would be an error here
    for batch in own.batches:
        own.method.step(*batch)
    assert apart(other.model.parameters(), own.model.parameters()) == 0
