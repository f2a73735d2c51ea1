"""Committees: what they predict, what they train, how averages follow."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from methods_problem import FEATURES, model_of
from narl.errors import OptionError
from narl.models.committee import Committee, Networks
from narl.train import architectures


def inputs(count: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("averaged", [False, True])
def test_a_committee_predicts_the_mean_of_probabilities(averaged: bool) -> None:
    members = [model_of(seed).double() for seed in range(3)]
    committee = Committee(members, averaged=averaged).eval()
    x = inputs().double()
    for member in members:  # averages stand still
        expected = torch.stack([one(x).softmax(1) for one in members]).mean(0)
        torch.testing.assert_close(committee(x).exp(), expected)
        if averaged:
            nn.init.normal_(member[0].weight)  # type: ignore[arg-type]
            expected_now = committee(x).exp()
            torch.testing.assert_close(expected_now, expected)
            break


def test_extreme_logits_stay_finite() -> None:
    class Fixed(nn.Module):
        def __init__(self, *values: float) -> None:
            super().__init__()
            self.values = nn.Parameter(torch.tensor([values]))

        def forward(self, x: Tensor) -> Tensor:
            return self.values.expand(len(x), -1)

    found = Committee([Fixed(1e4, 0.0), Fixed(0.0, 1e4)])(inputs(2))
    torch.testing.assert_close(found, torch.full((2, 2), 0.5).log())


def test_modes_and_gradients() -> None:
    committee = Committee([model_of(1), model_of(2)], averaged=True)
    assert committee.averages is not None
    committee.train()
    assert all(module.training for module in committee.members.modules())
    assert not any(module.training for module in committee.averages.modules())
    assert not any(parameter.requires_grad for parameter in committee.averages.parameters())
    assert all(parameter.requires_grad for parameter in committee.members.parameters())
    committee.eval()
    assert not any(module.training for module in committee.modules())
    before = copy.deepcopy(dict(committee.averages.state_dict()))
    committee.train()(inputs())
    for name, value in committee.averages.state_dict().items():
        assert torch.equal(value, before[name])  # BatchNorm's statistics among them


@settings(max_examples=20)
@given(decay=st.floats(0, 1), steps=st.integers(1, 5))
def test_averages_follow_their_formula(decay: float, steps: int) -> None:
    committee = Committee([model_of(1).double(), model_of(2).double()], averaged=True)
    assert committee.averages is not None
    expected = {name: value.clone() for name, value in committee.members.state_dict().items()}
    for step in range(steps):
        committee.train()
        for member in committee.members:
            member(inputs(9, step).double())  # moves the statistics, and counts batches
            nn.init.normal_(member[0].weight, generator=torch.Generator().manual_seed(step))  # type: ignore[index]
        committee.follow(decay)
        for name, value in committee.members.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
            else:
                expected[name] = value.clone()
    for name, value in committee.averages.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_one_average_can_follow_alone() -> None:
    committee = Committee([model_of(1), model_of(2)], averaged=True)
    assert committee.averages is not None
    for member in committee.members:
        nn.init.zeros_(member[0].weight)  # type: ignore[index]
    committee.follow(0.0, members=[1])
    assert committee.averages[0][0].weight.abs().sum() > 0  # type: ignore[index]
    assert committee.averages[1][0].weight.abs().sum() == 0  # type: ignore[index]


def test_what_makes_no_sense_is_refused() -> None:
    for count in (0, -1, True, 1.5):
        with pytest.raises(OptionError, match="networks cannot be trained"):
            Networks(count)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="committee of nobody"):
        Committee([])
    with pytest.raises(OptionError, match="keeps no averages"):
        Committee([model_of()]).follow(0.5)
    with pytest.raises(OptionError, match=r"outside \[0, 1\]"):
        Committee([model_of()], averaged=True).follow(1.5)


@pytest.mark.parametrize("name", ["tabular", "torch.nn:Linear"])
def test_members_begin_from_weights_of_their_own_the_first_from_those_of_a_plain_model(name: str) -> None:
    given_: dict[str, object] = {"kind": "table", "shape": {"numbers": 4, "cardinalities": []}, "num_classes": 3}
    if name == "torch.nn:Linear":
        given_ |= {"in_features": 4, "out_features": 3}

    def make(networks: Networks) -> nn.Module:
        generator = torch.Generator().manual_seed(5)
        return architectures.build(name, generator=generator, networks=networks, **given_)  # type: ignore[arg-type]

    plain, committee = make(Networks()), make(Networks(2, averaged=True))
    assert isinstance(committee, Committee)
    x = torch.randn(3, 4)
    assert torch.equal(committee.members[0](x), plain(x))
    assert not torch.equal(committee.members[1](x), plain(x))
