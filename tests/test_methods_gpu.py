"""Every method on a GPU: it trains there as on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from methods_problem import batches, built, data, setting_of, shown
from narl.train import methods
from narl.train.methods import Setting

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
