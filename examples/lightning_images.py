"""Lightning: handwritten digits of which 40 % are labelled wrongly, with ``NoiseAwareCallback``.

Three lines are new in an ordinary ``LightningModule`` and its ``Trainer``; they are marked.

    python examples/lightning_images.py
"""

from __future__ import annotations

import argparse
import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from narl import models, noise
from narl.integrations.lightning import NoiseAwareCallback


def shifted(images: Tensor) -> Tensor:
    """Images ``(N, 1, 8, 8)``, each moved by up to one pixel."""
    padded = F.pad(images, (1, 1, 1, 1))
    places = torch.randint(0, 3, (len(images), 2)).tolist()
    return torch.stack([image[:, i : i + 8, j : j + 8] for image, (i, j) in zip(padded, places, strict=True)])


class Classifier(pl.LightningModule):
    """A small convolutional network, trained by a given loss or by cross entropy."""

    def __init__(self, noise_aware: NoiseAwareCallback | None) -> None:
        super().__init__()
        self.layers = models.convnet(num_classes=10, in_channels=1, width=16)
        self.noise_aware = noise_aware

    def forward(self, images: Tensor) -> Tensor:
        """The logits ``(N, 10)`` of images ``(N, 1, 8, 8)``."""
        logits: Tensor = self.layers(images)
        return logits

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        x = shifted(x)
        if self.noise_aware is not None:
            return self.noise_aware.loss(self, x, y)  # new: in place of the line below
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)


def main(epochs: int = 20) -> dict[str, float]:
    """Train twice, and tell how often the two are right on clean digits."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)[order]
    y = torch.as_tensor(digits.target)[order]
    train_x, clean_x, test_x = x[:1200], x[1200:1300], x[1300:]
    train_y, clean_y, test_y = noise.pair(y[:1200], 0.4), y[1200:1300], y[1300:]
    found = {}
    for name in ("cross entropy", "noise-aware"):
        torch.manual_seed(0)
        counts = torch.bincount(train_y, minlength=10)
        noise_aware = NoiseAwareCallback(counts, clean=(clean_x, clean_y))  # new
        module = Classifier(noise_aware if name == "noise-aware" else None)
        trainer = pl.Trainer(
            max_epochs=epochs,
            callbacks=[noise_aware] if name == "noise-aware" else [],  # new
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(train_x, train_y), batch_size=100, shuffle=True))
        module.eval()
        with torch.no_grad():
            found[name] = float((module(test_x).argmax(1) == test_y).float().mean())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    for method, share in main(parser.parse_args().epochs).items():
        print(f"{method}: {100 * share:.1f} % of the test digits are right")
