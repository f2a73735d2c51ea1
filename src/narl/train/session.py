"""Starting a run in a new folder, and going on with one that was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from narl.adjuster import Adjuster
from narl.bilevel import Processes
from narl.errors import NarlError, OptionError, RunFolderError
from narl.train import checkpoint, methods, tuning
from narl.train.adjusters import keep_adjusters, kept_adjusters, load_adjusters, save_adjusters
from narl.train.assembly import assemble
from narl.train.courses import Course, driven
from narl.train.defaults import Recipe
from narl.train.distributed import check_same, tree_of_first
from narl.train.engine.stack import Stack
from narl.train.environment import environment, threads
from narl.train.following import Together
from narl.train.keeper import Keeper, Observer, Unobserved
from narl.train.loop import Loop
from narl.train.planning import Plan, plan
from narl.train.record import MOST_CLASSES, RIVAL, SampleRecord
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
    processes: Processes | None = None,
) -> Outcome:
    """Begin a run in a new folder and train to the end, or until the observer wants to stop.

    Args:
        plan: what to do.
        out: the run's folder; must not exist.
        overwrite: replace a run that is there.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.
        processes: who trains together, all of them called alike; the first one writes the folder. None: this one.

    Returns:
        How it ended; the first process knows the summary.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/table.npz", x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 2)
        ...     made = plan(Settings(data=f"{folder}/table.npz", test="0.25", epochs=2, device="cpu"))
        ...     outcome = start(made, Path(folder, "run"), tensorboard=False)
        ...     again = resume(Path(folder, "run"))
        >>> outcome.finished, outcome.summary["method"], outcome.summary["epochs"]
        (True, 'T-SL', 2)
        >>> again.remarks
        ('the run was finished already',)
    """
    return driven(
        starting(plan, out, overwrite=overwrite, observer=observer, tensorboard=tensorboard, processes=processes)
    )


def starting(
    plan: Plan,
    out: Path,
    *,
    overwrite: bool = False,
    observer: Observer | None = None,
    tensorboard: bool = True,
    processes: Processes | None = None,
    stack: Stack | None = None,
) -> Course[Outcome]:
    """What :func:`start` does, step by step as somebody drives it.

    Args:
        plan: what to do.
        out: the run's folder.
        overwrite: replace a run that is there.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.
        processes: who trains together.
        stack: where the steps of several trainings become one; None: the steps are the run's own.
    """
    # First: samples that cannot be read leave no folder behind, and replace no run that is there.
    processes, observer = processes or Processes.alone(), observer or Unobserved()
    _check_together(plan, processes)
    with threads(plan.recipe.threads):
        loop: Loop | None = assemble(plan, observer.decoded, processes, stack)
    if plan.settings.tune:
        loop = None  # made once more, with what is chosen
    folder = processes.first(lambda: _new_folder(plan, out, overwrite=overwrite, processes=processes.count))
    try:
        return (yield from _train(plan, out, folder, observer, tensorboard, processes, loop, stack))
    except RunFolderError:
        raise  # a full disk: the run goes on when there is room
    except NarlError:
        if folder is not None and not any(folder.path.rglob("checkpoints/*")):
            folder.discard()  # nothing to go on from: the way is free for a second try
        raise


def resume(
    run: Path, *, observer: Observer | None = None, tensorboard: bool = True, processes: Processes | None = None
) -> Outcome:
    """Go on with a run that was stopped, from its last checkpoint.

    Args:
        run: its folder.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.
        processes: who goes on together; any number, whatever number began.

    Returns:
        How it ended; at once if it was finished.
    """
    return driven(resuming(run, observer=observer, tensorboard=tensorboard, processes=processes))


def resuming(
    run: Path,
    *,
    observer: Observer | None = None,
    tensorboard: bool = True,
    processes: Processes | None = None,
    stack: Stack | None = None,
    until: tuple[int, int] | None = None,
    part: Callable[[Plan], Plan] | None = None,
) -> Course[Outcome]:
    """What :func:`resume` does, step by step as somebody drives it.

    Args:
        run: its folder.
        observer: who wants to see it go on.
        tensorboard: also write what TensorBoard shows, where it is installed.
        processes: who goes on together.
        stack: where the steps of several trainings become one; None: the steps are the run's own.
        until: epoch and step of the newest checkpoint that may be gone on from; None: any.
        part: what was made of the plan before the run began, where it is not trained as its settings say.
    """
    processes = processes or Processes.alone()
    folder = processes.first(lambda: RunFolder.open(run))
    stored = processes.first(lambda: _stored(_there(folder)))
    if processes.count > 1:
        stored = json.loads(processes.told(json.dumps(stored)))
    assert stored is not None
    if stored["summary"] is not None:
        return Outcome(run, True, stored["summary"], ("the run was finished already",))

    def planned() -> Plan:
        made = plan(Settings.from_json(stored["settings"]), Recipe(**stored["recipe"]))
        made = made if part is None else part(made)
        state = stored["encoder"]
        if made.sets.fingerprint() != stored["fingerprint"] or (state is not None and state != _state(made)):
            raise RunFolderError(
                f"the data of {run} has changed since the run began, so it cannot go on as it was: put the data back "
                "as it was, or start a new run with --out"
            )
        return made

    made = processes.together(planned)
    _check_together(made, processes)
    if stored["encoder"] is None:
        processes.first(lambda: _complete(_there(folder), made, load_adjusters(made.settings.adjusters)))
    return (
        yield from _train(made, run, folder, observer or Unobserved(), tensorboard, processes, stack=stack, until=until)
    )


def _stored(folder: RunFolder) -> dict[str, Any]:
    """What a run's folder says of it, as plain values."""
    if (folder.path / "summary.json").exists():
        return {"summary": folder.read_json("summary.json")}
    with folder.understood() as config:
        settings, recipe = Settings.from_json(config["settings"]), Recipe(**config["recipe"])
        fingerprint: str = config["fingerprint"]
    began = (folder.path / "encoder.json").exists()
    if began:
        settings = replace(settings, adjusters=kept_adjusters(folder.path) or settings.adjusters)
    return {
        "summary": None,
        "settings": settings.to_json(),
        "recipe": asdict(recipe),
        "fingerprint": fingerprint,
        "encoder": folder.read_json("encoder.json") if began else None,
    }


