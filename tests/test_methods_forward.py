"""Forward correction: the loss against the naive formula, the estimates against the truth, the course of a training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from methods_problem import CLASSES, SAMPLES, assert_same, batches, built, data, interrupted, setting_of
from narl import errors, losses, noise
from narl.train.methods import Method, Setting
from narl.train.methods.forward import (
    Forward,
    anchor_matrix,
    clean_matrix,
    counted_matrix,
    forward_loss,
    read_matrix,
)

PAIR = torch.from_numpy(noise.pair_matrix(CLASSES, 0.4))


def problem(seed: int, c: int, scale: float, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=generator, dtype=torch.float64)
    matrix = torch.rand(c, c, generator=generator, dtype=torch.float64) + torch.eye(c, dtype=torch.float64)
    return logits, torch.randint(0, c, (n,), generator=generator), matrix / matrix.sum(1, keepdim=True)


@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0.1, 20))
def test_loss_is_the_naive_formula(seed: int, c: int, scale: float) -> None:
    logits, y, matrix = problem(seed, c, scale)
    naive = torch.stack([-torch.log(z.softmax(0) @ matrix[:, label]) for z, label in zip(logits, y, strict=True)])
    torch.testing.assert_close(forward_loss(logits, y, matrix.log()), naive, rtol=1e-10, atol=1e-12)
    soft = torch.rand(len(y), c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(1)
    expected = sum(soft[:, label] * forward_loss(logits, torch.full_like(y, label), matrix.log()) for label in range(c))
    torch.testing.assert_close(forward_loss(logits, soft, matrix.log()), expected)


@given(st.integers(0, 10_000), st.floats(0.1, 1e4))
def test_without_noise_it_is_cross_entropy(seed: int, scale: float) -> None:
    logits, y, _ = problem(seed, 4, scale)
    torch.testing.assert_close(forward_loss(logits, y, torch.eye(4).log()), losses.ce(logits, y))
    one_hot = F.one_hot(y, 4).double()
    with_noise = torch.full((4, 4), 0.1) + 0.6 * torch.eye(4)
    torch.testing.assert_close(
        forward_loss(logits, one_hot, with_noise.log()), forward_loss(logits, y, with_noise.log())
    )


@pytest.mark.parametrize("matrix", [PAIR, torch.eye(CLASSES).double(), problem(0, CLASSES, 1.0)[2]])
def test_gradient_is_that_of_finite_differences(matrix: Tensor) -> None:
    logits, y, _ = problem(1, CLASSES, 2.0)
    assert torch.autograd.gradcheck(lambda z: forward_loss(z, y, matrix.log()), logits.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_are_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], dtype=dtype, requires_grad=True)
    values = forward_loss(logits, torch.tensor([2, 0]), PAIR.log())
    assert values.dtype == torch.float32
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert values.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_its_minimum_is_the_true_class_though_the_labels_lie() -> None:
    """With the noisy labels' true frequencies, cross entropy wants T's row and forward correction the class itself."""
    logits = torch.zeros(1, CLASSES, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = forward_loss(logits, PAIR[1:2], PAIR.log()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert logits.softmax(1)[0, 1] > 0.999


@pytest.mark.parametrize(("c", "rate"), [(3, 0.3), (10, 0.4), (100, 0.4)])
@pytest.mark.parametrize("kind", ["pair", "symmetric"])
def test_anchors_of_exact_predictions_give_the_true_matrix(c: int, rate: float, kind: str) -> None:
    true = torch.from_numpy(noise.pair_matrix(c, rate) if kind == "pair" else noise.symmetric_matrix(c, rate))
    generator = torch.Generator().manual_seed(0)
    unsure = torch.rand(20 * c, c, generator=generator, dtype=torch.float64).softmax(1)
    sure = torch.eye(c, dtype=torch.float64).repeat(40, 1)
    predictions = (torch.cat([unsure, sure]) @ true)[torch.randperm(60 * c, generator=generator)]
    torch.testing.assert_close(anchor_matrix(predictions), true, atol=1e-6, rtol=0)
    halves = anchor_matrix(predictions.half())  # as they are kept
    torch.testing.assert_close(halves, true, atol=1e-3, rtol=0)


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(2, 6))
def test_estimates_are_transition_matrices(seed: int, n: int, c: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predictions = (10 * torch.randn(n, c, generator=generator)).softmax(1)
    labels = torch.randint(0, c, (n,), generator=generator)
    for matrix in (
        anchor_matrix(predictions),
        clean_matrix(predictions, labels),
        clean_matrix(predictions, labels, 0.1),
    ):
        assert torch.equal(read_matrix(matrix), matrix)
        assert (matrix > 0).all()
    for surest in (1.0, 0.3):
        expected = clean_matrix(predictions, F.one_hot(labels, c), surest)
        torch.testing.assert_close(clean_matrix(predictions, labels, surest), expected)


def test_the_clean_estimate_is_the_mean_over_each_class() -> None:
    logits, y, _ = problem(3, 4, 1.0, n=40)
    predictions = logits.softmax(1)
    y = y.clamp(max=2)
    found = clean_matrix(predictions, y)
    for label in range(3):
        torch.testing.assert_close(found[label], predictions[y == label].mean(0))
    torch.testing.assert_close(found[3], torch.eye(4).double()[3], atol=1e-7, rtol=0)


@pytest.mark.parametrize("surest", [0.0, 0.05, 0.25, 0.5])
def test_the_clean_estimate_is_the_mean_over_the_surest_of_each_class(surest: float) -> None:
    logits, y, _ = problem(3, 4, 1.0, n=80)
    predictions = logits.softmax(1).double()
    found = clean_matrix(predictions, y, surest)
    for label in range(4):
        rows = sorted(predictions[y == label].tolist(), key=lambda row: -row[label])
        kept = rows[: max(1, math.ceil(surest * len(rows)))]
        torch.testing.assert_close(found[label], torch.tensor(kept, dtype=torch.float64).mean(0))


def test_the_surest_of_a_classifier_that_mistakes_classes_tell_the_noise() -> None:
    noise = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3], [0.2, 0.0, 0.8]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(200)
    logits = 1.5 * F.one_hot(labels, 3) + torch.randn(600, 3, generator=generator)
    predictions = (2 * logits.double()).softmax(1) @ noise  # of the noisy label
    all_of_them, surest = (clean_matrix(predictions, labels, share) for share in (1.0, 0.1))
    assert (surest - noise).abs().sum() < (all_of_them - noise).abs().sum() / 3


def mistaken(matrix: Tensor, count: int, sharpness: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions of the noisy label by a classifier that mistakes classes, more or less sure; labels, both."""
    generator = torch.Generator().manual_seed(seed)
    c = len(matrix)
    q = (2 * torch.randn(count, c, generator=generator, dtype=torch.float64)).softmax(dim=1)
    true = torch.multinomial(q, 1, generator=generator).squeeze(1)
    given = torch.multinomial(matrix[true], 1, generator=generator).squeeze(1)
    believed = q**sharpness / (q**sharpness).sum(dim=1, keepdim=True)
    return believed @ matrix, true, given


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 2.0])
def test_what_a_classifier_mistakes_does_not_blur_a_counted_matrix(rate: float, sharpness: float) -> None:
    matrix = torch.from_numpy(noise.symmetric_matrix(5, rate))
    predictions, _, given = mistaken(matrix, 20_000, sharpness)
    clean_predictions, clean_labels, _ = mistaken(matrix, 1000, sharpness, seed=1)
    found = counted_matrix(predictions, given, clean_predictions, clean_labels)
    read = clean_matrix(clean_predictions, clean_labels)
    error, blurred = ((one - matrix).abs().sum(dim=1).mean() for one in (found, read))
    assert error < 0.08
    assert error < blurred / 3
    torch.testing.assert_close(found.sum(dim=1), torch.ones(5).double())
    soft = counted_matrix(predictions, given, clean_predictions, F.one_hot(clean_labels, 5).double())
    torch.testing.assert_close(soft, found)


