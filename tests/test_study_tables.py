"""The tables of the studies in ``benchmarks``, and the loss that one of them tries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.testing import assert_close

from narl import losses
from narl.bench import own_table, protocols

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TABLES = sorted((BENCHMARKS / "tables").glob("*.json"))


@pytest.fixture
def normalised(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("normalised")
    losses.unregister("ngce")
    del sys.modules["normalised"]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_can_be_read(path: Path, normalised: ModuleType) -> None:
    table = own_table.read(path)
    assert table.name not in protocols.PROTOCOLS
    assert len(table.cells()) == len(table.tasks) * len(table.methods)


def test_the_paper_settings_are_the_paper_settings(normalised: ModuleType) -> None:
    table, paper = own_table.read(BENCHMARKS / "tables" / "normalised.json"), protocols.get("table1")
    assert (table.training, table.clean, table.model) == (paper.training, paper.clean, paper.model)
    assert table.own == paper.schedule("short", "CIFAR-10")


def test_gradients_of_a_batch_are_divided_by_their_mean_weight(normalised: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 5, (8,), generator=generator)
    q = torch.rand(8, generator=generator, dtype=torch.float64).clamp(0.05).requires_grad_()
    p = logits.detach().softmax(1)[range(8), targets]
    mean = sum(p_i**q_i for p_i, q_i in zip(p.tolist(), q.tolist(), strict=True)) / 8
    found = normalised.normalised_gce(logits, targets, q)
    assert_close(found, losses.gce(logits, targets, q) / mean)
    (slope,) = torch.autograd.grad(found.sum(), logits)
    (plain,) = torch.autograd.grad(losses.gce(logits, targets, q).sum(), logits)
    assert_close(slope, plain / mean)
    assert torch.autograd.gradcheck(lambda value: normalised.normalised_gce(logits.detach(), targets, value), (q,))
    weights = slope.norm(dim=1) / torch.autograd.grad(losses.ce(logits, targets).sum(), logits)[0].norm(dim=1)
    assert_close(weights.mean(), torch.ones((), dtype=torch.float64))
