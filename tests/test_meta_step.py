"""Algorithm 1 step by step: against a plain reference loop, over many steps, interrupted, with bad input."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import narl
from methods_problem import assert_same
from narl import errors
from narl.bilevel.calls import snapshot
from narl.bilevel.refusals import Noted
from oracles import relative_error, unrolled

CLASSES = 3


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor, tuple[Tensor, Tensor]]]:
    """Noisy and clean batches of a problem that can be learned."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(5, CLASSES, generator=generator)
    result = []
    for _ in range(count):
        x, clean_x = torch.randn(2, 16, 5, generator=generator)
        y = (x @ truth).argmax(1)
        wrong = torch.rand(16, generator=generator) < 0.4
        noisy = torch.where(wrong, (y + 1) % CLASSES, y)
        result.append((x, noisy, (clean_x, (clean_x @ truth).argmax(1))))
    return result


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


def make_adjuster(loss: str = "gce", margin: str = "latest") -> narl.Adjuster:
    return narl.Adjuster(loss, [30, 30, 9], hidden=12, margin=margin, generator=torch.Generator().manual_seed(5))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.2, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("virtual", ["optimizer", "sgd"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_reproduces_a_plain_loop_of_algorithm_1(name: str, virtual: str, every: int) -> None:
    model, reference = make_model(), make_model()
    adjuster, reference_adjuster = make_adjuster(), make_adjuster()
    optimizer, reference_optimizer = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    reference_outer = Adam(reference_adjuster.parameters(), lr=1e-3, weight_decay=1e-4)
    meta = narl.MetaStep(model, optimizer, adjuster, every=every, virtual=virtual)

    for t, (x, y, clean) in enumerate(batches(20)):
        report = meta.step(x, y, clean)
        if t % every == 0:
            gradients = unrolled(reference, reference_optimizer, reference_adjuster, (x, y), clean, virtual)
            for parameter, gradient in zip(reference_adjuster.parameters(), gradients, strict=True):
                parameter.grad = gradient
            reference_outer.step()
        reference_optimizer.zero_grad()
        loss = reference_adjuster.loss(reference(x), y).mean()
        torch.autograd.backward(loss, inputs=list(reference.parameters()))
        reference_optimizer.step()

        assert (report.meta_loss is not None) == (t % every == 0)
        torch.testing.assert_close(report.loss, loss.detach(), rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
        for ours, theirs in zip(adjuster.parameters(), reference_adjuster.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_clipped_gradients_are_clipped_in_the_look_ahead(name: str, clip: float) -> None:
    model, adjuster = make_model(), make_adjuster()
    optimizer = OPTIMIZERS[name](model.parameters())
    meta = narl.MetaStep(model, optimizer, adjuster, every=1, clip=clip)
    for x, y, clean in batches(4):
        expected = unrolled(model, optimizer, adjuster, (x, y), clean, clip=clip)
        found = meta.look_ahead(x, y, clean).gradients
        assert relative_error(found, expected) < 1e-6
        meta.step(x, y, clean)
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        assert norm <= clip


@pytest.mark.parametrize("form", ["backward", "loss"])
def test_loops_with_their_own_backward_pass_or_step(form: str) -> None:
    """The parts of a step give the whole one, bit for bit; gradients that are there stay."""
    models, adjusters = [make_model(), make_model()], [make_adjuster(), make_adjuster()]
    metas = [
        narl.MetaStep(model, SGD(model.parameters(), lr=0.1, momentum=0.9), adjuster, every=2)
        for model, adjuster in zip(models, adjusters, strict=True)
    ]
    for x, y, clean in batches(5):
        whole = metas[0].step(x, y, clean)
        metas[1].optimizer.zero_grad()
        if form == "backward":
            part = metas[1].backward(x, y, clean)
        else:
            loss, part = metas[1].loss(x, y, clean)
            assert torch.equal(loss, whole.loss)
            torch.autograd.backward(loss)
        metas[1].optimizer.step()
        assert torch.equal(part.loss, whole.loss)
        assert (part.meta_loss is None) == (whole.meta_loss is None)
        for first, second in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(first, second)
        for first, second in zip(adjusters[0].parameters(), adjusters[1].parameters(), strict=True):
            assert torch.equal(first, second)
    assert metas[1].steps == 5
    metas[1].backward(*batches(1)[0])
    assert all(p.grad is not None for p in models[1].parameters())


def test_report_holds_what_the_new_adjuster_gave() -> None:
    model, adjuster = make_model(), make_adjuster("sl")
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), adjuster)
    x, y, clean = batches(1)[0]
    logits = copy.deepcopy(model)(x).detach()
    report = meta.step(x, y, clean)
    assert set(report.hyperparameters) == {"gamma1", "gamma2"}
    assert report.margins is not None
    torch.testing.assert_close(report.margins, narl.margin(logits, y))
    for name, values in adjuster(logits, y).items():
        torch.testing.assert_close(report.hyperparameters[name], values.detach())
    assert not any(value.requires_grad for value in (report.loss, report.margins, *report.hyperparameters.values()))


def test_meta_loss_is_the_clean_loss_after_the_virtual_step() -> None:
    model, adjuster = make_model(), make_adjuster()
    x, y, (clean_x, clean_y) = batches(1)[0]
    ahead = copy.deepcopy(model)
    optimizer = SGD(ahead.parameters(), lr=0.1)
    torch.autograd.backward(adjuster.loss(ahead(x), y).mean(), inputs=list(ahead.parameters()))
    optimizer.step()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), adjuster)
    report = meta.step(x, y, (clean_x, clean_y))
    assert report.meta_loss is not None
    torch.testing.assert_close(report.meta_loss, F.cross_entropy(ahead(clean_x), clean_y).detach())