@given(st.integers(0, 1000))
def test_of_sure_predictions_a_counted_matrix_is_the_share_of_each_label(seed: int) -> None:
    _, true, labels = mistaken(problem(seed, 3, 1.0)[2], 600, 1.0, seed)
    sure = F.one_hot(true, 3).double()
    counts = sure.t() @ F.one_hot(labels, 3).double()
    found = counted_matrix(sure, labels, sure, true)
    torch.testing.assert_close(found, counts / counts.sum(dim=1, keepdim=True), atol=1e-3, rtol=0)


def test_a_counted_matrix_comes_at_the_end_of_the_epoch_nearest_to_a_third() -> None:
    _, y, _ = data()
    setting = setting_of(total=15, labels=y, epochs=5)
    method = Forward(setting, estimate="counted")
    looks: list[nn.Module] = []

    def look(module: nn.Module) -> Tensor:
        looks.append(module)
        return torch.randn(len(y), CLASSES, generator=torch.Generator().manual_seed(0))

    known = []
    for epoch in range(5):
        method.begin_epoch(epoch, look)
        known.append(method.matrix is not None)
        for batch in batches(3):
            method.step(*batch)
    assert known == [False, False, True, True, True]
    assert looks == [setting.model]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_resumes_bitwise_before_and_after_the_estimate(clean: bool, stop: int) -> None:
    def make() -> tuple[Setting, Method]:
        setting = setting_of(clean=clean)
        return setting, built("Forward", setting)

    interrupted(make, stop, 7)


