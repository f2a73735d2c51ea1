"""Type checkers know what narl gives back: this file passes pyright's strict mode (``make types``).

python examples/typed.py
"""

# pyright: strict

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import narl
from narl import audit, losses, models, noise, theory
from narl.train import Settings, plan, start


def mean_loss(name: str, logits: Tensor, labels: Tensor) -> float:
    """A loss by its name, over a batch."""
    loss = losses.get(name)
    values = loss(logits, labels)
    return values.mean().item()


def step(model: nn.Module, x: Tensor, y: Tensor, clean: tuple[Tensor, Tensor]) -> narl.StepReport:
    """One step on wrong labels, with the loss learned on right ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adjuster = narl.Adjuster("gce", class_counts=torch.bincount(y, minlength=3))
    meta = narl.MetaStep(model, optimizer, adjuster, every=1)
    report = meta.step(x, y, clean=clean)
    q: Tensor = report.hyperparameters["q"]
    assert q.shape == y.shape
    return report


def adjusted(adjuster: narl.Adjuster, logits: Tensor, labels: Tensor) -> Tensor:
    """A learned adjuster as a criterion."""
    criterion = narl.AdjustedLoss(adjuster, class_counts=[10, 10, 10])
    loss: Tensor = criterion(logits, labels)
    assert criterion.last is not None
    suspicion: Tensor = criterion.last.suspicion
    assert suspicion.shape == labels.shape
    return loss


def wrong_labels(logits: Tensor, labels: Tensor) -> list[int]:
    """Samples whose labels look wrong, the worst first."""
    verdicts = audit.from_logits(logits.numpy(), labels.numpy())
    rate: float = verdicts.noise.rate
    assert 0 <= rate <= 1
    return [index for index in verdicts.order().tolist() if verdicts.wrong[index]]


def trained(folder: Path) -> bool:
    """A run from Python: whether it came to its end."""
    rows = "".join(f"{index % 7},{'ab'[index % 7 > 3]}\n" for index in range(60))
    (folder / "table.csv").write_text("x,label\n" + rows)
    outcome = start(plan(Settings(data=str(folder / "table.csv"), epochs=1)), folder / "run")
    return outcome.finished


def main() -> None:
    """Use them all."""
    generator = torch.Generator().manual_seed(0)
    x, truth = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    y = noise.symmetric(truth, 0.2, 3, seed=0)
    model = models.mlp(num_classes=3, in_features=4, hidden=(8,), generator=generator)
    print(mean_loss("gce", model(x).detach(), y))
    print(step(model, x, y, (x[:6], truth[:6])).loss)
    print(adjusted(narl.Adjuster("gce", class_counts=[10, 10, 10]), model(x), y))
    print(wrong_labels(model(x).detach(), y))
    print(theory.bounds("gce", 10, q=0.7))
    classifier = narl.NoiseAwareClassifier(max_iter=1, random_state=0).fit(x.numpy(), y.numpy())
    print(np.asarray(classifier.predict(x.numpy())).shape)
    try:
        narl.Adjuster("none such", class_counts=[1, 1])
    except narl.NarlError as error:
        print(error)
    with tempfile.TemporaryDirectory() as folder:
        print(trained(Path(folder)))


if __name__ == "__main__":
    main()
