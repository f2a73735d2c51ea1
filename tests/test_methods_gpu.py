"""Every method on a GPU: it trains there as on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from methods_problem import batches, built, data, setting_of, shown
from narl.train import methods
from narl.train.methods import Setting
from narl.train.methods.divide_mix import DivideMix

pytestmark = pytest.mark.gpu


def setting_on_gpu(name: str) -> Setting:
    x, _, true = (part.cuda() for part in data())

    def draw() -> tuple[Tensor, Tensor]:
        return x[:20], true[:20]

    setting = setting_of(name, model=setting_of(name).model.cuda())
    assert setting.labels is not None
    return replace(setting, class_counts=setting.class_counts.cuda(), labels=setting.labels.cuda(), clean=draw)


@pytest.mark.parametrize("name", methods.names())
def test_trains_as_on_the_cpu(name: str) -> None:
    here, there = built(name, setting_of(name)), built(name, setting_on_gpu(name))
    for x, y, ids in batches(5):
        expected = here.step(shown(here, x), y, ids)
        found = there.step(shown(there, x.cuda()), y.cuda(), ids.cuda())
        torch.testing.assert_close(found.loss.cpu(), expected.loss, rtol=1e-2, atol=1e-3)
        assert found.margins is not None
        assert found.margins.is_cuda
        assert all(values.is_cuda for values in found.hyperparameters.values())
    resumed = built(name, setting_on_gpu(name))
    resumed.load_state_dict(there.state_dict())
    x, y, ids = (part.cuda() for part in batches(1)[0])
    resumed.step(shown(resumed, x), y, ids)


@pytest.mark.parametrize("name", ["A-GCE+", "T-GCE+", "Co-teaching", "ELR+", "DivideMix"])
def test_steps_do_not_wait_for_the_device(name: str) -> None:
    """But for meta steps, snapshots, and the first step, which looks whether the model gives probabilities."""
    options = {"A-GCE+": {"every": 100, "boost_from": 0.0, "snapshots": 1}, "T-GCE+": {"boost_from": 0.0}}.get(name, {})
    method = built(name, setting_on_gpu(name), **options)
    x, noisy, _ = (part.cuda() for part in data())
    rows = [rows.cuda() for _, _, rows in batches(3)]
    if isinstance(method, DivideMix):
        method.begin_epoch(method.warmup, lambda member: member(x).detach())
        chosen = method.rows(method.warmup, torch.Generator().manual_seed(0))
        assert chosen is not None
        rows = [each.cuda() for each in chosen[:3]]
    given = [(shown(method, x[each]), noisy[each], each) for each in rows]
    method.step(*given[0])
    with waiting_refused():
        for batch in given[1:]:
            method.step(*batch)
    method.state_dict()


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Whatever makes the host wait for the device raises an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
