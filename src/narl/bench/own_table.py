"""A table of one's own, from a JSON file: every mistake in it is found before anything is trained."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from narl.bench.cells import SCHEDULES, TUNING, Task
from narl.bench.noise_labels import HUMAN, MADE, WEAK
from narl.bench.protocol import Protocol, Schedule, import_modules
from narl.bench.protocols import BUNDLES, PROTOCOLS
from narl.errors import ConfigError, NarlError, nearest
from narl.train import methods
from narl.train.settings import Settings

_NEEDED = ("tasks", "methods", "model", "epochs")
_MORE = ("milestones", "clean", "training", "name", "title", "modules", "tuning")
# A cell decides these itself.
_ITS_DATA = ("data", "layout", "columns", "skip_unreadable", "labels", "clean", "heldout", "overlap", "also_test")
_ITS_TRAINING = ("method", "options", "adjusters", "tune", "model", "epochs", "milestones", "seed", "device")


def read(path: Path) -> Protocol:
    """A table of one's own.

    It has one schedule, and what it does not say is as narl chooses it. ``name``, ``title``, ``clean``, ``milestones``,
    ``training`` (settings of ``narl.train.Settings``), ``modules`` (to be imported first: they register losses or
    methods of one's own) and ``tuning`` (``{"epochs": …, "milestones": […]}``, how long candidates are trained for
    ``--tune``; as long as all others without it) may be left out.

    Args:
        path: of the file: ``{"tasks": [{"dataset", "noise", "rate"}, …], "methods": […], "model": …, "epochs": …}``.

    Raises:
        ConfigError: the file is not such a table.

    Example:
        >>> import json, tempfile
        >>> table = {"tasks": [{"dataset": "letters", "noise": "symmetric", "rate": 0.4}], "methods": ["ce", "GCE"]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "letters.json")
        ...     _ = path.write_text(json.dumps({**table, "model": "tabular", "epochs": 30}))
        ...     [cell.slug for cell in read(path).cells()]
        ['letters/symmetric-0.4/tabular-letters/ce-seed0', 'letters/symmetric-0.4/tabular-letters/gce-seed0']
    """
    try:
        return _protocol(_object(json.loads(path.read_bytes()), "the table", _NEEDED, _MORE), path.stem)
    except OSError as error:
        raise ConfigError(f"the table {path} cannot be read: {error.strerror or error}") from error
    except NarlError as error:
        raise ConfigError(f"{path} is not a table to train: {error}; see docs/bench.md") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a table to train: it is no JSON ({error}); see docs/bench.md") from error


def _protocol(given: Mapping[str, Any], name: str) -> Protocol:
    named = _list(given["modules"], "modules") if "modules" in given else []
    modules = tuple(_text(module, "a module") for module in named)
    import_modules(modules)  # they may bring methods
    tasks = tuple(_task(values) for values in _list(given["tasks"], "tasks"))
    clean, training = given.get("clean", 0), given.get("training", {})
    if type(clean) is not int or clean < 0:
        raise ConfigError(f"clean = {clean!r} is no number of samples: give a whole one, 0 for none")
    training = dict(_object(training, "training", (), _settings()))
    if training.get("test") == "none":
        raise ConfigError('training has "test": "none": without a test set there is no result')
    if given.get("milestones"):
        training.setdefault("schedule", "step")
    own = _schedule(given, training)
    tuning = None
    if "tuning" in given:
        short = _object(given["tuning"], "tuning", ("epochs",), ("milestones",))
        if short.get("milestones") and not own.milestones:
            raise ConfigError("tuning has milestones, and the table has none: give both some, or none")
        tuning = _schedule(short, training)
    return Protocol(
        name=_name(given.get("name", name)),
        title=_text(given.get("title", name), "title"),
        tasks=_once(tasks, "task"),
        methods=_once([_method(one, clean) for one in _list(given["methods"], "methods")], "method"),
        model=_text(given["model"], "model"),
        schedules={},
        own=own,
        clean=clean,
        training=training,
        modules=modules,
        tuning=tuning,
    )


def _schedule(given: Mapping[str, Any], training: Mapping[str, Any]) -> Schedule:
    epochs, falls = given["epochs"], given.get("milestones", [])
    if type(epochs) is not int:  # None would leave them to narl
        raise ConfigError(f"epochs = {epochs!r} is no whole number")
    if not isinstance(falls, list):
        raise ConfigError(f"milestones = {falls!r} is no list of epochs")
    Settings(data="", epochs=epochs, milestones=tuple(falls), **training)  # refuses what makes no sense
    if falls and falls[-1] >= epochs:
        raise ConfigError(f"the learning rate cannot fall after epoch {falls[-1]} of {epochs}")
    if training.get("warmup", 0) >= epochs:
        raise ConfigError(f"a warmup of {training['warmup']} epochs is no beginning of {epochs}: give fewer")
    return Schedule(epochs, tuple(falls))


def _name(given: Any) -> str:
    """Results are kept under the table's name: it must be no other table's."""
    name = _text(given, "name")
    if name.lower() in (*SCHEDULES, *PROTOCOLS, *BUNDLES):
        raise ConfigError(f"name = {name!r} is taken by the paper's tables: give another one")
    if name.lower().endswith(TUNING):
        raise ConfigError(f"name = {name!r} is what narl calls trainings that values are chosen by: give another one")
    return name


def _task(given: Any) -> Task:
    values = _object(given, "a task", ("dataset", "noise"), ("rate",))
    task = Task(_text(values["dataset"], "dataset"), _text(values["noise"], "noise"), values.get("rate"))
    if task.noise in MADE:
        rate: Any = task.rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ConfigError(f"{task.noise} noise with rate = {rate!r}: give a number from 0 to below 1")
    elif task.noise not in ("real", WEAK, *HUMAN):
        raise ConfigError(f"no noise is called {task.noise!r}: {nearest(task.noise, (*MADE, 'real', WEAK, *HUMAN))}")
    elif task.rate is not None:
        raise ConfigError(f"{task.noise} labels are as they are: leave out their rate")
    return task


def _method(given: Any, clean: int) -> str:
    spec = methods.get(given)
    if spec.needs_clean and not clean:
        raise ConfigError(f'{spec.name} learns from clean samples: say how many are taken out, such as "clean": 100')
    return spec.name


def _settings() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Settings) if field.name not in _ITS_DATA + _ITS_TRAINING)


def _object(given: Any, what: str, needed: Sequence[str], more: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{what} is {given!r}, not names with values")
    for name in needed:
        if name not in given:
            raise ConfigError(f"{what} has no {name!r}")
    for name in given:
        if name not in (*needed, *more):
            raise ConfigError(f"{what} has a {name!r}, which means nothing there: {nearest(name, (*needed, *more))}")
    return given


def _list(given: Any, what: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{what} = {given!r} is no list with something in it")
    return given


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"{what} = {given!r} is no name")
    return given


def _once(given: Sequence[Any], what: str) -> tuple[Any, ...]:
    for one in given:
        if given.count(one) > 1:
            raise ConfigError(f"the {what} {one} is there twice")
    return tuple(given)
