"""accelerate: a training loop of your own, on one device or many, with a loss that is learned.

    python examples/accelerate_recipe.py
    accelerate launch --num_processes 2 examples/accelerate_recipe.py

The lines that are new are marked. ``meta.step`` takes the place of ``accelerator.backward``, ``clip_grad_norm_`` and
``optimizer.step``; among several processes it exchanges what is needed.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import narl
from narl.integrations import meta_step


def main(epochs: int = 15, mixed_precision: str = "no") -> float:
    """Train on digits of which 40 % are labelled wrongly; the share of right answers on clean ones."""
    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(digits.data, dtype=torch.float32).div(16)[order]
    y = torch.as_tensor(digits.target)[order]
    noisy = narl.noise.pair(y[:1200], 0.4)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x[:1200], noisy), batch_size=50, shuffle=True, generator=generator)
    clean = DataLoader(TensorDataset(x[1200:1300], y[1200:1300]), batch_size=100)

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader, clean = accelerator.prepare(model, optimizer, loader, clean)
    adjuster = narl.Adjuster("gce", class_counts=torch.bincount(noisy, minlength=10)).to(accelerator.device)  # new
    outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)  # new
    meta = meta_step(model, optimizer, adjuster, every=2, adjuster_optimizer=outer, clip=5.0)  # new
    clean_batch = next(iter(clean))  # new

    for _ in range(epochs):
        model.train()
        for inputs, labels in loader:
            with accelerator.autocast():
                meta.step(inputs, labels, clean_batch)  # new

    model.eval()
    with torch.no_grad():
        right = model(x[1300:].to(accelerator.device)).argmax(1).cpu() == y[1300:]
    return float(right.float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--mixed-precision", default="no", choices=["no", "bf16"])
    options = parser.parse_args()
    print(f"{100 * main(options.epochs, options.mixed_precision):.1f} % of the test digits are right")