def _there(folder: RunFolder | None) -> RunFolder:
    """The folder, in the process that has it."""
    assert folder is not None
    return folder


def _check_together(plan: Plan, processes: Processes) -> None:
    """Refuse what several processes cannot do."""
    if processes.count == 1:
        return
    if plan.settings.tune:
        raise OptionError(
            "--tune trains one candidate after the other, each with one process: tune without torchrun, and give what "
            "was chosen with --option"
        )
    recipe = {name: value for name, value in asdict(plan.recipe).items() if name != "threads"}
    check_same(processes, {"data": plan.sets.fingerprint(), "recipe": recipe, "number of parameters": plan.parameters})


def _state(plan: Plan) -> Any:
    """The encoder's state as a file would give it back."""
    return json.loads(json.dumps(plan.encoder.state()))


def _new_folder(plan: Plan, out: Path, *, overwrite: bool = False, processes: int = 1) -> RunFolder:
    with threads(plan.recipe.threads):
        where = environment("cpu" if plan.recipe.device == "cpu" else "cuda")
    if processes > 1:
        where["processes"] = processes
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
    path: Path,
    folder: RunFolder | None,
    observer: Observer,
    tensorboard: bool,
    processes: Processes,
    loop: Loop | None = None,
    stack: Stack | None = None,
    until: tuple[int, int] | None = None,
) -> Course[Outcome]:
    """Train on; only the first process has the folder."""
    with ExitStack() as held:
        processes.first(lambda: held.enter_context(_there(folder).lock()))
        if stack is None:
            held.enter_context(threads(plan.recipe.threads))
        else:
            torch.set_num_threads(plan.recipe.threads)  # until all of them have ended
        if plan.settings.tune:
            chosen = _tune(plan, _there(folder), observer)
            if chosen is None:
                return Outcome(path, False, {})
            plan = replace(plan, settings=replace(plan.settings, options={**plan.settings.options, **chosen}))
        trained = assemble(plan, observer.decoded, processes, stack) if loop is None else loop
        found = processes.first(lambda: _there(folder).checkpoints.latest(until))
        tree = tree_of_first(processes, found.tree if found else None)
        if tree is not None:
            processes.together(lambda: trained.restore(tree))
        remarks = list(found.remarks if found else ())
        if folder is not None and tree is None and folder.metrics() and not remarks:
            remarks.append("no checkpoint is left, so the run begins anew")
        keeper = processes.first(lambda: _keeper(plan, _there(folder), trained, observer, tensorboard, stack))
        try:
            together = Together(processes, keeper, observer)
            finished = yield from trained.course(together if keeper is None or processes.count > 1 else keeper)
            summary = processes.first(lambda: _conclude(plan, _there(folder), trained)) if finished else None
        finally:
            if keeper is not None:
                keeper.close()
    return Outcome(path, finished, summary or {}, tuple(remarks))