def test_clean_batches_are_asked_for_in_meta_steps_only() -> None:
    model = make_model()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=3)
    asked: list[int] = []

    for t, (x, y, clean) in enumerate(batches(7)):

        def draw(t: int = t, clean: tuple[Tensor, Tensor] = clean) -> tuple[Tensor, Tensor]:
            asked.append(t)
            return clean

        meta.step(x, y, draw)
    assert asked == [0, 3, 6]


def test_batchnorm_statistics_move_once_a_step() -> None:
    model, plain = make_model(), make_model()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=1)
    x, y, clean = batches(1)[0]
    meta.step(x, y, clean)
    plain(x)
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name)), name


def test_dropout_masks_of_the_step_are_those_of_its_forward_pass() -> None:
    def dropping() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES))

    model, reference, adjuster = dropping(), dropping(), make_adjuster()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), adjuster, every=1)
    x, y, clean = batches(1)[0]
    torch.manual_seed(11)
    meta.step(x, y, clean)
    torch.manual_seed(11)
    optimizer = SGD(reference.parameters(), lr=0.1)
    torch.autograd.backward(adjuster.loss(reference(x), y).mean(), inputs=list(reference.parameters()))
    optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_running_margin_is_remembered_once_a_step() -> None:
    model, adjuster = make_model(), make_adjuster(margin="running")
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.2), adjuster, every=2)
    ids, expected = torch.arange(16) + 100, torch.full((16,), torch.nan)
    for x, y, clean in batches(6):
        report = meta.step(x, y, clean, ids=ids)
        assert report.margins is not None
        expected = torch.where(expected.isnan(), report.margins, 0.9 * expected + 0.1 * report.margins)
        assert adjuster.running is not None
        torch.testing.assert_close(adjuster.running.table[ids], expected)


def test_inputs_as_tuple_and_mapping() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(10, CLASSES)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            logits: Tensor = self.layer(torch.cat([a, b], 1))
            return logits

    results = []
    for wrap in (lambda x: (x, 2 * x), lambda x: {"b": 2 * x, "a": x}):
        torch.manual_seed(0)
        model = Two()
        meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=1)
        x, y, (clean_x, clean_y) = batches(1)[0]
        meta.step(wrap(x), y, (wrap(clean_x), clean_y))
        results.append(model.layer.weight.detach())
    assert torch.equal(*results)


def test_probability_targets() -> None:
    model, same = make_model(), make_model()
    for trained, soft in ((model, True), (same, False)):
        meta = narl.MetaStep(trained, SGD(trained.parameters(), lr=0.1), make_adjuster(), every=1)
        for x, y, (clean_x, clean_y) in batches(3):
            one_hot = F.one_hot(y, CLASSES).float()
            meta.step(x, one_hot if soft else y, (clean_x, clean_y))
    for left, right in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def test_learning_rate_schedules_reach_the_virtual_step() -> None:
    model, adjuster = make_model(), make_adjuster()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], gamma=0.1)
    meta = narl.MetaStep(model, optimizer, adjuster, every=1)
    first, second = batches(2)
    meta.step(*first)
    schedule.step()
    expected = unrolled(model, optimizer, adjuster, second[:2], second[2])
    found = narl.hypergradient(model, optimizer, adjuster, second[:2], second[2])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert relative_error(found, expected) < 1e-3


