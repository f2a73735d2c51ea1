"""The adjusters that narl ships: what each is, where it serves, and that it is used where nobody has clean samples."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import narl
from command_line import done
from narl import AdjustedLoss, NoiseAwareClassifier, losses
from narl.adjuster import packs, pretrained
from narl.adjuster.turns import KINDS, meant_for
from narl.train import adjusters

ROOT = Path(__file__).parent.parent
SHIPPED = narl.pretrained()
BY_KIND = [
    (release.loss, kind) for release in SHIPPED for kind in KINDS if adjusters.without_clean(release.loss, kind)[1]
]


def table(path: Path, rows: int = 600) -> tuple[Path, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Three clouds of points, a third of whose labels are wrong, and the right ones."""
    rng = np.random.default_rng(0)
    truth = np.arange(rows) % 3
    x = rng.normal(size=(rows, 4)) + 3 * np.eye(4)[truth]
    given = np.where(rng.random(rows) < 0.3, (truth + rng.integers(1, 3, rows)) % 3, truth)
    lines = [",".join([*(f"{value:.4f}" for value in row), str(label)]) for row, label in zip(x, given, strict=True)]
    path.write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")
    return path, truth


def test_there_is_one_of_every_loss_with_hyperparameters() -> None:
    adjustable = [name for name in losses.names() if losses.get(name).hyperparameters]
    assert sorted({release.loss for release in SHIPPED}) == sorted(adjustable)
    shown = repr(SHIPPED).splitlines()
    assert len(shown) == 1 + len(SHIPPED)
    assert max(map(len, shown)) < 100, "it fits a terminal"


@pytest.mark.parametrize("release", SHIPPED, ids=lambda release: release.name)
def test_each_has_a_checksum_and_a_card(release: pretrained.Release) -> None:
    assert packs.sha256(release.path) == release.sha256
    assert release.path.stat().st_size < 40_000
    card = release.card
    assert card.startswith(f"# {release.name}\n")
    for part in (release.sha256, release.trained_on, release.data, "## Where it fails", "Apache-2.0"):
        assert part in card
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", card):
        assert (release.path.parent / link).is_file()


def test_they_are_those_of_the_results() -> None:
    """Results of T-* name what they were made with by what it computes: the files in results/ and the shipped ones."""
    for loss, kind in BY_KIND:
        known = [packs.read(path) for path in (ROOT / "results" / "adjusters").glob(f"{loss}-*.safetensors")]
        own = packs.digest(meant_for(packs.read(f"{pretrained.WEIGHTS}/{loss}-1.safetensors").snapshots, kind))
        assert own in {pack.digest for pack in known}, (loss, kind)


# Which way each hyperparameter goes from learning to resisting.
RESISTS = {"q": 1, "pi1": 1, "gamma1": -1, "lam": -1}


@pytest.mark.parametrize(("loss", "kind"), BY_KIND)
@pytest.mark.parametrize("classes", [2, 10, 40])
def test_they_have_learned_to_doubt_low_margins(loss: str, kind: str, classes: int) -> None:
    """At the end of a training, where all classes have one size: the loss resists more the lower the margin is."""
    if kind == "image" and classes == 40:  # those for tables and texts have seen 40 at most
        classes = 400
    criterion = AdjustedLoss.pretrained(loss, [50] * classes, data=kind)
    logits = torch.zeros(2, classes)
    logits[:, 0] = 15.0
    values = criterion(logits.requires_grad_(), torch.tensor([0, 1]), progress=1.0)
    (slopes,) = torch.autograd.grad(values, logits)
    assert slopes.isfinite().all()
    seen = criterion.last
    assert seen is not None
    assert seen.suspicion[1] > 0.5 > seen.suspicion[0]
    moved = {
        name: RESISTS[name] * float(given[1] - given[0])
        for name, given in seen.hyperparameters.items()
        if name in RESISTS
    }
    spans = criterion.at(1.0).spans
    assert all(move > 0.15 * (spans[name][1] - spans[name][0]) for name, move in moved.items()), moved
    for name, (low, high) in spans.items():
        assert ((seen.hyperparameters[name] >= low) & (seen.hyperparameters[name] <= high)).all()


@pytest.mark.parametrize(("loss", "kind"), BY_KIND)
def test_they_are_plain_modules(loss: str, kind: str) -> None:
    criterion = AdjustedLoss.pretrained(loss, [30, 20, 50], total_steps=9, data=kind)
    logits, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    for _ in range(4):
        criterion(logits, labels)
    again = AdjustedLoss.pretrained(loss, [30, 20, 50], total_steps=9, data=kind)
    again.load_state_dict(criterion.state_dict())
    expected = copy.deepcopy(criterion)(logits, labels)
    for other in (again, pickle.loads(pickle.dumps(criterion))):
        assert other.steps == 4
        assert_close(other(logits, labels), expected, rtol=0, atol=0)


def test_each_is_for_any_data() -> None:
    assert len(BY_KIND) == len(SHIPPED) * len(KINDS)
    for release in SHIPPED:
        assert adjusters.without_clean(release.loss, "image")[1] == f"narl:{release.name}"
        assert AdjustedLoss.pretrained(release.loss, [5, 5], total_steps=9).at(0.0).data is None


def test_narl_train_without_clean_samples_uses_them(tmp_path: Path) -> None:
    data, _ = table(tmp_path / "points.csv")
    asked = ("train", data, "--device", "cpu", "--dry-run", "--json")
    assert '"method": "T-SL"' in done(*asked).out
    for loss in ("gce", "polysoft", "js"):
        assert f'"method": "T-{losses.get(loss).title}"' in done(*asked, "--loss", loss).out
    assert '"method": "A-GCE"' in done(*asked, "--clean", 30).out
    images = tmp_path / "images.npz"
    np.savez(images, x=np.zeros((40, 8, 8, 3), np.uint8), y=np.arange(40) % 2)
    of_images = done("train", images, "--test", "none", "--loss", "polysoft", "--device", "cpu", "--dry-run", "--json")
    assert '"method": "T-PolySoft"' in of_images.out


def test_the_estimator_uses_them(tmp_path: Path) -> None:
    path, truth = table(tmp_path / "points.csv")
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    X, y = rows[:, :4], rows[:, 4].astype(int)
    model = NoiseAwareClassifier(random_state=0).fit(X, y)
    assert model.method_ == "T-SL"
    assert model.score(X, truth) > 0.9
    assert ((model.label_quality_ < 0.5) == (y != truth)).mean() > 0.9
    assert NoiseAwareClassifier("js", max_iter=1).fit(X, y).method_ == "T-JS"
    assert NoiseAwareClassifier("gce", adjuster=None, max_iter=1).fit(X, y).method_ == "GCE"
    assert NoiseAwareClassifier(adjuster="js", max_iter=1).fit(X, y).method_ == "T-JS", "the adjuster says which loss"
    assert NoiseAwareClassifier(max_iter=1).partial_fit(X, y, classes=[0, 1, 2]).method_ == "GCE", "a stream has no end"
