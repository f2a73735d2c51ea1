"""A loss that is added from outside the package: the formula, its derivatives, and the adjuster that learns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import narl
from documented import example
from narl import losses
from narl.train import methods


@pytest.fixture(scope="module")
def taylor() -> Iterator[Any]:
    yield example("taylor_ce")
    losses.unregister("taylor-ce")


@given(st.floats(-30, 30), st.integers(1, 20))
def test_whole_orders_are_the_series(taylor: Any, logit: float, order: int) -> None:
    p = 1 / (1 + torch.exp(torch.tensor(-logit, dtype=torch.float64)).item())
    logits = torch.tensor([[logit, 0.0]], dtype=torch.float64)
    expected = sum((1 - p) ** i / i for i in range(1, order + 1))
    assert taylor.taylor_ce(logits, torch.tensor([0]), float(order)).item() == pytest.approx(expected, abs=1e-12)


@given(st.floats(1, 19), st.floats(0.01, 0.99))
def test_between_two_orders_it_is_between_them(taylor: Any, t: float, p: float) -> None:
    logits, label = torch.tensor([[p, 1 - p]], dtype=torch.float64).log(), torch.tensor([0])
    below, above = (taylor.taylor_ce(logits, label, float(order)).item() for order in (int(t), int(t) + 1))
    share = t - int(t)
    assert taylor.taylor_ce(logits, label, t).item() == pytest.approx(below + share * (above - below), abs=1e-12)


def test_it_lies_between_mae_and_cross_entropy(taylor: Any) -> None:
    draws = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 4, dtype=torch.float64, generator=draws), torch.arange(50) % 4
    torch.testing.assert_close(taylor.taylor_ce(logits, labels, 1.0), losses.mae(logits, labels))
    values = taylor.taylor_ce(logits, labels, 20.0)
    assert bool((values <= losses.ce(logits, labels)).all())
    soft = torch.nn.functional.one_hot(labels, 4).double()
    torch.testing.assert_close(taylor.taylor_ce(logits, soft, 20.0), values)


def test_derivatives(taylor: Any) -> None:
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([1.2, 2.5, 3.7, 4.4, 7.9, 12.5], dtype=torch.float64, requires_grad=True)
    labels = torch.arange(6) % 3
    assert torch.autograd.gradcheck(lambda z, t: taylor.taylor_ce(z, labels, t), (z, t))
    assert torch.autograd.gradgradcheck(lambda z, t: taylor.taylor_ce(z, labels, t), (z, t))


def test_values_outside_the_range_are_refused(taylor: Any) -> None:
    with pytest.raises(narl.NarlError, match=r"t = 0\.5 is outside its range \[1\.0, 20\.0\]"):
        taylor.taylor_ce(torch.zeros(1, 2), torch.tensor([0]), 0.5)


def test_it_is_a_method_in_all_three_forms(taylor: Any) -> None:
    assert {"Taylor-CE", "A-Taylor-CE", "T-Taylor-CE"} <= set(methods.names())
    assert taylor.adjusted.name == "A-Taylor-CE"


def test_the_adjusted_form_trains(taylor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    taylor.main(epochs=1)
    low, high = capsys.readouterr().out.split("t from ")[1].split(" to ")
    assert float(low) < 6 < float(high)  # where it began


def test_the_page_has_the_same_loss(taylor: Any) -> None:
    from documented import blocks

    code = blocks("add-a-loss.md")[0].replace("register(", "keep(").replace('methods.get("A-Taylor-CE")', "None")
    names: dict[str, Any] = {"keep": lambda loss: loss}
    exec(code.replace(", register", ""), names)
    logits, labels = torch.randn(20, 3), torch.arange(20) % 3
    for t in (1.0, 2.4, 8.0):
        assert torch.equal(names["taylor_ce"](logits, labels, t), taylor.taylor_ce(logits, labels, t))
