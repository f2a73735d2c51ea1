"""Every method on a GPU: it trains there as on the CPU, and plain ones make the host wait once a step."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from methods_problem import batches, built, data, model_of, setting_of
from narl.train import methods
from narl.train.methods import Setting

pytestmark = pytest.mark.gpu


def setting_on_gpu() -> Setting:
    x, _, true = (part.cuda() for part in data())

    def draw() -> tuple[Tensor, Tensor]:
        return x[:20], true[:20]

    setting = setting_of(model=model_of().cuda())
    return replace(setting, class_counts=setting.class_counts.cuda(), clean=draw)


@pytest.mark.parametrize("name", methods.names())
def test_trains_as_on_the_cpu(name: str) -> None:
    here, there = built(name, setting_of()), built(name, setting_on_gpu())
    for x, y, ids in batches(5):
        expected, found = here.step(x, y, ids), there.step(x.cuda(), y.cuda(), ids.cuda())
        torch.testing.assert_close(found.loss.cpu(), expected.loss, rtol=1e-2, atol=1e-3)
        assert found.margins is not None
        assert found.margins.is_cuda
        assert all(values.is_cuda for values in found.hyperparameters.values())
    resumed = built(name, setting_on_gpu())
    resumed.load_state_dict(there.state_dict())
    resumed.step(*(part.cuda() for part in batches(1)[0]))


@pytest.mark.parametrize("name", ["CE", "GCE", "Forward"])
def test_the_host_waits_once_a_step(name: str) -> None:
    setting = replace(setting_on_gpu(), clean=None, total_steps=1000)
    method = built(name, setting)
    some = [tuple(part.cuda() for part in batch) for batch in batches(4)]
    method.step(*some[0])
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in some[1:]:
                method.step(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "synchroniz" in str(w.message)]) <= len(some[1:])
