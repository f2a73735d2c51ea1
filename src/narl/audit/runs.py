"""An audit of the labels that a run was trained on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from narl.adjuster import Families
from narl.adjuster.turns import meant_for
from narl.audit import evidence
from narl.audit.epochs import weights_of
from narl.audit.judging import Clean, judge
from narl.audit.verdicts import Classes, Numbers, Verdicts
from narl.data.samples import Samples
from narl.errors import NarlError, NarlWarning, RunFolderError
from narl.train.adjusters import kept_adjusters, load_adjusters
from narl.train.defaults import Recipe
from narl.train.prepare import Sets, prepare
from narl.train.record import RIVAL, SampleRecord
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings
from narl.train.trained import Trained


def from_run(folder: str | PathLike[str], *, calibrate: bool = True, device: str = "auto") -> Verdicts:
    """Which labels of its training set a run holds for wrong, by all that it recorded so far.

    Clean samples that it was trained on as well are not judged: they have been checked. The data are read again only
    where they are needed: for a clean set, and for runs whose record holds no labels or no rivals, as those of narl
    before there were audits.

    Args:
        folder: the run's.
        calibrate: where the run has clean samples that it was not trained on, calibrate probabilities with them. If it
            was trained on all of them, or they cannot be read any more, a warning says so.
        device: where to compute predictions for the clean set.

    Returns:
        One verdict a training sample that was not checked, in the run's order.

    Raises:
        RunFolderError: the folder is no run, is damaged, or has no epoch yet.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from narl.train import plan, start
        >>> with tempfile.TemporaryDirectory() as place:
        ...     x = np.arange(80.0).reshape(40, 2)
        ...     np.savez(f"{place}/table.npz", x=x, y=(x[:, 0] > 40).astype(int))
        ...     made = plan(Settings(data=f"{place}/table.npz", test="none", epochs=2, device="cpu"))
        ...     outcome = start(made, Path(place, "run"), tensorboard=False)
        ...     verdicts = from_run(f"{place}/run")
        >>> len(verdicts), verdicts.class_names, verdicts.probability is None
        (40, ('0', '1'), True)
    """
    run = RunFolder.open(folder)
    record = SampleRecord.open(folder)
    with run.understood() as config:
        names = tuple(str(name) for name in config["classes"])
        checked, unseen = int(config["samples"].get("checked", 0)), int(config["samples"]["heldout"])
        unseen += 0 if checked else int(config["samples"]["clean"])
    epochs = _epochs(run, record)
    sets: Sets | None = None
    if record.labels is None or RIVAL not in record.fields:
        sets = read_sets(run)
    labels = record.labels if record.labels is not None else _labels_of(record, _there(sets).train, run)
    if labels.max() >= len(names):
        raise RunFolderError(f"{run.path / 'samples.json'} names classes that the run has not: restore it")
    judged = slice(len(labels) - checked)  # clean samples that were trained on come last
    labels = labels[judged]
    margins = record.epochs_of("margin")[:epochs, judged]
    _check_margins(margins, run)
    rivals = record.epochs_of(RIVAL)[:epochs, judged] if RIVAL in record.fields else None
    found = evidence.from_epochs(margins, rivals, labels, weights_of(margins), len(names))
    if rivals is None:
        train = _there(sets).train.take(np.arange(len(labels)))
        found = _with_rivals(found, run, train, labels, device)
    if calibrate and checked and not unseen:
        warn_of_no_unseen(run)
    return judge(
        found,
        ids=record.ids[judged],
        given=labels,
        class_names=names,
        family=families_of(run, labels),
        clean=_clean(run, sets, device) if calibrate and unseen else None,
    )


def unjudged(run: RunFolder) -> int:
    """How many samples the run has held out to test on, whose labels nobody has checked."""
    with run.understood() as config:
        return int(config.get("unjudged", 0))  # of older runs it is not known


def note_of_unjudged(run: RunFolder) -> str | None:
    """That an audit says nothing of the samples which the run has held out to test on; None where there are none."""
    count = unjudged(run)
    if not count:
        return None
    return (
        f"{count:,} more samples were held out as the run's test set and are not judged: to have all of them judged, "
        "train with --test none, or give another test set with --test FILE."
    )


def read_sets(run: RunFolder) -> Sets:
    """The sets of a run, read once more.

    Raises:
        RunFolderError: they have changed since the run began.
    """
    with run.understood() as config:
        settings, recipe = Settings.from_json(config["settings"]), Recipe(**config["recipe"])
        uses_clean = int(config["samples"]["clean"]) > 0
    sets = prepare(settings, heldout=recipe.heldout)
    if not uses_clean:
        sets = sets.not_learned_from()
    check_unchanged(run, sets)
    return sets


def check_unchanged(run: RunFolder, sets: Sets) -> None:
    """Refuse sets that are not those which the run was trained on."""
    with run.understood() as config:
        fingerprint = config["fingerprint"]
    if sets.fingerprint() != fingerprint:
        raise RunFolderError(
            f"the data of {run.path} has changed since the run began: put it back as it was, or train once more"
        )


def paths_of(run: RunFolder, ids: NDArray[np.str_]) -> list[str] | None:
    """Files of a run's samples, where they are images in a folder and named by their files; None otherwise."""
    with run.understood() as config:
        kind, root = str(config["kind"]), Path(str(config["settings"]["data"]))
    if kind != "image" or not root.is_dir() or not (root / str(ids[0])).is_file():
        return None
    return [str(root / name) for name in ids.tolist()]


