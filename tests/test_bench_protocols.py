"""What the paper's tables train, and tables of one's own: every mistake in one is told in a line."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from command_line import done, refused
from narl import models
from narl.bench import own_table, protocols
from narl.bench.asked import asked_of
from narl.bench.cells import Task
from narl.bench.own_papers import hyperparameters
from narl.bench.protocol import Schedule, from_json, to_json
from narl.errors import ConfigError, OptionError, UnknownNameError
from narl.train import methods

# The paper's protocols

CIFARS = ("CIFAR-10", "CIFAR-100")
ROWS = ["CE", "Forward", "MW-Net", "GCE", "SL", "PolySoft", "JS", "A-GCE", "A-SL", "A-PolySoft", "A-JS"]


def test_the_protocols_are_the_papers() -> None:
    rates = {"symmetric": (0.0, 0.2, 0.4, 0.6), "asymmetric": (0.2, 0.4)}
    table1, table2 = protocols.get("table1"), protocols.get("table2")
    assert set(table1.tasks) == {Task(d, n, rate) for d in CIFARS for n in rates for rate in rates[n]}
    assert set(table2.tasks) == {Task(d, "instance", rate) for d in CIFARS for rate in (0.2, 0.3, 0.4, 0.5)}
    assert list(table1.methods) == list(table2.methods) == list(protocols.get("cifar10n").methods) == ROWS
    assert (table1.model, table2.model, protocols.get("cifar10n").model) == ("resnet32", "resnet34", "resnet32")
    assert asdict(table1.schedule("paper", "CIFAR-10")) == {"epochs": 120, "milestones": (80, 100)}
    assert asdict(table1.schedule("paper", "CIFAR-100")) == {"epochs": 150, "milestones": (80, 120)}
    assert {table2.schedule("paper", dataset).milestones for dataset in CIFARS} == {(40, 80)}
    assert asdict(table1.schedule("short", "CIFAR-100")) == {"epochs": 60, "milestones": (40, 50)}
    for name in ("table1", "table2", "table5", "cifar10n", "figure5", "figure6"):
        assert protocols.get(name).clean == 1000
        assert protocols.get(name).training == {
            **{"batch_size": 100, "clean_batch_size": 100, "optimizer": "sgd", "learning_rate": 0.1},
            **{"momentum": 0.9, "weight_decay": 0.0005, "schedule": "step", "augment": "crop+flip"},
        }
    assert [str(task) for task in protocols.get("cifar10n").tasks] == [
        *("CIFAR-10N aggregate", "CIFAR-10N random1", "CIFAR-10N worst")
    ]
    assert protocols.get("figure5").tasks == (Task("CIFAR-10", "asymmetric", 0.6),)
    assert protocols.get("table5").methods[-4:] == ("T-GCE", "T-SL", "T-PolySoft", "T-JS")
    assert protocols.get("table6").clean == 0


def test_systems_are_trained_as_they_were_published() -> None:
    systems, table3 = protocols.get("systems"), protocols.get("table3")
    assert systems.training == table3.training
    assert (systems.model, table3.model, systems.clean, table3.clean) == (
        "preact_resnet18",
        "preact_resnet18",
        1000,
        1000,
    )
    assert asdict(systems.schedule("paper", "CIFAR-10N")) == {"epochs": 300, "milestones": ()}
    symmetric, asymmetric = partial(Task, "CIFAR-10", "symmetric"), partial(Task, "CIFAR-10", "asymmetric")
    hundred = partial(Task, "CIFAR-100", "symmetric")
    told: list[tuple[str, Task, dict[str, object]]] = [
        ("Co-teaching", symmetric(0.5), {"forget": 0.5}),
        ("Co-teaching", asymmetric(0.4), {"forget": 0.16}),
        ("Co-teaching", Task("CIFAR-10N", "worst"), {"forget": 0.4}),
        ("DivideMix", symmetric(0.2), {"unlabelled": 0.0}),
        ("DivideMix", symmetric(0.8), {"unlabelled": 25.0}),
        ("DivideMix", symmetric(0.9), {"unlabelled": 50.0, "threshold": 0.6, "remembered": 5}),
        ("DivideMix", asymmetric(0.4), {"penalty": True, "unlabelled": 0.0}),
        ("DivideMix", Task("CIFAR-10N", "worst"), {"unlabelled": 25.0}),
        ("ELR+", asymmetric(0.4), {"strength": 1.0, "decay": 0.9}),
        ("ELR+", symmetric(0.8), {}),
        ("A-SL+", symmetric(0.8), {}),
        ("DivideMix", hundred(0.2), {"unlabelled": 25.0, "warmup": 30}),
        ("DivideMix", hundred(0.8), {"unlabelled": 150.0, "warmup": 30}),
        ("ELR", hundred(0.8), {"strength": 7.0, "decay": 0.9}),
        ("ELR+", hundred(0.8), {"strength": 7.0, "decay": 0.9, "rampup": 0.41, "average_ramp": 0.41}),
        ("SL", hundred(0.4), {"gamma1": 6.0, "gamma2": 0.1}),
    ]
    for method, task, options in told:
        assert hyperparameters(method, task, 300) == options
        assert set(options) <= set(methods.get(method).options)
    assert hyperparameters("DivideMix", hundred(0.2), 60)["warmup"] == 20, "a third is the most"


def test_a_table_may_give_every_method_its_own_length() -> None:
    table = replace(protocols.get("systems"), lengths={"DivideMix": 25})
    assert table.schedule("short", "CIFAR-10", "DivideMix") == Schedule(25, ())
    assert table.schedule("short", "CIFAR-10", "CE") == Schedule(60, ())
    cells = {cell.method: cell for cell in table.cells(tasks=["worst"], methods=["CE", "DivideMix"])}
    asked = {method: asked_of(cell, table) for method, cell in cells.items()}
    assert (asked["CE"]["epochs"], asked["DivideMix"]["epochs"]) == (60, 25)


@pytest.mark.parametrize("name", sorted(protocols.PROTOCOLS))
def test_what_a_protocol_names_exists(name: str) -> None:
    table = protocols.get(name)
    assert table.model in models.names() or table.model == "timm:inception_resnet_v2"
    assert set(table.methods) <= set(methods.names())
    for task in table.tasks:
        for schedule in table.schedule_names:
            length = table.schedule(schedule, task.dataset)
            assert list(length.milestones) == sorted(set(length.milestones))
            assert all(0 < milestone < length.epochs for milestone in length.milestones)
    assert from_json(json.loads(json.dumps(to_json(table)))) == table


def test_some_of_the_cells() -> None:
    table = protocols.get("table1")
    cells = table.cells(seeds=range(2), tasks=["cifar-10/symmetric-0.4", "ASYMMETRIC"], methods=["gce", "a-gce"])
    assert len(cells) == 2 * (1 + 4) * 2
    assert [cell.seed for cell in cells] == [0] * 10 + [1] * 10
    assert [cell.method for cell in cells[:2]] == ["GCE", "A-GCE"]
    assert len(table.cells(tasks=["CIFAR-100"])) == 6 * 11
    assert {cell.method for cell in table.cells(tune=True) if cell.tune} == {"GCE", "SL", "PolySoft", "JS"}
    for wrong, words in (
        ({"schedule": "long"}, "table1 has no schedule 'long': known: paper, short"),
        ({"methods": ["GEC"]}, "no method is called 'GEC' here: did you mean 'GCE'?"),
        ({"tasks": ["cifar-10/pair"]}, "table1 has no task 'cifar-10/pair': it has cifar-10/symmetric-0,"),
    ):
        with pytest.raises((UnknownNameError, OptionError)) as caught:
            table.cells(**wrong)
        assert words in str(caught.value)


# Tables of one's own

OWN: dict[str, Any] = {
    "tasks": [{"dataset": "my rings", "noise": "symmetric", "rate": 0.4}, {"dataset": "my rings", "noise": "real"}],
    "methods": ["ce", "A-gce"],
    "model": "tabular",
    "epochs": 30,
    "milestones": [10, 20],
    "clean": 100,
    "training": {"learning_rate": 0.05},
}


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "rings.json"
    path.write_text(json.dumps(OWN))
    table = own_table.read(path)
    assert (table.name, table.title, table.methods, table.clean) == ("rings", "rings", ("CE", "A-GCE"), 100)
    assert table.tasks == (Task("my rings", "symmetric", 0.4), Task("my rings", "real"))
    assert table.schedule("rings", "my rings") == Schedule(30, (10, 20))
    assert table.training == {"learning_rate": 0.05, "schedule": "step"}, "milestones are of that schedule"
    assert len(table.cells(tasks=["My Rings"])) == 4
    assert from_json(json.loads(json.dumps(to_json(table)))) == table


def test_methods_that_a_module_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module lies in the folder that narl is called in."""
    lines = ["from dataclasses import replace", "from narl.train import methods"]
    lines += ["methods.register(replace(methods.get('GCE'), name='GCE-mine'))"]
    (tmp_path / "rows_of_mine.py").write_text("\n".join(lines))
    (tmp_path / "rings.json").write_text(json.dumps({**OWN, "methods": ["gce-mine"], "modules": ["rows_of_mine"]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        read_table = own_table.read(tmp_path / "rings.json")
        assert (read_table.methods, read_table.modules) == (("GCE-mine",), ("rows_of_mine",))
        answer = done("bench", "run", tmp_path / "rings.json", "--data", "rings.csv", "--dry-run")
        assert "my rings symmetric 0.4, GCE-mine, seed 0" in answer.out
    finally:
        methods.unregister("GCE-mine")
        sys.modules.pop("rows_of_mine", None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tasks": ...}, "the table has no 'tasks'"),
        ({"methods": ...}, "the table has no 'methods'"),
        ({"model": ...}, "the table has no 'model'"),
        ({"epochs": ...}, "the table has no 'epochs'"),
        ({"epoch": 3}, "the table has a 'epoch', which means nothing there: did you mean 'epochs'?"),
        ({"lengths": {}}, "the table has a 'lengths', which means nothing there"),
        ({"tasks": []}, "tasks = [] is no list with something in it"),
        ({"tasks": "letters"}, "tasks = 'letters' is no list"),
        ({"tasks": ["letters"]}, "a task is 'letters', not names with values"),
        ({"tasks": OWN["tasks"][:1] * 2}, "the task my rings symmetric 0.4 is there twice"),
        ({"tasks": [{"noise": "real"}]}, "a task has no 'dataset'"),
        ({"tasks": [{"dataset": "", "noise": "real"}]}, "dataset = '' is no name"),
        ({"tasks": [{"dataset": "a", "noise": "real", "rat": 1}]}, "a task has a 'rat'"),
        ({"tasks": [{"dataset": "a", "noise": "real", "rate": 0.1}]}, "leave out their rate"),
        ({"tasks": [{"dataset": "a", "noise": "symetric", "rate": 0.1}]}, "did you mean 'symmetric'?"),
        ({"tasks": [{"dataset": "a", "noise": "symmetric", "rate": "0.4"}]}, "rate = '0.4': give a number from 0"),
        ({"tasks": [{"dataset": "a", "noise": "symmetric", "rate": 40}]}, "rate = 40: give a number from 0"),
        ({"tasks": [{"dataset": "a", "noise": "symmetric", "rate": True}]}, "rate = True: give a number"),
        ({"tasks": [{"dataset": "a", "noise": "symmetric"}]}, "rate = None: give a number from 0"),
        ({"methods": "CE"}, "methods = 'CE' is no list"),
        ({"methods": ["GEC"]}, "no method is called 'GEC': did you mean 'GCE'?"),
        ({"methods": [3]}, "3 is no method's name"),
        ({"methods": ["CE", "ce"]}, "the method CE is there twice"),
        ({"methods": ["A-GCE"], "clean": 0}, "A-GCE learns from clean samples"),
        ({"clean": "100"}, "clean = '100' is no number of samples"),
        ({"clean": -1}, "clean = -1 is no number of samples"),
        ({"model": 3}, "model = 3 is no name"),
        ({"epochs": "30"}, "epochs = '30' is no whole number"),
        ({"epochs": 0, "milestones": []}, "--epochs = 0 makes no sense"),
        ({"milestones": 10}, "milestones = 10 is no list"),
        ({"milestones": ["10"]}, "milestones = ('10',) makes no sense"),
        ({"milestones": [20, 10]}, "milestones = (20, 10) makes no sense"),
        ({"milestones": [10, 30]}, "the learning rate cannot fall after epoch 30 of 30"),
        ({"training": [1]}, "training is [1], not names with values"),
        ({"training": {"learning_rat": 1}}, "did you mean 'learning_rate'?"),
        ({"training": {"model": "mlp"}}, "training has a 'model', which means nothing there"),
        ({"training": {"learning_rate": "fast"}}, "--learning-rate = 'fast' makes no sense"),
        ({"modules": "re"}, "modules = 're' is no list"),
        ({"modules": ["no_such_module"]}, "the module 'no_such_module' cannot be imported"),
        ({"name": 3}, "name = 3 is no name"),
        ({"name": "Table1"}, "name = 'Table1' is taken by the paper's tables"),
        ({"name": "short"}, "name = 'short' is taken"),
    ],
    ids=str,
)
def test_each_mistake_in_it_is_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "rings.json"
    path.write_text(json.dumps({name: value for name, value in {**OWN, **change}.items() if value is not ...}))
    with pytest.raises(ConfigError) as caught:
        own_table.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not a table to train: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", " is not a table to train: the table is [], not names with values"),
        ("{", " is not a table to train: it is no JSON"),
        (json.dumps({**OWN, "epochs": None}), " is not a table to train: epochs = None is no whole number"),
        (None, " cannot be read: No such file"),
    ],
)
def test_the_command_says_it_too(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "rings.json"
    if content is not None:
        path.write_text(content)
    for command in (("run", path, "--data", "nowhere.csv", "--dry-run"), ("show", path)):
        line = refused("bench", *command)
        assert f"{path}{words}" in line