def _keeper(
    plan: Plan, folder: RunFolder, loop: Loop, observer: Observer, tensorboard: bool, stack: Stack | None
) -> Keeper:
    """Who writes the run, from where the loop is; the runs of a stack all at the same steps."""
    together: dict[str, Any] = {} if stack is None else {"every": None, "stacked": lambda: stack.count}
    folder.rewrite_metrics(loop.history)
    folder.rewrite_times(loop.epoch)
    train = plan.sets.train
    fields = ("margin", *loop.method.fields, *((RIVAL,) if len(train.classes) <= MOST_CLASSES else ()))
    record = SampleRecord.create(folder.path, fields, train.ids, plan.recipe.epochs, train.labels)
    observer.begin(_title(plan), plan.recipe.epochs, plan.steps, loop.position)
    return Keeper(
        folder,
        loop,
        folder.checkpoints,
        record,
        lambda epoch: _save_model(folder, loop, epoch),
        observer,
        **together,
        tensorboard=tensorboard,
    )


def _save_model(folder: RunFolder, loop: Loop, epoch: int) -> None:
    checkpoint.save(folder.path / "model.safetensors", {"epoch": epoch, "model": dict(loop.model.state_dict())})


def _conclude(plan: Plan, folder: RunFolder, loop: Loop) -> dict[str, Any]:
    """Write the results of a run that is finished."""
    if loop.selected is None:
        _save_model(folder, loop, loop.epoch)
    save_adjusters(loop.method.kept, folder.path)
    summary = summarise(loop, plan)
    folder.write_json("summary.json", summary)
    return summary


def _tune(plan: Plan, folder: RunFolder, observer: Observer) -> dict[str, float] | None:
    """The fixed loss's hyperparameters, by validation on the clean samples; the test set stays out of it."""

    def train(candidate: tuning.Candidate, path: Path) -> bool:
        settings = replace(plan.settings, tune=False, options={**plan.settings.options, **candidate})
        part = replace(plan, settings=settings, sets=replace(plan.sets, test=None, also={}))
        child = RunFolder.open(path) if (path / "config.json").exists() else _new_folder(part, path)
        if (child.path / "summary.json").exists():
            return True
        return driven(_train(part, path, child, observer, False, Processes.alone())).finished

    return tuning.choose(folder, methods.get(str(plan.recipe.method)).grid(), train)


def _title(plan: Plan) -> str:
    options = {n: v for n, v in plan.settings.options.items() if isinstance(v, float | int | str)}
    return f"{plan.recipe.method} {tuning.title(options)}".strip()
