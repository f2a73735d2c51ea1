"""The wrong labels of a task: the same for a seed, as many as asked for, whole files."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from narl.bench.cells import Task
from narl.bench.noise_labels import labels_of, noisy
from narl.data import read
from narl.data.samples import Images, Samples, Table
from narl.errors import DataError, OptionError
from small_grid import points


def cifar10(folder: Path, each: int = 300) -> Path:
    """Pictures in the published layout: so many of each class in a batch, one batch of five."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(1, 6):
        count = 10 * each if number == 1 else 10
        batch = {
            b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
            b"labels": (np.arange(count) % 10).tolist(),
            b"filenames": [f"{number}-{row}.png".encode() for row in range(count)],
        }
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return folder


def picture_samples(count: int = 4000, classes: int = 10) -> Samples:
    pixels = np.random.default_rng(1).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    names = tuple(f"class {number}" for number in range(classes))
    return Samples(Images(pixels), np.arange(count) % classes, names, np.arange(count).astype(str))


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    data = str(points(tmp_path / "rings.csv", 2000))
    task, right = Task("rings", "symmetric", 0.4), read.read(data)
    paths = [tmp_path / "a/labels.txt", tmp_path / "b/labels.txt", tmp_path / "c/labels.txt"]
    for path, seed in zip(paths, (3, 3, 4), strict=True):
        assert labels_of(task, seed, data, path) == str(path)
    contents = [path.read_bytes() for path in paths]
    assert contents[0] == contents[1] != contents[2]
    given_labels = read.read(data, labels=str(paths[0]))
    assert given_labels.true_labels is not None
    np.testing.assert_array_equal(given_labels.true_labels, right.labels)
    assert (given_labels.labels != right.labels).mean() == pytest.approx(0.4, abs=0.04)
    paths[0].write_text("kept as it is\n")
    labels_of(task, 3, data, paths[0])
    assert paths[0].read_text() == "kept as it is\n"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("noise", ["symmetric", "asymmetric", "instance"])
@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_so_many_labels_are_wrong(noise: str, rate: float) -> None:
    samples = picture_samples()
    first = noisy(Task("pictures", noise, rate), samples, seed=0)
    assert (first != samples.labels).mean() == pytest.approx(rate, abs=0.03)
    assert first.min() >= 0
    assert first.max() < 10
    np.testing.assert_array_equal(first, noisy(Task("pictures", noise, rate), samples, seed=0))
    assert (first != noisy(Task("pictures", noise, rate), samples, seed=1)).any()


def test_asymmetric_noise_by_hand() -> None:
    samples = picture_samples(8000)
    given_labels = noisy(Task("CIFAR-10", "asymmetric", 0.4), samples, seed=0)
    wanted = {9: 1, 2: 0, 4: 7, 3: 5}  # truck, bird, deer, cat
    for label in range(10):
        found = given_labels[samples.labels == label]
        assert set(found) == {label, wanted.get(label, label)}
        assert (found != label).mean() == pytest.approx(0.4 if label in wanted else 0, abs=0.06)
    elsewhere = noisy(Task("pictures", "asymmetric", 0.4), samples, seed=0)
    assert set(elsewhere[samples.labels == 9]) == {9, 0}, "the next class"


def test_asymmetric_noise_of_cifar_100_stays_in_the_superclass() -> None:
    samples = picture_samples(20_000, 100)
    given_labels = noisy(Task("CIFAR-100", "asymmetric", 0.4), samples, seed=0)
    fruit, fish = {0, 51, 53, 57, 83}, {1, 32, 67, 73, 91}
    for group in (fruit, fish):
        for label in group:
            assert set(given_labels[samples.labels == label]) == group
    assert (given_labels != samples.labels).mean() == pytest.approx(0.4, abs=0.02)


