"""Adjusters for texts, learned from whole trainings: their form by class size, and trainings side by side."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from narl import AdjustedLoss
from narl.adjuster import packs

ROOT = Path(__file__).parent.parent
OURS = ("text_adjusters", "real_texts", "whole_trainings", "judges")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("text_adjusters")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "text-adjusters.jsonl")
    yield module
    for name in OURS:
        sys.modules.pop(name, None)


def numbers_of(study: ModuleType, loss: str, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    begin = study.beginning(loss, by_size=True).items()
    return {name: float(np.clip(rng.normal(mean, std), low, high)) for name, (mean, std, low, high) in begin}


def some_texts(study: ModuleType, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    some = {name: [f"{name}{rng.integers(9)} said w{rng.integers(50)} {row}" for row in range(90)] for name in "abcd"}
    return sys.modules["real_texts"].drawn(some, rng, "symmetric 0.2", classes=3, rows=200)


@pytest.mark.parametrize("loss", ["gce", "js", "sl", "polysoft"])
def test_each_head_computes_the_form_of_its_size(study: ModuleType, loss: str) -> None:
    numbers, counts = numbers_of(study, loss), [40, 100, 10, 250]  # mean 100
    first, then = (adjuster.refit(counts) for adjuster in study.made(loss, numbers, study.SIZES))
    assert first.sizes == then.sizes == study.SIZES
    assert then.of_class.tolist() == [1, 2, 0, 3]
    progress, kappa = 0.4, math.log(4 / 10)
    then.progress.fill_(progress)
    margins = torch.linspace(-9, 9, 37)
    found, at_first = then.curves(margins), first.curves(margins)
    for number, (name, (low, high)) in enumerate(then.spans.items(), 1):
        way = study.OWN[loss][number - 1][2]
        way = numbers[f"g{number}"] if way is None else way
        for head, size in enumerate(study.SIZES):
            log_size = math.log(size)
            for at, value in zip(margins.tolist(), found[name][:, head].tolist(), strict=True):
                place = numbers["m0"] + numbers["ms"] * log_size + numbers["mc"] * kappa + numbers["b"] * progress
                z = math.exp(numbers["log a"]) * (place - at)
                ramp = max(z, 0) - max(z - numbers["w"] - numbers["wc"] * kappa, 0)
                logit = numbers[f"l{number}"] + way * (ramp + numbers["h"] * log_size)
                assert value == pytest.approx(low + (high - low) / (1 + math.exp(-logit)), rel=1e-3, abs=1e-4)
            level = numbers[f"s{number}"] + way * (numbers["sc"] * kappa + numbers["hs"] * log_size)
            expected = torch.full((37,), low + (high - low) / (1 + math.exp(-level)))
            assert_close(at_first[name][:, head], expected, rtol=1e-3, atol=1e-4)


def test_networks_side_by_side_compute_what_a_layer_each_does(study: ModuleType) -> None:
    """And padding never counts, whatever is learned."""
    networks = study.Networks(12, 3, 2, torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0], [7, 8, 9, 10, 11]])
    found = networks(ids)
    found.square().sum().backward()
    networks.leave_padding()
    words = networks.words.detach().view(2, 12, -1)
    assert not words[:, 0].any()
    assert not networks.words.grad.view(2, 12, -1)[:, 0].any()
    assert networks.words.grad.view(2, 12, -1)[:, 3:].any(dim=2).all()
    for text, values in zip(ids, found[0], strict=True):
        own = words[0, text[text > 0]]
        pair = nn.functional.pad(own, (0, 0, 0, 1))
        one = own @ networks.one[0]
        two = pair[:-1] @ networks.two[0][0] + pair[1:] @ networks.two[1][0]
        seen = torch.cat([one.amax(0), two.amax(0)]) + networks.bias[0, 0]
        assert_close(values, seen.relu() @ networks.head[0] + networks.level[0, 0], rtol=1e-4, atol=1e-5)


def test_a_training_does_not_depend_on_those_beside_it(study: ModuleType) -> None:
    texts = some_texts(study)
    counts = torch.bincount(torch.from_numpy(texts.given[: texts.rows]), minlength=3)

    def criterion(**changed: float) -> AdjustedLoss:
        return AdjustedLoss(study.made("sl", numbers_of(study, "sl") | changed, study.SIZES), counts)

    # Nearly the symmetric part alone, which does little with labels that are unlikely yet, and nearly cross entropy.
    little, much = ({f"{of}{k}": 4.6 * (-1) ** (k + way) for of in "ls" for k in (1, 2)} for way in (0, 1))
    both = study.side_by_side(texts, "sl", ["CE", "SL"], [criterion(**little), criterion(**much)], 6, 5e-3, 3)
    alone = study.side_by_side(texts, "sl", ["CE"], [criterion(**much)], 6, 5e-3, 3)
    assert len(both) == 4
    assert abs(both[2] - both[3]) > 0.03
    assert [both[0], both[3]] == pytest.approx(alone, abs=0.011)


def test_a_search_is_written_as_an_adjuster_for_texts(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged by a stand-in for trainings: the more large classes are doubted, the better."""

    def stand_in(
        _pool: object, loss: str, _generation: int, candidates: list[dict[str, float]], _: object
    ) -> list[object]:
        last5 = [0.5, 0.4, *(0.5 + 0.005 * one["h"] for one in candidates)]
        return [{"noise": "rules", "classes": 3, "last5": last5}]

    class Pool:
        def __init__(self, _: int) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(study.multiprocessing, "Pool", Pool)
    monkeypatch.setattr(study, "_on_texts", stand_in)
    texts = sys.modules["real_texts"]  # which come with Debian's packages, not on every machine
    monkeypatch.setattr(texts, "collection", {name: {"a": [name, "said"]} for name in study.LEARNED_ON}.__getitem__)
    with pytest.raises(SystemExit, match="nothing was learned of sl"):
        study.write("sl", tmp_path)
    study.learn("sl", 4, 1)
    rows = [json.loads(line) for line in study.RESULTS.read_text().splitlines()]
    assert rows[-1]["mean"]["h"] > study.beginning("sl", by_size=True)["h"][0] + 0.3
    (table,) = study.tables()
    assert len(table.rows) == 4
    pack = packs.read(study.write("sl", tmp_path))
    assert [(one.data, one.sizes, one.least_steps) for one in pack.snapshots] == [("text", study.SIZES, None)] * 2
    assert pack.about["section"].startswith("## On texts")
    assert all(texts.counted(name) in pack.about["section"] for name in study.LEARNED_ON)
    capsys.readouterr()


def test_candidates_count_by_the_better_of_both(study: ModuleType) -> None:
    tasks = [{"last5": [0.5, 0.4, 0.52]}, {"last5": [0.5, 0.6, 0.58]}]
    assert study.search("sl")._points(tasks) == pytest.approx(np.array([[2.0], [-2.0]]))
