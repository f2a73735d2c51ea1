"""skorch: a scikit-learn classifier of a PyTorch model, with a loss that is learned, and with one that was.

    python examples/skorch_recipe.py

``NoiseAwareNet`` learns the loss from clean samples while it fits: two methods of ``NeuralNetClassifier`` are its own.
What it has learned then is an ordinary criterion for a plain ``NeuralNetClassifier``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from skorch.dataset import unpack_data
from torch import nn

import narl


class NoiseAwareNet(NeuralNetClassifier):
    """Learns its loss: ``clean`` are samples ``(x, y)`` whose labels are right, ``class_counts`` those of the noisy."""

    def __init__(self, *args: Any, clean: Any, class_counts: Any, every: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clean, self.class_counts, self.every = clean, class_counts, every

    def initialize_optimizer(self, *args: Any, **kwargs: Any) -> NoiseAwareNet:
        """As skorch does, and what learns the loss."""
        super().initialize_optimizer(*args, **kwargs)
        adjuster = narl.Adjuster("gce", self.class_counts).to(self.device)
        outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
        self.meta_ = narl.MetaStep(self.module_, self.optimizer_, adjuster, every=self.every, adjuster_optimizer=outer)
        return self

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """As skorch does, with the learned loss in place of the criterion; it moves the model afterwards."""
        self._set_training(True)
        x, y = unpack_data(batch)
        loss, _ = self.meta_.loss(x, y, self.clean)
        loss.backward()
        return {"loss": loss, "y_pred": None}


def network() -> nn.Module:
    """From 64 pixels to the logits of ten digits."""
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def main(epochs: int = 15) -> dict[str, float]:
    """Fit three times on digits of which 40 % are labelled wrongly; shares of right answers on clean ones."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    noisy = narl.noise.pair(y[:1200], 0.4)
    counts = np.bincount(noisy, minlength=10)
    options: dict[str, Any] = {
        "max_epochs": epochs,
        "batch_size": 50,
        "lr": 0.1,
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
        "train_split": None,
        "verbose": 0,
        "predict_nonlinearity": nn.Softmax(dim=-1),  # the networks end in logits
    }
    clean = torch.as_tensor(x[1200:1300]), torch.as_tensor(y[1200:1300])
    learning = NoiseAwareNet(network, criterion=nn.CrossEntropyLoss, clean=clean, class_counts=counts, **options)
    plain = NeuralNetClassifier(network, criterion=nn.CrossEntropyLoss, **options)
    found = {}
    for name, net in (("cross entropy", plain), ("noise-aware", learning)):
        torch.manual_seed(0)
        found[name] = net.fit(x[:1200], noisy).score(x[1300:], y[1300:])
    drop_in = NeuralNetClassifier(
        network,
        criterion=narl.AdjustedLoss,  # new
        criterion__adjusters=learning.meta_.adjuster,  # new; or narl.Adjuster.load("gce.safetensors")
        criterion__class_counts=counts,  # new
        **options,
    )
    torch.manual_seed(0)
    found["the loss that was learned"] = drop_in.fit(x[:1200], noisy).score(x[1300:], y[1300:])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    for method, share in main(parser.parse_args().epochs).items():
        print(f"{method}: {100 * share:.1f} % of the test digits are right")