def test_where_nothing_is_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    for task in (Task("rings", "real"), Task("rings", "symmetric", 0.0), Task("rings", "symmetric", 0)):
        assert labels_of(task, 0, "nowhere", path) is None
    for name, key in (("aggregate", "aggre_label"), ("random1", "random_label1"), ("worst", "worse_label")):
        assert labels_of(Task("CIFAR-10N", name), 0, "nowhere", path, "human.pt") == f"human.pt:{key}"
    assert not path.exists()
    with pytest.raises(OptionError, match=r"CIFAR-10N worst needs the file with people's labels.*--labels"):
        labels_of(Task("CIFAR-10N", "worst"), 0, "nowhere", path)
    with pytest.raises(OptionError, match="CIFAR-10N has no labels 'worse': did you mean 'worst'"):
        labels_of(Task("CIFAR-10N", "worse"), 0, "nowhere", path, "human.pt")


def test_noise_that_cannot_be_made(tmp_path: Path) -> None:
    data = str(points(tmp_path / "rings.csv", 50))
    with pytest.raises(OptionError, match="no noise is called 'pair'"):
        labels_of(Task("rings", "pair", 0.4), 0, data, tmp_path / "labels.txt")
    words = tmp_path / "words.csv"
    words.write_text("text,label\n" + "".join(f"word {i} and more of them,{'ab'[i % 2]}\n" for i in range(50)))
    with pytest.raises(OptionError, match="instance noise needs images or columns of numbers"):
        labels_of(Task("words", "instance", 0.4), 0, str(words), tmp_path / "labels.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"rings.csv", "words.csv"}


def test_instance_noise_of_tables_goes_by_their_numbers(tmp_path: Path) -> None:
    samples = read.read(points(tmp_path / "points.csv", 3000))
    given_labels = noisy(Task("points", "instance", 0.4), samples, seed=0)
    assert (given_labels != samples.labels).mean() == pytest.approx(0.4, abs=0.03)
    assert isinstance(samples.inputs, Table)
    numbers = samples.inputs.numbers.copy()
    numbers[:, 0] = numbers[::-1, 0]
    other = noisy(Task("points", "instance", 0.4), replace(samples, inputs=replace(samples.inputs, numbers=numbers)), 0)
    assert (other != given_labels).any()


def test_the_published_layout_and_its_labels(tmp_path: Path) -> None:
    data = cifar10(tmp_path / "cifar")
    path = labels_of(Task("CIFAR-10", "asymmetric", 0.4), 0, str(data), tmp_path / "labels.txt")
    samples = read.read(data, labels=path)
    assert samples.true_labels is not None
    names = np.array(samples.classes)
    moved = {(names[true], names[given]) for true, given in zip(samples.true_labels, samples.labels, strict=True)}
    wanted = {("truck", "automobile"), ("bird", "airplane"), ("deer", "horse"), ("cat", "dog")}
    assert {pair for pair in moved if pair[0] != pair[1]} == wanted


def test_a_killed_process_leaves_no_half_file(tmp_path: Path) -> None:
    """Killed when all is written and nothing has its name yet: the worst moment."""
    data, path = points(tmp_path / "rings.csv", 500), tmp_path / "labels.txt"
    script = (
        "import os, signal; from pathlib import Path; from narl.bench import noise_labels; "
        "from narl.bench.cells import Task; os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
        f"noise_labels.labels_of(Task('rings', 'symmetric', 0.4), 0, {str(data)!r}, Path({str(path)!r}))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == -signal.SIGKILL
    assert not path.exists()
    labels_of(Task("rings", "symmetric", 0.4), 0, str(data), path)
    assert len(path.read_text().splitlines()) == 500


def test_noise_is_not_put_on_labels_that_are_wrong_already(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    rows = [f"{row},{'ab'[row % 2]},{'ab'[row % 2 if row else 1]}" for row in range(20)]
    path.write_text("\n".join(["x,label,true_label", *rows]) + "\n")
    task = Task("points", "symmetric", 0.3)
    with pytest.raises(DataError, match=r"has wrong labels already, and points symmetric 0\.3 would make more"):
        labels_of(task, 0, str(path), tmp_path / "labels.txt")
    assert not (tmp_path / "labels.txt").exists()
    path.write_text(path.read_text().replace("0,a,b", "0,a,a"))
    assert labels_of(task, 0, str(path), tmp_path / "labels.txt") == str(tmp_path / "labels.txt")