def test_stopped_and_resumed_is_bitwise_the_uninterrupted_run(tmp_path: Any) -> None:
    def fresh() -> tuple[nn.Module, Optimizer, narl.Adjuster, narl.MetaStep]:
        model, adjuster = make_model(), make_adjuster(margin="running")
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        return model, optimizer, adjuster, narl.MetaStep(model, optimizer, adjuster, every=3)

    stream, ids = batches(10), torch.arange(16)
    model, _, adjuster, meta = fresh()
    for x, y, clean in stream:
        meta.step(x, y, clean, ids=ids)

    parts = fresh()
    for x, y, clean in stream[:5]:
        parts[3].step(x, y, clean, ids=ids)
    torch.save([part.state_dict() for part in parts], tmp_path / "checkpoint")
    parts = fresh()
    part: Any
    for part, state in zip(parts, torch.load(tmp_path / "checkpoint", weights_only=True), strict=True):
        part.load_state_dict(state)
    for x, y, clean in stream[5:]:
        parts[3].step(x, y, clean, ids=ids)
    for name, value in parts[0].state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    for left, right in zip(parts[2].parameters(), adjuster.parameters(), strict=True):
        assert torch.equal(left, right)


def test_memory_does_not_grow_over_200_steps() -> None:
    model, adjuster = make_model(), make_adjuster(margin="running")
    meta = narl.MetaStep(model, OPTIMIZERS["adam"](model.parameters()), adjuster, every=1)
    ids = torch.arange(16)

    def live() -> tuple[int, int]:
        gc.collect()
        tensors = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
        return len(tensors), sum(t.numel() for t in tensors)

    stream = batches(200)
    gc.disable()  # what reference counting alone does not free would pile up in a real run until a collection
    try:
        for t, (x, y, clean) in enumerate(stream):
            meta.step(x, y, clean, ids=ids)
            if t == 20:
                early = live()
        collected = gc.collect()
    finally:
        gc.enable()
    count, size = live()
    assert count <= early[0] + 2
    assert size <= early[1] + 64
    assert collected < 1000


def test_adjuster_learns_to_tell_wrong_labels() -> None:
    torch.manual_seed(0)
    model, adjuster = make_model(), make_adjuster()
    outer = Adam(adjuster.parameters(), lr=1e-2)
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), adjuster, every=1, adjuster_optimizer=outer)
    for x, y, clean in batches(300):
        report = meta.step(x, y, clean)
    assert report.margins is not None
    q = report.hyperparameters["q"]
    # More robust where the classifier contradicts the label than where it agrees.
    assert float(q[report.margins < 0].mean()) > float(q[report.margins > 0].mean())


# Bad input -----------------------------------------------------------------------------------------------------------


def test_options_are_checked_when_the_step_is_made() -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(errors.OptionError, match="every = 0"):
        narl.MetaStep(model, optimizer, make_adjuster(), every=0)
    with pytest.raises(errors.OptionError, match="tangent = 'both'"):
        narl.MetaStep(model, optimizer, make_adjuster(), tangent="both")
    with pytest.raises(errors.OptionError, match="virtual = 'none'"):
        narl.MetaStep(model, optimizer, make_adjuster(), virtual="none")
    with pytest.raises(errors.OptionError, match="Linear has no method loss"):
        narl.MetaStep(model, optimizer, nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(errors.OptimizerError, match="not the model's"):
        narl.MetaStep(make_model(), optimizer, make_adjuster())
    with pytest.raises(errors.OptimizerError, match="Adagrad"):
        narl.MetaStep(model, torch.optim.Adagrad(model.parameters()), make_adjuster())


def test_arguments_that_cannot_be_meant() -> None:
    model, adjuster = make_model(), make_adjuster()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(errors.OptionError, match=r"got SGD and Sequential: MetaStep\(model, optimizer"):
        narl.MetaStep(optimizer, model, adjuster)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match=r"every = 2\.5"):
        narl.MetaStep(model, optimizer, adjuster, every=2.5)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match=r"adjuster_optimizer is a float.*torch\.optim\.Adam"):
        narl.MetaStep(model, optimizer, adjuster, adjuster_optimizer=1e-2)  # type: ignore[arg-type]
    with pytest.raises(errors.OptimizerError, match=r"not the adjuster's"):
        narl.MetaStep(model, optimizer, adjuster, adjuster_optimizer=Adam(make_adjuster().parameters()))
    with pytest.raises(errors.OptionError, match="nothing to learn"):
        narl.MetaStep(model, optimizer, make_adjuster().requires_grad_(False))
    assert "every=10" in repr(narl.MetaStep(model, optimizer, adjuster))


