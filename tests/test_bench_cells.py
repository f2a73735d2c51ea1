"""Cells and the files of their results: no two share one, and what is written comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from narl.bench import protocols, runs
from narl.bench.cells import Cell, Task
from narl.bench.runs import Run
from narl.errors import ConfigError

SYMMETRIC = Task("CIFAR-10", "symmetric", 0.4)
CELL = Cell(SYMMETRIC, "resnet32", "short", "A-GCE", 1)
RUN = Run(
    CELL,
    0.8612,
    0.8701,
    {"test_accuracy": [0.5, 0.1 + 0.2, 1e-300], "meta_loss": [None, 0.25, None]},
    noise_rate=0.39996,
    auroc={"last": 0.99},
    samples={"q": {"edges": [0.0, 1.0], "right": [3], "wrong": [0], "right_mean": 0.1, "wrong_mean": None}},
    adjuster={"margins": [-1.0, 1.0], "centres": [4900.0], "curves": [{"q": [[0.2, 0.9]]}]},
    seconds=12.5,
    settings={"milestones": [40, 50], "options": {"margin": "latest"}},
    environment={"gpu": "none", "torch": "2"},
)

# Cells

_names = st.text(st.sampled_from("ab_AB .:/~é-0"), min_size=1, max_size=5)
_values = st.one_of(
    st.text(st.sampled_from('aA1 "-.='), max_size=4),
    st.sampled_from(["null", "true", "0.1", "1e-05", None, True, False, "NaN", "infinity"]),
    st.integers(-12, 12),
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 12), max_size=2).map(tuple),
)


def _changes(part: str, *names: str) -> list[dict[str, Any]]:
    return [{part: name} for name in names]


@given(_names, _names, _values, _values)
@example("a b", "ab", 1, 1)
@example("a", "a", "a b", "ab")
@example("a", "a", "1", 1)
@example("a", "a", -1, 1)
@example("a", "a", "-1", "1")
@example("a", "a", None, "null")
@example("a", "a", "X", "x")
@example("a", "a", (1, 2), 12)
@example("a", "a", 0.1, 0.1 + 1e-17)
@example("a", "a", 1e-7, 1.0000000001e-7)
def test_two_cells_never_share_a_file(first: str, second: str, one: Any, other: Any) -> None:
    """Upper and lower case of a name are one name; all else keeps cells apart."""
    for part in ("dataset", "noise"):
        pair = [replace(CELL, task=replace(SYMMETRIC, **change)) for change in _changes(part, first, second)]
        assert (pair[0].slug == pair[1].slug) == (first.lower() == second.lower())
    for part in ("model", "schedule", "method"):
        pair = [replace(CELL, **change) for change in _changes(part, first, second)]
        assert (pair[0].slug == pair[1].slug) == (first.lower() == second.lower())
    cells = [replace(CELL, options=(("margin", value),)) for value in (one, other)]
    assert (cells[0].slug.lower() == cells[1].slug.lower()) == (json.dumps(one) == json.dumps(other))


@given(st.floats(0, 1), st.floats(0, 1))
@example(0.1, 0.10000001)
@example(1 / 3, 0.333333)
def test_rates_and_shares_keep_cells_apart(one: float, other: float) -> None:
    slugs = [replace(CELL, task=replace(SYMMETRIC, rate=rate)).slug for rate in (one, other)]
    assert (slugs[0] == slugs[1]) == (one == other)
    slugs = [replace(CELL, heldout=share).slug for share in (one, other)]
    assert (slugs[0] == slugs[1]) == (one == other)


@given(st.text(max_size=300), st.text(max_size=300))
@example("..", "..")
@example("/etc", "/etc")
@example("письма", "手紙")
@example("", "")
def test_no_name_leads_out_of_the_folder(name: str, value: str) -> None:
    cell = Cell(Task(name, name, 0.4), name, name, name, 3, options=((name, value),), tune=True, heldout=0.5)
    slug = PurePosixPath(cell.slug)
    assert not slug.is_absolute()
    assert len(slug.parts) == 4
    assert all(part.isascii() and not part.startswith(".") and len(part) < 250 for part in slug.parts)
    assert not set(cell.slug) & set(" \\:*?\"'<>|$&;()\n\0")
    if name.isprintable():
        assert cell.result(Path("results")).is_relative_to("results/runs")


def test_cells_that_differ_in_one_thing_are_apart() -> None:
    others = [
        replace(CELL, task=replace(SYMMETRIC, rate=None)),
        replace(CELL, task=replace(SYMMETRIC, rate=0.0)),
        replace(CELL, seed=11),
        replace(CELL, tune=True),
        replace(CELL, heldout=0.5),
        replace(CELL, options=(("every", 1),)),
        replace(CELL, options=(("every", 11),)),
        replace(CELL, options=(("every", 1), ("hidden", 1))),
        replace(CELL, schedule="paper"),
        replace(CELL, model="resnet34"),
        replace(CELL, method="A-SL"),
    ]
    assert len({cell.slug for cell in [CELL, *others]}) == 1 + len(others)
    every = [cell for table in protocols.PROTOCOLS.values() for cell in table.cells(seeds=range(12))]
    assert len({cell.slug.lower() for cell in every}) == len(set(every))


def test_a_cell_says_what_is_special_about_it() -> None:
    cell = replace(CELL, options=(("margin", "latest"), ("every", 1)), tune=True, heldout=0.5)
    assert cell.label == "A-GCE, every = 1, margin = latest, tuned, 50% held out"
    assert cell.slug == "cifar-10/symmetric-0.4/resnet32-short/a-gce-every=1-margin=latest-tuned-heldout=0.5-seed1"
    assert cell == replace(cell, options=tuple(reversed(cell.options)))
    assert (CELL.label, str(CELL.task)) == ("A-GCE", "CIFAR-10 symmetric 0.4")


@given(
    st.builds(
        Cell,
        task=st.builds(Task, _names, _names, st.none() | st.floats(0, 1)),
        model=_names,
        schedule=_names,
        method=_names,
        seed=st.integers(0, 2**62),
        options=st.dictionaries(_names, st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text()).map(
            lambda options: tuple(options.items())
        ),
        tune=st.booleans(),
        heldout=st.floats(0, 1),
    )
)
def test_a_cell_comes_back_from_json(cell: Cell) -> None:
    assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


@pytest.mark.parametrize(
    "change", [{"seed": ...}, {"extra": 1}, {"options": [1]}, {"dataset": ...}, {"options": None}], ids=str
)
def test_what_is_no_cell_is_refused(change: dict[str, Any]) -> None:
    values = {name: value for name, value in {**CELL.to_json(), **change}.items() if value is not ...}
    with pytest.raises(ConfigError, match=r"^these are not a cell's values: "):
        Cell.from_json(values)


# Results


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    path = RUN.write(tmp_path)
    assert path == tmp_path / "runs/cifar-10/symmetric-0.4/resnet32-short/a-gce-seed1.json"
    assert vars(runs.read_file(path)) == vars(RUN)
    other = replace(RUN, cell=replace(CELL, seed=0), best=0.5)
    other.write(tmp_path)
    assert [vars(run) for run in runs.read(tmp_path)] == [vars(other), vars(RUN)]
    assert [file.name for file in path.parent.iterdir() if not file.name.endswith(".json")] == []
    assert runs.read(tmp_path / "nowhere") == []


def test_an_older_result_has_defaults_and_nan_is_none(tmp_path: Path) -> None:
    run = replace(RUN, curves={"loss": [float("nan"), float("inf"), 0.5]})
    path = run.write(tmp_path)
    assert runs.read_file(path).curves == {"loss": [None, None, 0.5]}
    about = json.loads(path.read_text())
    keep = ("kind", "format", "cell", "last5", "best", "curves")
    path.write_text(json.dumps({name: about[name] for name in keep}))
    bare = runs.read_file(path)
    assert vars(bare) == vars(Run(CELL, RUN.last5, RUN.best, {"loss": [None, None, 0.5]}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "7",
        lambda text: "[" * 100_000,
        lambda text: "\udcff",
        lambda text: json.dumps({**json.loads(text), "kind": "narl run"}),
        lambda text: json.dumps({**json.loads(text), "format": 2}),
        lambda text: json.dumps({**json.loads(text), "cell": [1]}),
        lambda text: json.dumps({**json.loads(text), "cell": {}}),
        lambda text: json.dumps({**json.loads(text), "last5": None}),
        lambda text: json.dumps({**json.loads(text), "best": "0.9"}),
        lambda text: json.dumps({**json.loads(text), "curves": [1]}),
        lambda text: json.dumps({**json.loads(text), "news": 1}),
        lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != "curves"}),
    ],
)
def test_a_damaged_or_foreign_result_is_named(tmp_path: Path, damage: Any) -> None:
    path = RUN.write(tmp_path)
    path.write_bytes(damage(path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        runs.read(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not the result of a training (")
    assert message.endswith("): remove it, and narl bench run makes it again")
    assert "\n" not in message
