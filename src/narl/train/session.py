"""Starting a run in a new folder, and going on with one that was stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from narl.adjuster import Adjuster
from narl.errors import NarlError, RunFolderError
from narl.train import checkpoint, methods, tuning
from narl.train.adjusters import keep_adjusters, kept_adjusters, load_adjusters
from narl.train.assembly import assemble
from narl.train.defaults import Recipe
from narl.train.environment import environment, threads
from narl.train.keeper import Keeper, Observer, Unobserved
from narl.train.loop import Loop
from narl.train.planning import Plan, plan
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings
from narl.train.summary import summarise


@final
@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        folder: where it is.
        finished: False if it was stopped and can be resumed.
        summary: the results, see ``summary.json``; empty if it is not finished.
        remarks: what a person should know, such as a checkpoint that could not be used.
    """

    folder: Path
    finished: bool
    summary: dict[str, Any]
    remarks: tuple[str, ...] = ()


def start(
    plan: Plan,
    out: Path,
    *,
    overwrite: bool = False,
    observer: Observer | None = None,
    tensorboard: bool = True,
) -> Outcome:
    """Begin a run in a new folder and train to the end, or until the observer wants to stop.

    Args:
        plan: what to do.
        out: the run's folder; must not exist.
        overwrite: replace a run that is there.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.

    Returns:
        How it ended.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/table.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
        ...     made = plan(Settings(data=f"{folder}/table.npz", test="0.25", epochs=2, device="cpu"))
        ...     outcome = start(made, Path(folder, "run"), tensorboard=False)
        ...     again = resume(Path(folder, "run"))
        >>> outcome.finished, outcome.summary["method"], outcome.summary["epochs"]
        (True, 'GCE', 2)
        >>> again.remarks
        ('the run was finished already',)
    """
    # First: samples that cannot be read leave no folder behind, and replace no run that is there.
    with threads(plan.recipe.threads):
        loop: Loop | None = assemble(plan, (observer or Unobserved()).decoded)
    if plan.settings.tune:
        loop = None  # made once more, with what is chosen
    folder = _new_folder(plan, out, overwrite=overwrite)
    try:
        return _train(plan, folder, observer or Unobserved(), tensorboard, loop)
    except RunFolderError:
        raise  # a full disk: the run goes on when there is room
    except NarlError:
        if not any(folder.path.rglob("checkpoints/*")):
            folder.discard()  # nothing to go on from: the way is free for a second try
        raise


def resume(run: Path, *, observer: Observer | None = None, tensorboard: bool = True) -> Outcome:
    """Go on with a run that was stopped, from its last checkpoint.

    Args:
        run: its folder.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.

    Returns:
        How it ended; at once if it was finished.
    """
    folder = RunFolder.open(run)
    if (folder.path / "summary.json").exists():
        return Outcome(folder.path, True, folder.read_json("summary.json"), ("the run was finished already",))
    with folder.understood() as config:
        settings, recipe = Settings.from_json(config["settings"]), Recipe(**config["recipe"])
        fingerprint: str = config["fingerprint"]
    began = (folder.path / "encoder.json").exists()
    if began:
        settings = replace(settings, adjusters=kept_adjusters(folder.path) or settings.adjusters)
    made = plan(settings, recipe)
    if made.sets.fingerprint() != fingerprint or (began and folder.read_json("encoder.json") != _state(made)):
        raise RunFolderError(
            f"the data of {run} has changed since the run began, so it cannot go on as it was: put the data back as it "
            "was, or start a new run with --out"
        )
    if not began:
        _complete(folder, made, load_adjusters(settings.adjusters))
    return _train(made, folder, observer or Unobserved(), tensorboard)


def _state(plan: Plan) -> Any:
    """The encoder's state as a file would give it back."""
    return json.loads(json.dumps(plan.encoder.state()))


def _new_folder(plan: Plan, out: Path, *, overwrite: bool = False) -> RunFolder:
    with threads(plan.recipe.threads):
        where = environment("cpu" if plan.recipe.device == "cpu" else "cuda")
    learned = load_adjusters(plan.settings.adjusters)  # they may be the ones of the run that gives way
    folder = RunFolder.create(out, config=plan.describe(), environment=where, overwrite=overwrite)
    _complete(folder, plan, learned)
    return folder


def _complete(folder: RunFolder, plan: Plan, learned: list[Adjuster]) -> None:
    """Write what every sitting of a run needs; the encoder last, which says that all of it is there."""
    keep_adjusters(learned, folder.path)
    folder.write_json("encoder.json", plan.encoder.state())


def _train(
    plan: Plan,
    folder: RunFolder,
    observer: Observer,
    tensorboard: bool,
    loop: Loop | None = None,
) -> Outcome:
    with folder.lock(), threads(plan.recipe.threads):
        if plan.settings.tune:
            chosen = _tune(plan, folder, observer)
            if chosen is None:
                return Outcome(folder.path, False, {})
            plan = replace(plan, settings=replace(plan.settings, options={**plan.settings.options, **chosen}))
        loop = assemble(plan, observer.decoded) if loop is None else loop
        checkpoints = folder.checkpoints
        found = checkpoints.latest()
        remarks = list(found.remarks)
        if found.tree is not None:
            loop.restore(found.tree)
        elif folder.metrics() and not remarks:
            remarks.append("no checkpoint is left, so the run begins anew")
        folder.rewrite_metrics(loop.history)
        folder.rewrite_times(loop.epoch)
        record = SampleRecord.create(
            folder.path, ("margin", *loop.method.fields), plan.sets.train.ids, plan.recipe.epochs
        )
        observer.begin(_title(plan), plan.recipe.epochs, plan.steps, loop.epoch * plan.steps + loop.step_of_epoch)

        def save_model(epoch: int) -> None:
            checkpoint.save(folder.path / "model.safetensors", {"epoch": epoch, "model": dict(loop.model.state_dict())})

        keeper = Keeper(folder, loop, checkpoints, record, save_model, observer, tensorboard=tensorboard)
        try:
            finished = loop.run(keeper)
            if not finished:
                return Outcome(folder.path, False, {}, tuple(remarks))
            if loop.selected is None:
                save_model(loop.epoch)
            for number, adjuster in enumerate(_snapshots(loop), start=1):
                adjuster.save(folder.path / f"adjuster-{number}.safetensors")
            summary = summarise(loop, plan)
            folder.write_json("summary.json", summary)
        finally:
            keeper.close()
    return Outcome(folder.path, True, summary, tuple(remarks))


def _tune(plan: Plan, folder: RunFolder, observer: Observer) -> dict[str, float] | None:
    """The fixed loss's hyperparameters, by validation on the clean samples; the test set stays out of it."""

    def train(candidate: tuning.Candidate, path: Path) -> bool:
        settings = replace(plan.settings, tune=False, options={**plan.settings.options, **candidate})
        part = replace(plan, settings=settings, sets=replace(plan.sets, test=None))
        child = RunFolder.open(path) if (path / "config.json").exists() else _new_folder(part, path)
        return (child.path / "summary.json").exists() or _train(part, child, observer, False).finished

    return tuning.choose(folder, methods.get(str(plan.recipe.method)).grid(), train)


def _title(plan: Plan) -> str:
    options = {n: v for n, v in plan.settings.options.items() if isinstance(v, float)}
    return f"{plan.recipe.method} {tuning.title(options)}".strip()


def _snapshots(loop: Loop) -> tuple[Adjuster, ...]:
    return tuple(getattr(loop.method, "snapshots", ()))
