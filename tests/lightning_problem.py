"""A small problem in Lightning, and the plain loop that gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import narl
from narl.integrations.clean_batches import CleanBatches
from narl.integrations.lightning import NoiseAwareCallback

COUNTS = [22, 21, 21]
CLIP = 0.2
stacked = default_collate


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy samples with labels, clean ones with theirs."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(5, 3, generator=generator)
    x, clean_x = torch.randn(64, 5, generator=generator), torch.randn(12, 5, generator=generator)
    y = (x @ truth).argmax(1)
    wrong = torch.rand(64, generator=generator) < 0.4
    return x, torch.where(wrong, (y + 1) % 3, y), clean_x, (clean_x @ truth).argmax(1)


def fresh() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def adjuster() -> narl.Adjuster:
    return narl.Adjuster("gce", COUNTS, generator=torch.Generator().manual_seed(0))


class Module(pl.LightningModule):
    """A classifier with automatic or manual optimisation."""

    noise: NoiseAwareCallback

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        self.model, self._made = fresh()
        self.automatic_optimization = not manual

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: Any, index: int) -> Tensor | None:
        x, y = batch
        loss = self.noise.loss(self, x, y)
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def configure_optimizers(self) -> Any:
        return self._made


def noise_of(**changes: Any) -> NoiseAwareCallback:
    _, _, clean_x, clean_y = data()
    options: dict[str, Any] = {"clean": (clean_x, clean_y), "clean_batch_size": 6, "adjuster_lr": 1e-2}
    return NoiseAwareCallback(COUNTS, **options | changes)


def loader(rows: int = 8) -> DataLoader[Any]:
    x, y, _, _ = data()
    return DataLoader(TensorDataset(x, y), batch_size=rows)


def trainer_of(**changes: Any) -> pl.Trainer:
    options: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(**options | changes)


def fitted(
    module: Module, noise: NoiseAwareCallback, folder: Path | None = None, ckpt_path: Path | None = None, **changes: Any
) -> pl.Trainer:
    """Fit a module."""
    module.noise = noise
    callbacks: list[Any] = [noise]
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, save_top_k=-1))
        changes["enable_checkpointing"] = True
    if module.automatic_optimization:
        changes = {"gradient_clip_val": CLIP} | changes
    trainer = trainer_of(callbacks=callbacks, **changes)
    trainer.fit(module, loader(), ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return trainer


def plain_loop(clip: float | None) -> tuple[nn.Module, narl.Adjuster]:
    """One epoch with every second step a meta step."""
    model, optimizer = fresh()
    learned = adjuster()
    outer = torch.optim.Adam(learned.parameters(), lr=1e-2, weight_decay=1e-4)
    meta = narl.MetaStep(model, optimizer, learned, every=2, adjuster_optimizer=outer, clip=clip)
    x, y, clean_x, clean_y = data()
    clean = CleanBatches(TensorDataset(clean_x, clean_y), 6, default_collate, 0)
    for start in range(0, len(x), 8):
        meta.step(x[start : start + 8], y[start : start + 8], clean.next)
    return model, learned


def together() -> dict[str, Any]:
    """What one of two processes gets, in DistributedDataParallel, with four of the eight samples of a batch."""
    noise, module = noise_of(every=2), Module()
    module.noise = noise
    trainer = trainer_of(
        callbacks=[noise], gradient_clip_val=CLIP, strategy="ddp", devices=2, use_distributed_sampler=False
    )
    rank = trainer.global_rank
    x, y, _, _ = data()
    own = torch.arange(64).view(8, 2, 4)[:, rank].flatten()
    trainer.fit(module, DataLoader(TensorDataset(x[own], y[own]), batch_size=4))
    return {
        "model": {name: value.detach() for name, value in module.model.named_parameters()},
        "adjuster": {name: value.detach() for name, value in noise.adjuster.named_parameters()},
    }