def test_batches_that_cannot_be_meant() -> None:
    model = make_model()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=1)
    x, y, (clean_x, clean_y) = batches(1)[0]
    with pytest.raises(errors.LabelError, match=r"a ndarray: .*torch\.as_tensor"):
        meta.step(x, y.numpy(), (clean_x, clean_y))  # type: ignore[arg-type]
    with pytest.raises(errors.LabelError, match="empty"):
        meta.step(x[:0], y[:0], (clean_x, clean_y))
    with pytest.raises(errors.ModelOutputError, match="inputs and labels belong together"):
        meta.step(x, y[:-1], (clean_x, clean_y))
    with pytest.raises(errors.LabelError, match="in the clean batch, labels run from"):
        meta.step(x, y, (clean_x, clean_y + CLASSES))
    with pytest.raises(errors.CleanBatchError, match=r"labels are a ndarray.*torch\.as_tensor"):
        meta.step(x, y, (clean_x, clean_y.numpy()))
    with pytest.raises(errors.CleanBatchError, match=r"lambda: next\(batches\)"):
        meta.step(x, y, torch.utils.data.DataLoader([1, 2]))  # type: ignore[arg-type]
    with torch.inference_mode(), pytest.raises(errors.OptionError, match="inference_mode"):
        meta.step(x, y, (clean_x, clean_y))
    with torch.no_grad():
        meta.step(x, y, (clean_x, clean_y))
    assert meta.steps == 1


@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_models_train_as_uncompiled_ones(in_place: bool) -> None:
    model, plain = make_model(), make_model()
    compiled: Any = model
    if in_place:
        model.compile(backend="aot_eager")
    else:
        compiled = torch.compile(model, backend="aot_eager")
    for trained in (compiled, plain):
        meta = narl.MetaStep(trained, SGD(trained.parameters(), lr=0.1), make_adjuster(), every=2)
        for x, y, clean in batches(4):
            meta.step(x, y, clean)
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_clean_batch_missing_or_empty() -> None:
    model = make_model()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=2)
    x, y, (clean_x, clean_y) = batches(1)[0]
    with pytest.raises(errors.CleanBatchError, match="has no clean batch"):
        meta.step(x, y)
    with pytest.raises(errors.CleanBatchError, match="empty"):
        meta.step(x, y, (clean_x[:0], clean_y[:0]))
    meta.step(x, y, (clean_x, clean_y))
    meta.step(x, y)  # no meta step, none needed
    assert meta.steps == 2


def test_a_refused_step_leaves_everything_as_it_was() -> None:
    model, adjuster = make_model(), make_adjuster()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1, momentum=0.9), adjuster, every=1)
    x, y, clean = batches(1)[0]
    meta.step(x, y, clean)
    before = copy.deepcopy((model.state_dict(), meta.optimizer.state_dict(), adjuster.state_dict()))
    with pytest.raises(errors.LogitsError, match="NaN"):
        meta.step(x.clone().fill_(torch.nan), y, clean)
    with pytest.raises(errors.LabelError):
        meta.step(x, y + CLASSES, clean)
    with pytest.raises(errors.LabelError):
        meta.step(x, y.float(), clean)
    with pytest.raises(errors.ClassCountsError, match="refit"):
        narl.MetaStep(model, SGD(model.parameters(), lr=0.1), narl.Adjuster("gce", [5, 5])).step(x, y % 2, clean)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name]), name  # BatchNorm's statistics among them
    for name, value in adjuster.state_dict().items():
        assert torch.equal(value, before[2][name]), name
    assert str(before[1]) == str(meta.optimizer.state_dict())
    assert meta.steps == 1


