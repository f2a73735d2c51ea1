"""The recipes for accelerate and skorch run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import narl
from documented import blocks, example

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::narl.NarlWarning")]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator
    from skorch import NeuralNetClassifier

    monkeypatch.chdir(tmp_path)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    names: dict[str, Any] = {
        "narl": narl,
        "np": np,
        "nn": nn,
        "torch": torch,
        "NeuralNetClassifier": NeuralNetClassifier,
        "accelerator": Accelerator(cpu=True),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10),
        "noisy_labels": y,
        "clean_x": x[:6],
        "clean_y": y[:6],
        "network": nn.Linear(4, 3),
        "features": x.numpy(),
    }
    first, second, third = blocks("recipes.md")
    exec(first, names)
    assert not torch.equal(model.weight, before)
    names["adjuster"].save("adjuster.safetensors")
    names["noisy_labels"] = y.numpy()
    exec(second, names)
    assert names["net"].predict_proba(x.numpy()).sum(1) == pytest.approx(1, abs=1e-5)
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(third, names)
    assert names["report"].meta_loss is None


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str) -> None:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    assert example("accelerate_recipe").main(epochs=2, mixed_precision=precision) > 0.2
    AcceleratorState._reset_state(reset_partial_state=True)


def test_skorch() -> None:
    found = example("skorch_recipe").main(epochs=2)
    assert set(found) == {"cross entropy", "noise-aware", "the loss that was learned"}
    assert min(found.values()) > 0.2