def test_first_third_is_cross_entropy_then_the_matrix_is_estimated_once() -> None:
    setting, plain = setting_of(clean=False, total=9), setting_of(clean=False, total=9)
    method, reference = built("forward", setting), built("ce", plain)
    assert isinstance(method, Forward)
    for x, y, ids in batches(3):
        assert method.matrix is None
        method.step(x, y, ids)
        reference.step(x, y, ids)
    assert_same(setting.model.state_dict(), plain.model.state_dict())
    estimated = method.matrix
    assert estimated is not None
    x, y, ids = batches(4)[3]
    expected = forward_loss(plain.model(x), y, estimated.log()).mean().detach()
    torch.testing.assert_close(method.step(x, y, ids).loss, expected)
    assert method.matrix is estimated


def test_anchors_come_from_the_latest_predictions_of_the_samples_seen() -> None:
    setting = setting_of(clean=False, total=9)
    method = built("forward", setting)
    assert isinstance(method, Forward)
    table = torch.full((SAMPLES, CLASSES), torch.nan)
    setting.model.register_forward_hook(lambda module, args, z: rows.append(z.detach().softmax(1)))
    for x, y, ids in batches(3):
        rows: list[Tensor] = []
        method.step(x, y, ids)
        table[ids] = rows[0]
    seen = table[~table.isnan().any(1)]
    assert 16 < len(seen) < SAMPLES
    assert method.matrix is not None
    torch.testing.assert_close(method.matrix, anchor_matrix(seen), atol=1e-3, rtol=0)


def test_the_clean_set_is_looked_at_as_in_a_test() -> None:
    x, _, true = data()
    setting = setting_of(total=3)
    frozen = setting.model.get_submodule("1")
    method = built("forward", setting)
    assert isinstance(method, Forward)
    batch = batches(1)[0]
    frozen.eval()  # a layer that the user keeps in evaluation mode stays there
    method.step(*batch)
    assert setting.model.training
    assert not frozen.training
    setting.model.eval()
    with torch.no_grad():
        expected = clean_matrix(setting.model(x[:20]).softmax(1), true[:20], 0.1)
    assert method.matrix is not None
    torch.testing.assert_close(method.matrix, expected)
    assert setting.model.state_dict()["1.num_batches_tracked"] == 0


def test_a_given_matrix_is_used_from_the_first_step(tmp_path: Path) -> None:
    np.save(tmp_path / "noise.npy", PAIR.numpy())
    np.savetxt(tmp_path / "noise.csv", PAIR.numpy(), delimiter=",")
    x, y, ids = batches(1)[0]
    expected = forward_loss(setting_of().model(x), y, PAIR.log()).mean().detach()
    given: list[Any] = [PAIR, PAIR.numpy(), PAIR.tolist(), tmp_path / "noise.npy", str(tmp_path / "noise.csv")]
    for matrix in given:
        torch.testing.assert_close(built("forward", matrix=matrix).step(x, y, ids).loss, expected)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], "matrix has 2 rows but there are 3 classes"),
        ([[1, 0, 0]] * 3, "no class gets the label 1, but"),
        ([[1, 1, 0]] * 3, "row 0 sums to 2"),
        ("no-such-file.npy", "no transition matrix can be read from no-such-file.npy"),
        (Path(__file__), "no transition matrix can be read"),
        (5, "square"),
    ],
)
def test_matrices_that_make_no_sense(matrix: Any, words: str) -> None:
    with pytest.raises(errors.NoiseError, match=words):
        built("forward", matrix=matrix)


def test_ids_outside_the_training_set_are_named() -> None:
    x, y, ids = batches(1)[0]
    with pytest.raises(errors.SampleIdsError, match=f"the training set has {SAMPLES} samples"):
        built("forward", setting_of(clean=False)).step(x, y, ids + SAMPLES)


def test_recovers_the_classes_where_cross_entropy_learns_the_noise() -> None:
    """Every sample has the wrong label more often than the right one; only the matrix tells which is which."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(300) % CLASSES
    x = 3 * torch.eye(CLASSES)[true] + 0.3 * torch.randn(300, CLASSES, generator=generator)
    matrix = noise.pair_matrix(CLASSES, 0.6)
    noisy = torch.from_numpy(noise.transition(true.numpy(), matrix, seed=1))
    accuracy = {}
    for name, options in (("CE", {}), ("Forward", {"matrix": matrix})):
        model = nn.Linear(CLASSES, CLASSES)
        setting = setting_of(model=model, num_samples=300, class_counts=torch.bincount(noisy), total=150)
        method = built(name, setting, **options)
        for _ in range(150):
            method.step(x, noisy, torch.arange(300))
        accuracy[name] = float((model(x).argmax(1) == true).float().mean())
    assert accuracy["Forward"] > 0.95
    assert accuracy["CE"] < 0.5
