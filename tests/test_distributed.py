"""k processes with n/k samples each do what one does with n."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import together
from narl.bilevel import Processes
from together import Team


def near(ours: Any, theirs: Any, tolerance: float) -> None:
    """Equal trees, up to a tolerance where numbers are."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            near(ours[key], theirs[key], tolerance)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            near(a, b, tolerance)
    elif isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)
    else:
        assert ours == theirs


METHODS: dict[str, dict[str, Any]] = {
    "CE": {},
    "A-GCE": {},
    "A-SL": {"margin": "latest", "every": 2, "kind": "convolutions"},
    # Weights that are divided by their mean leave one direction without a gradient: Adam makes steps of the rounding.
    "MW-Net": {"normalise": True, "warmup": 0.2, "dtype": "float64"},
    "Forward": {},
    "ELR": {},
    "T-GCE": {},
    "T-JS": {"noise_rate": "estimated"},
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_thirty_steps_are_those_of_one_process(workers: Team, name: str, count: int) -> None:
    expected = together.method(Processes.alone(), name, **METHODS[name])
    found = workers.run("method", count, name=name, **METHODS[name])
    margins = expected.pop("margins")
    for each in found:
        near(each.pop("margins"), margins, 1e-5)  # differences of logits
        near(each, expected, 1e-6)
    for each in found[1:]:
        near(each["model"], found[0]["model"], 0)
        near(each["method"], found[0]["method"], 0)


def test_checked_labels_are_those_of_one_process(workers: Team) -> None:
    expected = together.method(Processes.alone(), "A-GCE", dtype="float64", trusted=10)
    without = together.method(Processes.alone(), "A-GCE", dtype="float64")
    assert not torch.equal(expected["margins"], without["margins"])
    for found in workers.run("method", 2, name="A-GCE", dtype="float64", trusted=10):
        near(found, expected, 1e-6)


def test_the_matrix_of_anchors_is_that_of_one_process(workers: Team) -> None:
    how: dict[str, Any] = {"name": "Forward", "dtype": "float64", "clean": None}
    expected = together.method(Processes.alone(), **how)
    for found in workers.run("method", 3, **how):
        near(found, expected, 1e-9)


def test_a_model_in_distributed_data_parallel(workers: Team) -> None:
    """In double precision, adjuster included: what is left is rounding."""
    for dtype, optimizer, tolerance in (
        ("float32", "SGD", 1e-6),
        ("float64", "SGD", 1e-13),
        ("float64", "AdamW", 1e-10),  # which divides small gradients by themselves
    ):
        expected = together.wrapped(Processes.alone(), dtype, optimizer)
        for found in workers.run("wrapped", 2, dtype=dtype, kind=optimizer):
            near(found, expected, tolerance)


@pytest.mark.parametrize("count", [2, 3])
def test_what_one_refuses_all_refuse(workers: Team, count: int) -> None:
    found = workers.run("refusals", count)
    last = found[-1]
    assert {key.rpartition(" ")[2] for key in last} == {"inputs", "labels", "clean", "weights"}
    for each in found[:-1]:
        assert each.keys() == last.keys()
        for key, value in last.items():
            if isinstance(value, str):
                assert each[key] == f"{value} (process {count - 1})"
            else:
                near(each[key], value, 0)
    assert last["MW-Net inputs"].startswith("LogitsError: logits hold NaN")
    assert last["CE labels"].startswith("LabelError: labels run from")
    assert last["A-GCE clean"].startswith("LogitsError: logits hold NaN")


def test_exchanges(workers: Team) -> None:
    for found in workers.run("exchanges", 3):
        near(found["sum"], torch.tensor([14.0, 12.0], dtype=torch.float64), 1e-12)
        assert found["ids"].tolist() == [0, 10, 11, 20, 21, 22]
        assert found["names"].tolist() == [[0, 0], [1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]
        assert found["half"].dtype == torch.float16
        assert found["half"].tolist() == [0, 1, 1, 2, 2, 2]
        assert found["merged"].tolist() == [0, -1, -2]
        assert found["any"] == [True, False]
        assert found["same"].tolist() == [0, 0, 0]
        assert found["told"] == "ä 0"
        assert found["texts"] == ["", "x", "xx"]


def test_sums_are_differentiated_twice(workers: Team) -> None:
    """Of f = Σ_j S_j², S = Σ_i v_i² over the processes, against autograd in one."""
    values = torch.tensor([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(((values**2).sum(0) ** 2).sum(), values, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), values)
    for rank, found in enumerate(workers.run("exchanges", 3)):
        near(found["first"], first[rank].detach(), 1e-12)
        near(found["second"], second[rank], 1e-12)


@given(st.integers(1, 200), st.integers(1, 9))
def test_shares_make_up_the_batch(rows: int, count: int) -> None:
    shares = [range(rows)[Processes(rank, count).share(rows)] for rank in range(count)]
    if rows < 2 * count:
        assert all(share == range(rows) for share in shares)
    else:
        assert [row for share in shares for row in share] == list(range(rows))
        assert min(map(len, shares)) >= max(2, max(map(len, shares)) - 1)


def test_batch_normalisation_takes_each_process_s_statistics(workers: Team) -> None:
    found = workers.run("normalised", 2)
    assert not torch.equal(found[0]["own"], found[1]["own"])
    near(found[0]["model"], found[1]["model"], 0)
    near(found[0]["model"]["1.running_mean"], (found[0]["own"] + found[1]["own"]) / 2, 1e-7)