def judged_clean(sets: Sets, classifiers: Sequence[Trained]) -> Clean | None:
    """What classifiers say of samples whose labels are right, one after the other; None without such samples.

    The loss may have been learned on them, but no classifier was trained on one.
    """
    said = [(log_probabilities(each.predict(one.inputs)), one.labels) for each in classifiers for one in sets.unseen]
    if not said:
        return None
    return np.concatenate([logits for logits, _ in said]), np.concatenate([y for _, y in said]).astype(np.int64)


def warn_of_no_unseen(run: RunFolder) -> None:
    """Say that there is nothing to calibrate with."""
    warnings.warn(
        f"probabilities are not calibrated: {run.path} was trained on all of its clean samples; keep some apart with "
        "narl train --train-on-clean --heldout 0.25",
        NarlWarning,
        stacklevel=3,
    )


def log_probabilities(probabilities: NDArray[np.float32]) -> Numbers:
    """Logits that give these probabilities; what has been rounded to 0 becomes the smallest number."""
    logits: Numbers = np.log(probabilities.astype(np.float64).clip(min=np.finfo(np.float32).tiny))
    return logits


def _epochs(run: RunFolder, record: SampleRecord) -> int:
    """How many are recorded."""
    found = min(len(run.metrics()), record.written)
    if not found:
        raise RunFolderError(f"the run in {run.path} has no epoch yet: train on with narl train --resume {run.path}")
    return found


def _check_margins(margins: NDArray[np.floating], run: RunFolder) -> None:
    seen = np.zeros(margins.shape[1], dtype=np.bool_)
    for epoch in margins:
        seen |= ~np.isnan(epoch)
        if seen.all():
            return
    raise RunFolderError(
        f"the run in {run.path} has no margins of {int((~seen).sum()):,} samples: its method must report margins, and "
        "every sample must have had its turn; give a run of another one, or a longer one, or one with less of what is "
        "drawn more often than that (--clean-share, --option believed)"
    )


def _there(sets: Sets | None) -> Sets:
    assert sets is not None
    return sets


def _labels_of(record: SampleRecord, train: Samples, run: RunFolder) -> Classes:
    if not np.array_equal(train.ids, record.ids):
        raise RunFolderError(f"the record of {run.path} is of other samples than its data: restore the data")
    return train.labels.astype(np.int64)


def _with_rivals(
    found: evidence.Evidence, run: RunFolder, train: Samples, labels: Classes, device: str
) -> evidence.Evidence:
    """The same, with rivals by the trained classifier."""
    predicted = log_probabilities(Trained(run.path, device).predict(train.inputs))
    last = evidence.from_logits(predicted, labels)
    return evidence.Evidence(found.support, last.rival, last.share, found.margin)


def _clean(run: RunFolder, sets: Sets | None, device: str) -> Clean | None:
    try:
        return judged_clean(read_sets(run) if sets is None else sets, [Trained(run.path, device)])
    except NarlError as error:
        warnings.warn(f"probabilities are not calibrated: {error}", NarlWarning, stacklevel=3)
        return None


def families_of(run: RunFolder, labels: Classes) -> Classes | None:
    """Task families of the labels, ``(N,)``; None where the method has no adjuster."""
    with run.understood() as config:
        counts = [int(count) for count in config["class_counts"]]
        method, options = str(config["recipe"]["method"]), dict(config["settings"]["options"])
        kind, steps = str(config["kind"]), int(config["steps_per_epoch"]) * int(config["recipe"]["epochs"])
    kept = kept_adjusters(run.path) if method.startswith("T-") else ()
    if not kept and not method.startswith("A-"):
        return None
    if kept:
        of_class = meant_for(load_adjusters(kept), kind, steps)[0].refit(counts).of_class
    else:
        of_class = Families.from_counts(counts, int(options.get("families", 3))).of_class
    return np.asarray(of_class.numpy()[labels], dtype=np.int64)
