"""Cells, trained or gone on with, and written down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from narl.bench import audits, crossed, reviewing, runs, tuning
from narl.bench.account import account
from narl.bench.asked import asked_of, asks_file, steps_of, training_of
from narl.bench.cells import Cell, Task
from narl.bench.noise_labels import labels_of
from narl.bench.protocol import BY_KIND, Protocol, import_modules
from narl.bench.runs import Run
from narl.bench.stopping import Asked, Latch, Located
from narl.errors import OptionError, RunFolderError, UnknownNameError
from narl.train import architectures, methods, session
from narl.train.adjusters import digest_of, load_adjusters, without_clean
from narl.train.courses import Course, driven, driven_as_one
from narl.train.engine.stack import Stack
from narl.train.external_models import missing_package
from narl.train.keeper import Observer
from narl.train.planning import Plan, plan
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings
from narl.train.tuning import best


@final
@dataclass(frozen=True)
class Place:
    """Where cells find their data and leave what they made: all that a worker on another machine needs.

    Args:
        sources: data set and where it is, as ``narl train`` takes it.
        work: folder of the runs: checkpoints, models, records.
        results: folder of the results.
        human: file with people's labels.
        adjusters: learned adjusters, a run or file each, for T-* methods; the shipped ones for losses without.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
        discard: remove a run's folder once its result is written.
    """

    sources: tuple[tuple[str, str], ...]
    work: Path
    results: Path
    human: str | None = None
    adjusters: tuple[str, ...] = ()
    device: str = "auto"
    discard: bool = False

    def source(self, task: Task) -> str:
        """Where the samples of a task are."""
        known = {name.lower(): source for name, source in self.sources}
        found = known.get(task.images.lower(), known.get("") if len(known) == 1 else None)
        if found is None:
            raise OptionError(f"where is {task.images}? Say it with --data {task.images}=FOLDER")
        return found

    def further(self, protocol: Protocol) -> dict[str, str]:
        """Where the data sets are that a table tests on as well."""
        known = {name.lower(): source for name, source in self.sources}
        for name in protocol.also:
            if name.lower() not in known:
                raise OptionError(
                    f"{protocol.name} also tests on {name}, and where is it? Say it with --data {name}=FOLDER"
                )
        return {name: known[name.lower()] for name in protocol.also}

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "work": str(self.work), "results": str(self.results)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Place:
        """From what :meth:`to_json` gave."""
        sources = tuple((name, source) for name, source in values["sources"])
        folders = {name: Path(values[name]) for name in ("work", "results")}
        return cls(**{**values, **folders, "sources": sources, "adjusters": tuple(values["adjusters"])})


def reason_against(cell: Cell, protocol: Protocol, place: Place) -> str | None:
    """Why a cell cannot be trained, whatever the data; None: it can."""
    try:
        methods.get(cell.method)
    except UnknownNameError:
        return f"narl has no {cell.method}"
    if (missing := missing_package(cell.model)) is not None:
        return missing
    if cell.method.startswith("T-") and not _adjusters(cell, place):
        return f"no learned adjuster of {cell.method[2:]} was named (--adjuster), and narl ships none for such data"
    return None


def settings_of(cell: Cell, protocol: Protocol, place: Place, chosen: Mapping[str, Any] | None = None) -> Settings:
    """What ``narl train`` is asked to do for a cell.

    Args:
        cell: what to train.
        protocol: the table that it is of.
        place: where to.
        chosen: hyperparameters that were chosen by other cells; None: narl chooses where the cell is to be tuned.
    """
    schedule = protocol.schedule(cell.schedule, cell.task.dataset, cell.method)
    source = place.source(cell.task)
    labels = place.work / f"{cell.slug}-labels.txt"
    longer = reviewing.LONGER if reviewing.is_alone(cell) else 1
    training = training_of(cell, protocol)
    options = {**asked_of(cell, protocol)["options"], **(chosen or {})}
    uses_clean = methods.get(cell.method).learns_from_clean(options)
    if not uses_clean:
        training.pop("clean_batch_size", None)
    return Settings(
        data=source,
        labels=labels_of(cell.task, cell.seed, source, labels, place.human),
        clean=_clean(cell, protocol, place),
        also_test=place.further(protocol),
        heldout=cell.heldout if cell.heldout and uses_clean else None,
        overlap="drop",
        method=cell.method,
        options=options,
        adjusters=_adjusters(cell, place),
        tune=cell.tune and chosen is None,
        model=None if cell.model == BY_KIND else cell.model,
        epochs=schedule.epochs * longer,
        milestones=tuple(epoch * longer for epoch in schedule.milestones),
        seed=cell.seed,
        device=place.device,
        **training,
    )


def _clean(cell: Cell, protocol: Protocol, place: Place) -> str:
    if cell.review is not None:
        return str(reviewing.answered(cell, place.work))
    return str(protocol.clean) if protocol.clean else "none"


def other_adjusters(run: Run, place: Place) -> str | None:
    """Whether a transferred cell was trained with other adjusters than those that are named now; None: no."""
    found = _adjusters(run.cell, place)
    kind, before = run.settings.get("kind"), run.settings.get("adjusters")
    named = [digest_of(found, kind, steps_of(run), noise_rate=asks_file(run.cell))] if found else []
    return f"its adjusters were {before}, are {named} now" if named and before != named else None


def _adjusters(cell: Cell, place: Place) -> tuple[str, ...]:
    """The adjusters of the cell's loss, among those that were named; else the shipped one."""
    loss = methods.get(cell.method).loss
    if not cell.method.startswith("T-") or loss is None:
        return ()
    named = tuple(path for path in place.adjusters if load_adjusters([path])[0].robust_loss.name == loss)
    adjuster = without_clean(loss, architectures.kind_of(cell.model))[1]
    return named or (() if adjuster is None else (adjuster,))


