"""Out of sample: every label is judged by a classifier that was trained without it."""

from __future__ import annotations

import json
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from narl.audit import evidence
from narl.audit.judging import judge
from narl.audit.runs import check_unchanged, families_of, judged_clean, log_probabilities, warn_of_no_unseen
from narl.audit.verdicts import Classes, Verdicts
from narl.data.content import groups
from narl.data.samples import Samples
from narl.errors import DataError, NarlError, OptionError
from narl.train import planning, session
from narl.train.adjusters import kept_adjusters
from narl.train.defaults import Recipe
from narl.train.keeper import Observer
from narl.train.planning import Plan
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings
from narl.train.trained import Trained


def from_folds(
    folder: str | PathLike[str], folds: int, *, observer: Observer | None = None, device: str = "auto"
) -> Verdicts | None:
    """Which labels of a run's training set are wrong, by cross-validation: the run is trained anew for every fold.

    What has been trained is kept in the run's folder, under ``audit/``, and is not trained again. The run's record is
    not looked at.

    Args:
        folder: the run's.
        folds: in how many parts the training set is cut; each is judged by a classifier trained on the others.
        observer: who wants to see the trainings go on, or stop them.
        device: where to compute predictions.

    Returns:
        One verdict a training sample that was not checked, in the run's order; None if the observer wanted to stop.

    Raises:
        RunFolderError: the data have changed since the run began.
        DataError: a class has too few samples.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     x = np.arange(80.0).reshape(40, 2)
        ...     np.savez(f"{place}/table.npz", x=x, y=(x[:, 0] > 40).astype(int))
        ...     made = planning.plan(Settings(data=f"{place}/table.npz", test="none", epochs=2, device="cpu"))
        ...     outcome = session.start(made, Path(place, "run"), tensorboard=False)
        ...     verdicts = from_folds(f"{place}/run", 2)
        >>> len(verdicts)
        40
    """
    run = RunFolder.open(folder)
    plan = _plan(run)
    train = plan.sets.train
    parts = assign(train.labels.astype(np.int64), groups(train.inputs), train.classes, folds, plan.settings.seed)
    logits = np.empty((len(train), len(train.classes)), dtype=np.float32)
    classifiers: list[Trained] = []
    for fold in range(folds):
        trained = _trained(plan, parts != fold, run.path / "audit" / f"fold-{fold + 1}-of-{folds}", observer, device)
        if trained is None:
            return None
        held = np.flatnonzero(parts == fold)
        logits[held] = log_probabilities(trained.predict(train.take(held).inputs))
        classifiers.append(trained)
    judged = plan.sets.unchecked
    given = train.labels[judged].astype(np.int64)
    if plan.sets.checked and not plan.sets.unseen:
        warn_of_no_unseen(run)
    return judge(
        evidence.from_logits(logits[judged], given),
        ids=train.ids[judged],
        given=given,
        class_names=train.classes,
        family=families_of(run, given),
        clean=judged_clean(plan.sets, classifiers),
    )


def assign(
    labels: Classes, content: NDArray[np.int64], classes: tuple[str, ...], folds: int, seed: int
) -> NDArray[np.int64]:
    """A fold for every sample: classes evenly, samples of one content together.

    Args:
        labels: given labels, ``(N,)``.
        content: equal numbers for samples of equal content, ``(N,)``.
        classes: their names.
        folds: how many, at least 2.
        seed: decides which, alone.

    Returns:
        ``(N,)``, from 0 to ``folds - 1``.

    Example:
        >>> parts = assign(np.array([0, 0, 0, 0, 1, 1]), np.arange(6), ("a", "b"), 2, seed=0)
        >>> np.bincount(parts[:4]).tolist(), np.bincount(parts[4:]).tolist()
        ([2, 2], [1, 1])
    """
    if folds < 2:
        raise OptionError(f"folds = {folds} leaves nothing to train on: give 2 or more, such as 5")
    if folds > len(labels):
        raise OptionError(f"{folds} folds are more than the {len(labels)} samples: give fewer, such as 5")
    order = np.random.default_rng([seed, *b"folds"]).permutation(len(labels))
    numbers, first = np.unique(content[order], return_index=True)
    originals = order[np.sort(first)]  # one sample a content, which decides for its copies
    fold_of = np.empty(len(numbers), dtype=np.int64)
    dealt = 0
    for label, name in enumerate(classes):
        own = originals[labels[originals] == label]
        if len(np.unique(content[labels == label])) < 2:
            raise DataError(
                f"class {name!r} has no two different samples, so none of it can be judged by the others: leave out "
                "--folds, or give more samples"
            )
        fold_of[np.searchsorted(numbers, content[own])] = (dealt + np.arange(len(own))) % folds
        dealt += len(own)  # the next class goes on where this one ended: folds stay of one size
    return fold_of[np.searchsorted(numbers, content)]


def _plan(run: RunFolder) -> Plan:
    with run.understood() as config:
        settings, recipe = Settings.from_json(config["settings"]), Recipe(**config["recipe"])
    if settings.tune:
        raise OptionError(f"{run.path} chose its loss with --tune, which folds do not repeat: audit it without --folds")
    plan = planning.plan(replace(settings, adjusters=kept_adjusters(run.path) or settings.adjusters), recipe)
    check_unchanged(run, plan.sets)
    return plan


def _trained(plan: Plan, kept: NDArray[np.bool_], path: Path, observer: Observer | None, device: str) -> Trained | None:
    """The classifier of a fold, trained now if it was not before; None if that was stopped."""
    part: Samples = plan.sets.train.take(np.flatnonzero(kept))
    fold = replace(plan, sets=replace(plan.sets, train=part, test=None, also={}))
    if not _is_done(fold, path):
        outcome = session.start(fold, path, overwrite=True, observer=observer, tensorboard=False)
        if not outcome.finished:
            return None
    return Trained(path, device)


def _is_done(plan: Plan, path: Path) -> bool:
    """Whether just this has been trained before."""
    try:
        before = RunFolder.open(path)
        before.read_json("summary.json")
    except NarlError:
        return False
    return bool(before.config == json.loads(json.dumps(plan.describe())))
