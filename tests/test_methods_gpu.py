"""Every method on a GPU: it trains there as on the CPU."""

from __future__ import annotations

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
