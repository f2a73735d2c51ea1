"""The wrong labels of a task: made for a seed, and kept in a file that a run is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl import noise
from narl.bench.cells import Task
from narl.data import arrays, read
from narl.data.looks import looks
from narl.data.samples import Samples
from narl.errors import DataError, OptionError, nearest
from narl.train.writing import replacing

# What is made, with a rate.
MADE = ("symmetric", "asymmetric", "instance")
# What CIFAR-10N's own file calls its labels.
HUMAN = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}
# Labels by rules, beside the right ones: an array weak_train or weak_label, a column weak_label.
WEAK = "weak"


def labels_of(task: Task, seed: int, source: str, path: Path, human: str | None = None) -> str | None:
    """The given labels of a task, as ``narl train --labels`` takes them.

    Args:
        task: whose labels.
        seed: of the noise.
        source: the data, with right labels.
        path: the file to keep noisy labels in; one that is there is used.
        human: the file with people's labels, for tasks that want them.

    Returns:
        ``"FILE"`` or ``"FILE:KEY"``; None where the data's own labels are the given ones.
    """
    if task.noise == "real" or task.rate == 0:
        return None
    if task.noise == WEAK:
        return f"{source}:{_weak(source)}"
    if task.rate is None:
        if task.noise not in HUMAN:
            raise OptionError(f"{task.dataset} has no labels {task.noise!r}: {nearest(task.noise, (*HUMAN, WEAK))}")
        if human is None:
            raise OptionError(
                f"{task} needs the file with people's labels, CIFAR-10_human.pt or the like: give it with --labels"
            )
        return f"{human}:{HUMAN[task.noise]}"
    if not path.exists():
        samples = read.read(source)
        if samples.true_labels is not None and (samples.true_labels != samples.labels).any():
            raise DataError(
                f"{source} has wrong labels already, and {task} would make more: give data with right labels, or a "
                'task with the noise "real"'
            )
        given = noisy(task, samples, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        names = np.array(samples.classes, dtype=object)[given]
        own = path.with_name(f"{path.name}.{os.getpid()}")  # two processes may make the same labels at the same time
        with replacing(own) as file:
            file.write("".join(f"{name}\n" for name in names).encode())
        os.replace(own, path)
    return str(path)


def _weak(source: str) -> str:
    """What the labels by rules are called in a file that has the right ones, too."""
    if Path(source).suffix.lower() != ".npz":
        return "weak_label"
    known = arrays.load(Path(source))
    return next((name for name in ("weak_train", "weak_label", "weak_labels") if name in known), "weak_train")


def noisy(task: Task, samples: Samples, seed: int) -> NDArray[Any]:
    """Labels of the samples with the task's noise, ``(N,)``.

    Asymmetric noise is CIFAR-10's confusions, CIFAR-100's superclasses, and the next class elsewhere.

    Example:
        >>> from narl.data.samples import Texts
        >>> texts = np.array([f"text {i}" for i in range(1000)], object)
        >>> samples = Samples(Texts(texts), np.arange(1000) % 4, tuple("abcd"), np.arange(1000).astype(str))
        >>> given = noisy(Task("letters", "symmetric", 0.5), samples, seed=0)
        >>> bool(0.45 < (given != samples.labels).mean() < 0.55)
        True
    """
    labels, classes, rate = samples.labels, len(samples.classes), task.rate
    assert rate is not None
    if task.noise == "symmetric":
        return np.asarray(noise.symmetric(labels, rate, classes, seed=seed))
    if task.noise == "instance":
        return np.asarray(noise.instance(labels, rate, looks(samples.inputs), classes, seed=seed))
    if task.noise != "asymmetric":
        raise OptionError(f"no noise is called {task.noise!r}: {nearest(task.noise, MADE)}")
    if task.dataset.lower() == "cifar-10":
        return np.asarray(noise.asymmetric(labels, rate, seed=seed))
    if task.dataset.lower() == "cifar-100":
        return np.asarray(noise.hierarchical(labels, rate, seed=seed))
    return np.asarray(noise.pair(labels, rate, classes, seed=seed))
