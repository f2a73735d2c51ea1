"""The table of transferred losses: its parts, its labels, what it is to reach, and results that no longer count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import done, refused
from narl.adjuster import Adjuster, packs, pretrained
from narl.adjuster.packs import Pack
from narl.bench import account, comparison, protocols, releases, transfer, work
from narl.bench.asked import asked_of, difference
from narl.bench.cells import Task
from narl.bench.noise_labels import labels_of
from narl.bench.runs import Run
from narl.bench.work import Place
from narl.train.methods.transferred import Transferred
from narl.train.planning import method_for, optimizer_for, plan


def questions(path: Path) -> Path:
    """Texts with right labels and with those of rules."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 300), ("test", 60)):
        y = rng.integers(0, 3, count)
        arrays[f"text_{part}"] = np.array([f"w{k} {part}{i} w{k}{i % 3}" for i, k in enumerate(y)])
        arrays[f"y_{part}"] = y
        arrays[f"weak_{part}"] = np.where(rng.random(count) < 0.5, y, (y + 1) % 3)
    np.savez(path, **arrays)
    return path


def cell(part: str, task: str, method: str) -> Any:
    return protocols.get(part).cells(methods=[method], tasks=[task])[0]


def runs(*given: tuple[str, str, str, float]) -> list[Run]:
    return [Run(cell(part, task, method), share, share, {}) for part, task, method, share in given]


def test_the_parts() -> None:
    parts = protocols.parts("transfer")
    assert {task.dataset for part in parts for task in part.tasks} == {
        "TinyImageNet-32", "CIFAR-10N", "TREC", "letter", "penbased",
    }  # fmt: skip
    assert {part.methods for part in parts} == {("CE", *protocols.FIXED, *protocols.TRANSFERRED)}
    shared = {one.slug for one in protocols.get("cifar10n").cells()}
    assert shared >= {one.slug for one in protocols.get("transfer-cifar10n").cells(methods=["CE", "JS"])}
    assert asked_of(cell("transfer-cifar10n", "worst", "JS"), protocols.get("transfer-cifar10n")) == asked_of(
        cell("transfer-cifar10n", "worst", "JS"), protocols.get("cifar10n")
    ), "one training serves both"
    js = cell("transfer-tinyimagenet", "symmetric-0.6", "JS")
    assert asked_of(js, protocols.get("transfer-tinyimagenet"))["options"] == {"pi1": 0.5}


def test_labels_of_rules(tmp_path: Path) -> None:
    path = questions(tmp_path / "trec.npz")
    place = Place((("TREC", str(path)),), tmp_path / "work", tmp_path / "results", device="cpu")
    sets = plan(work.settings_of(cell("transfer-trec", "weak", "CE"), protocols.get("transfer-trec"), place)).sets
    assert sets.test is not None
    assert len(sets.test) == 60
    assert sets.mislabelled is not None
    assert 0.3 < sets.mislabelled.mean() < 0.7
    assert labels_of(Task("TREC", "weak"), 0, "trec.csv", tmp_path) == "trec.csv:weak_label"


def test_only_what_there_is_data_for(tmp_path: Path) -> None:
    asked = ("bench", "run", "transfer", "--dry-run", "--results", tmp_path, "--methods", "CE,JS")
    said = done(*asked, "--data", f"TREC={questions(tmp_path / 'trec.npz')}").out
    assert said.splitlines()[0] == "2 cells: 0 with a result, 2 missing"
    assert "these tables are about TinyImageNet-32" in refused(*asked, "--data", "MNIST=x")


