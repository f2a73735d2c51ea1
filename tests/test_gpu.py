"""The same on a GPU: gradients, dropout masks, buffers, files."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import narl
from narl import errors
from oracles import relative_error, unrolled

pytestmark = pytest.mark.gpu
CLASSES = 3


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.head = kind(4, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(x)[0][:, -1])
        return logits


def images(n: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 8, 8, dtype=torch.float64), torch.randint(0, CLASSES, (n,))


def sequences(n: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 7, 4, dtype=torch.float64), torch.randint(0, CLASSES, (n,))


def adjuster(**options: Any) -> narl.Adjuster:
    made = narl.Adjuster("gce", [40, 40, 10], hidden=6, **options)
    with torch.no_grad():
        made.heads.weight.normal_(0, 0.5)
    return made


MODELS: dict[str, tuple[Any, Any]] = {
    "convnet": (lambda: narl.models.convnet(CLASSES, width=8), images),
    "resnet32": (lambda: narl.models.resnet32(CLASSES), images),
    "dropout": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.Dropout(0.5), nn.Linear(32, 3)), images),
    "lstm": (lambda: Recurrent(nn.LSTM), sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
}


@pytest.mark.parametrize("name", MODELS)
def test_hypergradient_equals_the_unrolled_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make_model, make_batch = MODELS[name]
    model, objective = make_model().double().cuda(), adjuster().double().cuda()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch, clean = [tuple(t.cuda() for t in make_batch()) for _ in range(2)]
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NarlWarning)
        found = narl.hypergradient(model, optimizer, objective, batch, clean)
    torch.manual_seed(1)
    monkeypatch.setattr(
        torch.backends.cudnn, "enabled", name not in ("lstm", "gru")
    )  # cuDNN's have no second derivative
    expected = unrolled(model, optimizer, objective, batch, clean)
    assert relative_error(found, expected) < 1e-6


def test_meta_steps_equal_those_on_the_cpu() -> None:
    torch.manual_seed(0)
    model, objective = narl.models.convnet(CLASSES, width=8).double(), adjuster(margin="running").double()
    ids, batches = torch.arange(16), [(images(), images()) for _ in range(10)]
    on_gpu = copy.deepcopy(model).cuda(), copy.deepcopy(objective).cuda()
    for (trained, learned), device in (((model, objective), "cpu"), (on_gpu, "cuda")):
        meta = narl.MetaStep(trained, Adam(trained.parameters(), lr=1e-3), learned, every=2)
        for (x, y), (clean_x, clean_y) in batches:
            report = meta.step(x.to(device), y.to(device), (clean_x.to(device), clean_y.to(device)), ids=ids.to(device))
            assert report.loss.device.type == device
    for left, right in zip(model.parameters(), on_gpu[0].parameters(), strict=True):
        torch.testing.assert_close(left, right.cpu(), rtol=1e-6, atol=1e-9)
    for left, right in zip(objective.parameters(), on_gpu[1].parameters(), strict=True):
        torch.testing.assert_close(left, right.cpu(), rtol=1e-6, atol=1e-9)


def test_files_do_not_remember_the_device(tmp_path: Path) -> None:
    learned = adjuster().cuda()
    learned.save(tmp_path / "a.safetensors")
    loaded = narl.Adjuster.load(tmp_path / "a.safetensors")
    logits, labels = torch.randn(9, CLASSES), torch.randint(0, CLASSES, (9,))
    assert loaded.heads.weight.device.type == "cpu"
    torch.testing.assert_close(loaded(logits, labels)["q"], learned(logits.cuda(), labels.cuda())["q"].cpu())


def test_divergence_is_an_error_on_a_gpu_too() -> None:
    model = narl.models.convnet(CLASSES, width=8).cuda()
    meta = narl.MetaStep(model, SGD(model.parameters(), lr=0.1), adjuster().cuda(), every=1)
    x, y = (t.float().cuda() if t.is_floating_point() else t.cuda() for t in images())
    with pytest.raises(errors.NarlError):
        meta.step(x * torch.nan, y, (x, y))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_shipped_loss_counts_unnamed_samples_on_the_host() -> None:
    there = narl.AdjustedLoss.pretrained("sl", [20, 20, 20], total_steps=12).cuda()
    here = narl.AdjustedLoss.pretrained("sl", [20, 20, 20], total_steps=12)
    logits, labels = 3 * torch.randn(12, 8, CLASSES), torch.randint(0, CLASSES, (12, 8))
    for z, y in zip(logits, labels, strict=True):
        torch.testing.assert_close(there(z.cuda(), y.cuda()).cpu(), here(z, y), rtol=1e-4, atol=1e-5)
    running = there.at(0.0).running
    assert running is not None
    assert running.seen is not None
    assert (running.seen.device.type, int(running.seen)) == ("cpu", 96)