@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, errors.NonFiniteError])
def test_a_step_that_fails_after_its_adjuster_has_moved_leaves_everything_as_it_was(
    done: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, adjuster = make_model(), make_adjuster()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1, momentum=0.9), adjuster, every=1)
    x, y, clean = batches(1)[0]
    for _ in range(done):
        meta.step(x, y, clean)

    def state() -> Any:
        parts = model, meta.optimizer, adjuster, meta.adjuster_optimizer
        return [copy.deepcopy(part.state_dict()) for part in parts]

    def fail(*arguments: object) -> None:
        assert not torch.equal(torch.cat([p.flatten() for p in adjuster.parameters()]), moving)
        raise error

    before, moving = state(), torch.cat([p.detach().flatten() for p in adjuster.parameters()])
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "backward", fail)
        with pytest.raises(error):
            meta.step(x, y, clean)
    assert_same(state(), before)
    meta.step(x, y, clean)
    assert meta.steps == done + 1


def test_a_gradient_that_is_not_finite_is_not_taken() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, CLASSES, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.layer(x).abs().sqrt()
            return logits

    model = Root()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=2)
    meta.steps = 1
    x, y, _ = batches(1)[0]
    with pytest.raises(errors.NonFiniteError, match="gradient of the training loss"):
        meta.step(torch.zeros_like(x), y)
    assert model.layer.weight.isfinite().all()


def test_what_is_not_finite_can_be_noted_and_told_later() -> None:
    """As on a GPU whose host must not wait: the step goes on, the look at what was noted does not."""
    model = nn.Linear(5, CLASSES)
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), make_adjuster(), every=2)
    meta.noted = Noted(torch.device("cpu"))
    meta.steps = 1
    x, y, _ = batches(1)[0]
    meta.step(x, y)
    meta.noted.check()
    handle = model.weight.register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
    meta.steps = 1
    meta.step(x, y)
    handle.remove()
    assert not model.weight.isfinite().all()
    meta.noted.note(torch.tensor(1.0), meta.optimizer)  # what comes later does not make it good
    with pytest.raises(errors.NonFiniteError, match="training diverged"):
        meta.noted.check()


def test_a_snapshot_is_a_copy_of_all_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm2d(2).double())
    model.register_buffer("nothing", torch.empty(0))
    model.register_buffer("image", torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last))
    kept = snapshot(model)
    for name, buffer in model.named_buffers():
        assert torch.equal(kept[name], buffer)
        assert kept[name].dtype == buffer.dtype
        assert kept[name].stride() == buffer.stride()
        assert not buffer.numel() or kept[name].data_ptr() != buffer.data_ptr()
    assert list(kept) == [name for name, _ in model.named_buffers()]


def test_state_that_forward_changes_is_replayed_for_the_tangent() -> None:
    class Normalised(nn.Module):
        """Divides by a running scale, which the batch has moved before it is used."""

        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(5, 8), nn.Linear(8, CLASSES)
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            if self.training:
                self.scale = 0.5 * self.scale + 0.5 * h.detach().norm() / 4
            logits: Tensor = self.head(torch.tanh(h / self.scale))
            return logits

    torch.manual_seed(0)
    model = Normalised()
    twin, adjuster = copy.deepcopy(model), make_adjuster()
    with torch.no_grad():
        adjuster.heads.weight.normal_(0, 0.5)
    x, y, clean = batches(1)[0]
    expected = narl.hypergradient(twin, SGD(twin.parameters(), lr=0.3), copy.deepcopy(adjuster), (x, y), clean)
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.3), adjuster, every=1)
    meta.step(x, y, clean)
    found = [parameter.grad for parameter in adjuster.parameters()]
    assert relative_error(found, expected) < 1e-5


def test_ids_are_kept_from_objectives_that_do_not_want_them() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return self.weight * narl.losses.ce(logits, targets)

    model = make_model()
    x, y, clean = batches(1)[0]
    report = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), Weighted()).step(x, y, clean, ids=torch.arange(16))
    assert report.margins is None
    assert report.hyperparameters == {}


def test_divergence_is_an_error_not_a_nan() -> None:
    class Exploding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return narl.losses.ce(logits, targets) * self.scale * torch.inf

    model = make_model()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), Exploding(), every=2)
    meta.steps = 1
    x, y, _ = batches(1)[0]
    with pytest.raises(errors.NonFiniteError, match="training loss is inf"):
        meta.step(x, y)
    assert all(p.isfinite().all() for p in model.parameters())