def train(cell: Cell, protocol: Protocol, place: Place, observer: Observer | None = None) -> Run | None:
    """Train a cell to the end, from where an earlier try was stopped; a cell that has a result is not trained again.

    Args:
        cell: what to train.
        protocol: the table that it is of.
        place: where to.
        observer: who wants to see it go on.

    Returns:
        How it ended; None if the observer wanted to stop.
    """
    return driven(training(cell, protocol, place, observer))


def train_as_one(cells: Mapping[Cell, Protocol], place: Place, asked: Asked) -> list[Run | None]:
    """Train several cells side by side, each step of all of them as one; see :mod:`narl.train.engine.stack`.

    Args:
        cells: that go together: see :func:`narl.bench.stacks.stacked`; each with its table.
        place: where to.
        asked: who may want to stop.

    Returns:
        How each ended; None for all if they were stopped.
    """
    stack, latch = Stack(), Latch(asked)
    until = common_checkpoint([place.work / cell.slug for cell in cells if not cell.result(place.results).exists()])
    seen = [Located(cell.slug, latch) for cell in cells]
    courses = [training(*pair, place, one, stack, until) for pair, one in zip(cells.items(), seen, strict=True)]
    return driven_as_one(courses, stack, [one.at for one in seen], latch.look)


def common_checkpoint(folders: Sequence[Path]) -> tuple[int, int] | None:
    """Epoch and step of the newest whole checkpoint that all of these runs have: from there they go in step; or None.

    A kill may have come when some of them had saved and others not.
    """
    kept = [RunFolder.open(folder).checkpoints for folder in folders if (folder / "config.json").exists()]
    if len(kept) < len(folders) or not kept:
        return None
    common = set.intersection(*(set(checkpoints.positions()) for checkpoints in kept))
    whole = (position for position in sorted(common, reverse=True) if all(one.has(position) for one in kept))
    return next(whole, None)


def training(
    cell: Cell,
    protocol: Protocol,
    place: Place,
    observer: Observer | None = None,
    stack: Stack | None = None,
    until: tuple[int, int] | None = None,
) -> Course[Run | None]:
    """What :func:`train` does, step by step as somebody drives it.

    Args:
        cell: what to train.
        protocol: the table that it is of.
        place: where to.
        observer: who wants to see it go on.
        stack: where the steps of several cells become one; None: the steps are the cell's own.
        until: epoch and step of the newest checkpoint that may be gone on from; None: any.
    """
    written = cell.result(place.results)
    if written.exists():
        return runs.read_file(written)
    folder = place.work / cell.slug
    import_modules(protocol.modules)  # here: a job on a cluster begins with nothing imported, too
    scores = tuning.scores(cell, protocol, place.results)
    if scores and (run := tuning.trained_already(cell, protocol, place.results, scores)) is not None:
        run.write(place.results)
        return run
    settings = settings_of(cell, protocol, place, best(scores) if scores else None)
    part: Callable[[Plan], Plan]
    part = reviewing.answers_alone if reviewing.is_alone(cell) else partial(crossed.without, fold=cell.fold)
    whole = plan(settings)
    made = part(whole)
    how: dict[str, Any] = {"observer": observer, "tensorboard": False, "stack": stack}
    if (folder / "config.json").exists():
        _check_unchanged(folder, made)
        outcome = yield from session.resuming(folder, **how, until=until, part=part)
    else:
        outcome = yield from session.starting(made, folder, **how)
    if not outcome.finished:
        return None
    made = replace(made, settings=replace(settings, options=outcome.summary["options"]))
    run = account(cell, made, folder, asked_of(cell, protocol))
    run = tuning.with_scores(run, scores) if scores else run
    if cell.fold is not None:
        crossed.write_held(cell, whole, folder, place.results, place.device)
    elif protocol.audited:
        run = replace(run, audit=audits.found_in(folder, made, place.device))
    with RunFolder.open(folder).lock():  # another process may have found the run finished, too
        run.write(place.results)
    if place.discard:
        shutil.rmtree(folder)
        (place.work / f"{cell.slug}-labels.txt").unlink(missing_ok=True)  # else whoever audits the run needs them
    return run


def _check_unchanged(folder: Path, made: Plan) -> None:
    """Refuse to go on with a run that began as something else: its result would be called what it is not."""
    run = RunFolder.open(folder)
    with run.understood() as config:
        settings = Settings.from_json(config["settings"])  # what was not there then has its default
        before, now = (json.loads(json.dumps(one.to_json())) for one in (settings, made.settings))
        changed = [name for name in now if name != "device" and before[name] != now[name]]
    if changed:
        raise RunFolderError(
            f"{folder} was begun with {changed[0]} = {before.get(changed[0])!r}, now it is {now[changed[0]]!r}: remove "
            "that folder to begin anew, or change it back"
        )


def epochs_done(cell: Cell, place: Place) -> int:
    """How far a cell's training has come."""
    try:
        with (place.work / cell.slug / "metrics.jsonl").open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0
