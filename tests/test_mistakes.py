"""Mistakes that newcomers make in their own loops: a softmax at the end of the model, no clean set."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import narl
from narl.checks import warn_of_probabilities
from narl.errors import CleanBatchError, NarlWarning
from narl.train import architectures, methods

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def with_softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))


def meta_step(model: nn.Module) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meta = narl.MetaStep(model, optimizer, narl.Adjuster("gce", class_counts=[4, 4, 4]))
    return lambda: meta.step(X, Y, clean=(X, Y))


def criterion(model: nn.Module) -> Callable[[], object]:
    made = narl.AdjustedLoss(narl.Adjuster("gce", class_counts=[4, 4, 4]), class_counts=[4, 4, 4])
    return lambda: made(model(X), Y)


@pytest.mark.parametrize("make", [meta_step, criterion])
def test_a_softmax_is_noticed_once(make: Callable[[nn.Module], Callable[[], object]]) -> None:
    step = make(with_softmax())
    with pytest.warns(NarlWarning, match="remove the last softmax layer"):
        step()
    step()  # warnings are errors here
    make(nn.Linear(4, 3))()
    make(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)))()  # changes nothing, so nothing is said


def test_a_softmax_is_noticed_before_a_run() -> None:
    with pytest.warns(NarlWarning, match="Sequential gives probabilities"):
        architectures.check_output(with_softmax(), X, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_softmax_gives_is_known_in_any_type(dtype: torch.dtype) -> None:
    with pytest.warns(NarlWarning, match="the model gives probabilities"):
        warn_of_probabilities(
            (5 * torch.randn(50, 10, generator=torch.Generator().manual_seed(1))).softmax(1).to(dtype), "the model"
        )


@pytest.mark.parametrize(
    "scores", [torch.randn(4, 3), torch.eye(3), torch.zeros(4, 3), torch.full((2, 3), 0.5), torch.empty(0, 3)]
)
def test_scores_are_no_probabilities(scores: Tensor, recwarn: pytest.WarningsRecorder) -> None:
    warn_of_probabilities(scores, "the model")
    assert not recwarn.list


def test_nothing_is_looked_at_inside_a_graph(recwarn: pytest.WarningsRecorder) -> None:
    made = narl.AdjustedLoss(narl.Adjuster("gce", class_counts=[4, 4, 4]), class_counts=[4, 4, 4])
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    compiled(with_softmax()(X).detach(), Y)
    assert not [warning for warning in recwarn if issubclass(warning.category, NarlWarning)]


def test_a_copied_criterion_has_looked_already() -> None:
    made = narl.AdjustedLoss(narl.Adjuster("gce", class_counts=[4, 4, 4]), class_counts=[4, 4, 4])
    with pytest.warns(NarlWarning):
        made(with_softmax()(X), Y)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        again(with_softmax()(X), Y)


def test_a_forgotten_clean_set() -> None:
    model = nn.Linear(4, 3)
    meta = narl.MetaStep(model, torch.optim.SGD(model.parameters(), lr=0.1), narl.Adjuster("gce", [4, 4, 4]))
    with pytest.raises(CleanBatchError, match=r"pass clean=\(x, y\)"):
        meta.step(X, Y)


@pytest.mark.parametrize("name", ["CE", "GCE", "A-GCE", "MW-Net"])
def test_weights_are_repeated_samples(name: str) -> None:
    """In one batch, a sample of weight two moves the classifier as two of it do."""
    weights = torch.tensor([2.0, 1.0, 1.0, 0.0])
    moved = []
    for rows, counted in ((torch.arange(4), weights), (torch.tensor([0, 0, 1, 2]), None)):
        model = nn.Linear(4, 3)
        nn.init.constant_(model.weight, 0.1)
        nn.init.zeros_(model.bias)
        setting = methods.Setting(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            class_counts=torch.tensor([2, 1, 1]),
            clean=lambda: (X, Y),
            total_steps=10,
            num_samples=4,
            generator=torch.Generator().manual_seed(0),
            weights=counted,
        )
        options = {"margin": "latest"} if name == "A-GCE" else {}
        method = methods.build(name, setting, **options)
        if name != "MW-Net":  # it sees the loss of a sample, which weights do not change
            for _ in range(3):
                method.step(X[rows], Y[rows], torch.arange(4))
        else:
            method.step(X[rows], Y[rows], torch.arange(4))
        assert (method.move() is None) == (counted is not None)
        moved.append(model.weight.detach().clone())
    assert torch.allclose(moved[0], moved[1], atol=1e-6)


def test_weights_that_fit_no_samples() -> None:
    model = nn.Linear(4, 3)
    with warnings.catch_warnings(), pytest.raises(narl.NarlError, match="do not fit 4 training samples"):
        methods.Setting(
            model, torch.optim.SGD(model.parameters(), lr=0.5), torch.tensor([2, 1, 1]), None, 10, 4,
            torch.Generator(), weights=torch.ones(3),
        )  # fmt: skip
