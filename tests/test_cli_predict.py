"""``narl predict``: what it says about samples that are not like those of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import done, photos, refused

ONE = ("--epochs", 1, "--device", "cpu", "--no-tensorboard", "--test", "none")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table with towns, some of them missing."""
    folder = tmp_path_factory.mktemp("towns")
    rows = [f"{i},{('Bonn', 'Jena', '')[i % 3]},{'ab'[i % 2]},{i % 2}" for i in range(60)]
    (folder / "data.csv").write_text("\n".join(["x,town,kind,label", *rows]) + "\n")
    done("train", folder / "data.csv", "--out", folder / "run", *ONE)
    return folder / "run"


def test_categories_that_training_did_not_have(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("x,town,kind\n1,Rome,a\n2,Bonn,\n3,,a\n4,bonn,a\n")
    answer = done("predict", run, new, "--out", tmp_path / "predictions.csv")
    assert answer.err.splitlines() == [
        "narl: column 'town': 2 of 4 values were not in the training data",
        "narl: column 'kind': 1 of 4 values were not in the training data",
    ]
    assert "predicted 4 samples" in answer.out
    new.write_text("x,town,kind\n1,Jena,a\n")
    answer = done("predict", run, new, "--out", tmp_path / "one.csv")
    assert answer.err == ""
    assert "predicted 1 sample with" in answer.out


def test_a_missing_run_is_told_before_a_file_that_exists(run: Path, tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("mine")
    new = tmp_path / "new.csv"
    new.write_text("x,town,kind\n1,Rome,a\n")
    assert "nowhere" in refused("predict", tmp_path / "nowhere", new, "--out", tmp_path / "predictions.csv")
    assert "exists already" in refused("predict", run, new, "--out", tmp_path / "predictions.csv")


def test_images_that_cannot_be_read_are_left_out_on_request(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    done("train", data, "--out", tmp_path / "run", "--model", "convnet", *ONE)
    bad = sorted(data.rglob("*.*"))[0]
    bad.write_bytes(b"broken")
    out = tmp_path / "predictions.csv"
    assert "--skip-unreadable" in refused("predict", tmp_path / "run", data, "--out", out)
    answer = done("predict", tmp_path / "run", data, "--out", out, "--skip-unreadable")
    assert "narl: 1 of " in answer.err
    assert bad.name in answer.err
    assert str(bad.relative_to(data)) not in out.read_text()
    assert len(out.read_text().splitlines()) == len(list(data.rglob("*.*")))