@pytest.mark.usefixtures("nothing_shipped")
def test_what_is_to_be_reached() -> None:
    tiny, tables = "transfer-tinyimagenet", "transfer-tables"
    found = runs(
        (tiny, "symmetric-0.4", "JS", 0.30),
        (tiny, "symmetric-0.4", "T-JS", 0.35),
        (tiny, "symmetric-0.4", "CE", 0.36),
        (tiny, "symmetric-0", "CE", 0.50),
        (tiny, "symmetric-0", "T-JS", 0.485),
        (tables, "letter/symmetric-0.4", "CE", 0.8),
        (tables, "letter/symmetric-0.4", "T-SL", 0.9),
        ("transfer-cifar10n", "worst", "T-GCE", 0.84),
    )
    sixty = "TinyImageNet-32, symmetric 0.6: all four over their fixed forms"
    lines = {line[0]: line[1:] for line in transfer.reached(comparison.rows("transfer", found)).rows}
    assert lines["ahead of the fixed form"] == ("80 % of the cells", "100 % (1 of 1)", "yes")
    assert lines["ahead of CE, where 20 % or more are wrong"][1:] == ("50 % (1 of 2)", "no")
    assert lines["worst against CE on right labels"][1:] == ("-1.5", "no")
    assert lines["TinyImageNet-32, symmetric 0.4: T-JS over JS"][1:] == ("+5.0", "yes")
    assert lines["CIFAR-10N worst, the best of the four"][1:] == ("84.0", "yes")
    assert lines[sixty] == ("all ahead", "–", "–")
    pairs = [(tiny, "symmetric-0.6", method, 0.1) for method in ("GCE", "SL", "PolySoft", "JS")]
    three = [(tiny, "symmetric-0.6", method, 0.12) for method in ("T-GCE", "T-SL", "T-JS")]
    for fourth, said in (
        ([], ("3 of 3 ahead, least +2.0; 1 not run", "–")),
        ([(tiny, "symmetric-0.6", "T-PolySoft", 0.11)], ("4 of 4 ahead, least +1.0", "yes")),
        ([(tiny, "symmetric-0.6", "T-PolySoft", 0.09)], ("3 of 4 ahead, least -1.0", "no")),
    ):
        rows = comparison.rows("transfer", runs(*pairs, *three, *fourth))
        assert {line[0]: line[2:] for line in transfer.reached(rows).rows}[sixty] == said
    again = [replace(run, cell=replace(run.cell, schedule="paper")) for run in runs(*pairs, *three)]
    rows = comparison.rows("transfer", [*runs(*pairs, *three), *again])
    assert {line[0]: line[2] for line in transfer.reached(rows).rows}[sixty] == "6 of 6 ahead, least +2.0; 1 not run"
    tuned = protocols.get(tables).cells(methods=["SL"], tasks=["letter/symmetric-0.4"])[0]
    adjusted = replace(protocols.get("transfer-cifar10n").cells(methods=["GCE"], tasks=["worst"])[0], method="A-GCE")
    more = [
        *found,
        Run(replace(tuned, tune=True), 0.85, 0.85, {}),
        *(Run(replace(adjusted, method=method), value, value, {}) for method, value in (("A-GCE", 0.9), ("GCE", 0.8))),
    ]
    for variants in (False, True):
        rows = comparison.rows("transfer", more, variants=variants)
        assert "A-GCE" not in {row["method"] for row in rows}
        own = {row["method"] for row in comparison.rows("cifar10n", more, variants=variants) if row["seeds"]}
        assert own == {"GCE", "A-GCE"}, "T-GCE is the other table's"
        lines = {line[0]: line[1:] for line in transfer.reached(rows).rows}
        assert lines["ahead of the fixed form"][1] == "100 % (2 of 2)", (
            "T-GCE there, and what learned there does not count"
        )
        assert lines["ahead of the fixed form, tuned on clean samples"][1] == "100 % (1 of 1)"
    rows = comparison.rows("transfer", found)
    assert next(row for row in rows if row["method"] == "T-JS")["paper"] == 54.67
    assert set(rows[0]) == set(comparison.rows("table1", [])[0]), "as all tables"


def test_once_an_adjuster_is_shipped_only_its_results_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "WEIGHTS", tmp_path)
    pack = Pack((Adjuster("gce", [5, 5]),), "gce-1", "1")
    table = protocols.get("transfer-tables")
    (run,) = runs(("transfer-tables", "letter/symmetric-0.4", "T-GCE", 0.9))
    own, other = (replace(run, settings={"adjusters": [digest]}) for digest in (pack.digest, "another"))
    assert difference(other, table) is None, "nothing is shipped"
    packs.write(tmp_path / "gce-1.safetensors", pack)
    (tmp_path / pretrained.SUMS).write_text(releases._sums(tmp_path))
    assert difference(own, table) is None
    assert "the one that is shipped is" in str(difference(other, table))
    place = Place((), tmp_path / "work", tmp_path / "results")
    assert work.reason_against(run.cell, table, place) is None, "it is used where none is named"
    assert "ships none" in str(work.reason_against(replace(run.cell, method="T-JS"), table, place))


def test_which_of_what_is_shipped_counts_is_a_matter_of_the_training_s_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "WEIGHTS", tmp_path)
    for_any, for_tables = Adjuster("gce", [5, 5]), Adjuster("gce", [5, 5]).begin_at()
    for_tables.data, for_tables.least_steps = "table", 600
    packs.write(tmp_path / "gce-1.safetensors", Pack((for_any, for_tables), "gce-1", "1"))
    (tmp_path / pretrained.SUMS).write_text(releases._sums(tmp_path))
    table = protocols.get("transfer-tables")
    (run,) = runs(("transfer-tables", "letter/symmetric-0.4", "T-GCE", 0.9))
    for epochs, serves in ((5, for_any), (6, for_tables)):  # of 100 steps
        known = {"kind": "table", "epochs": epochs, "train_samples": 10_000, "batch_size": 100}
        for adjuster in (for_any, for_tables):
            made = replace(run, settings={**known, "adjusters": [packs.digest([adjuster])]})
            assert (difference(made, table) is None) == (adjuster is serves)


@pytest.mark.parametrize("too_short", [False, True])
def test_what_a_run_began_with_is_in_its_account(tmp_path: Path, too_short: bool) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "letter.npz", x=rng.normal(size=(400, 4)).astype(np.float32), y=np.arange(400) % 4)
    adjuster = tmp_path / "gce.safetensors"
    for_any, for_tables = (Adjuster("gce", [100] * 4, hidden=5) for _ in range(2))
    for_tables.data, for_tables.least_steps = "table", 10**6
    packs.write(adjuster, Pack((for_any, for_tables) if too_short else (for_any,)))
    where = Place(
        (("letter", str(tmp_path / "letter.npz")),),
        tmp_path / "work",
        tmp_path / "results",
        adjusters=(str(adjuster),),
        device="cpu",
    )
    one = cell("transfer-tables", "letter/symmetric-0.4", "T-GCE")
    made = plan(work.settings_of(one, protocols.get("transfer-tables"), where))
    model = made.model()
    method = method_for(made, model, optimizer_for(made, model), None)
    assert isinstance(method, Transferred)
    said = account._options(made)["robust_start"]
    first, before, after = (method.criterion.at(share) for share in (0.0, said - 1e-6, said + 1e-6))
    assert first is before
    assert before is not after
    assert packs.digest(account._serving(made)) == packs.digest([for_any])
