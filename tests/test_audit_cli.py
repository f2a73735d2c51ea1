"""``narl audit``: what it writes and prints, cleanlab's tables, and one clear error for every mistake."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import command_line
from command_line import done, photos, refused, rings
from narl.audit import Verdicts, from_logits, from_run
from narl.audit.tables import from_cleanlab, labels_table, to_cleanlab
from narl.errors import DataError

TRAIN = ("--epochs", 3, "--batch-size", 40, "--device", "cpu", "--no-tensorboard", "--test", "none")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit")
    data = rings(place / "rings.csv")
    done("train", data, "--out", place / "run", "--clean", 20, "--true-label", "true_label", *TRAIN)
    return place / "run"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_hold_the_verdicts(run: Path) -> None:
    answer = done("audit", run)
    verdicts = from_run(run)
    rows = table(run / "audit" / "labels.csv")
    order = verdicts.order()
    assert [row["id"] for row in rows] == verdicts.ids[order].tolist()
    assert [row["given_label"] for row in rows] == [verdicts.class_names[k] for k in verdicts.given[order]]
    assert [row["suggested_label"] for row in rows] == [verdicts.class_names[k] for k in verdicts.suggested[order]]
    assert [row["wrong"] == "true" for row in rows] == verdicts.wrong[order].tolist()
    np.testing.assert_allclose([float(row["score"]) for row in rows], verdicts.score[order], rtol=1e-6)
    assert verdicts.probability is not None
    np.testing.assert_allclose(
        [float(row["probability_wrong"]) for row in rows], verdicts.probability[order], rtol=1e-6
    )
    assert {row["family"] for row in rows} <= {"0", "1", "2"}
    assert {row["path"] for row in rows} == {""}
    assert f"{int(verdicts.wrong.sum()):,} of {len(verdicts):,} labels are held for wrong" in answer.out
    assert "most suspicious:" in answer.out
    noise = json.loads((run / "audit" / "noise.json").read_text())
    assert noise["rate"] == pytest.approx(verdicts.noise.rate)
    np.testing.assert_allclose(noise["matrix"], verdicts.noise.matrix)
    assert noise["classes"] == list(verdicts.class_names)


def test_what_was_held_out_to_test_on_is_said_not_to_be_judged(tmp_path: Path) -> None:
    data = rings(tmp_path / "rings.csv")
    rows = len(table(data))
    done("train", data, "--out", tmp_path / "run", "--ignore", "true_label", *TRAIN[:-1], "0.2")
    judged = len(from_run(tmp_path / "run"))
    answer = done("audit", tmp_path / "run")
    note = f"{rows - judged} more samples were held out as the run's test set and are not judged"
    assert judged < rows
    assert f"note: {note}" in answer.out
    assert json.loads(done("audit", tmp_path / "run", "--json").out)["unjudged"] == rows - judged
    assert note in (tmp_path / "run" / "audit" / "report.html").read_text().replace("&#39;", "'")


def test_without_a_test_set_all_are_judged(run: Path) -> None:
    assert "not judged" not in done("audit", run).out


def test_parquet_holds_the_same(run: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done("audit", run)
    found = parquet.read_table(run / "audit" / "labels.parquet").to_pydict()
    rows = table(run / "audit" / "labels.csv")
    assert list(found) == list(rows[0])
    assert found["id"] == [row["id"] for row in rows]
    np.testing.assert_allclose(found["score"], [float(row["score"]) for row in rows], rtol=1e-6)


def test_json_for_programs_and_another_folder(run: Path, tmp_path: Path) -> None:
    said = json.loads(done("audit", run, "--out", tmp_path / "a" / "b", "--no-calibrate", "--json").out)
    assert said["calibrated"] is False
    assert 0 <= said["noise"]["low"] <= said["noise"]["rate"] <= said["noise"]["high"] <= 1
    assert all(Path(path).is_file() for path in said["files"].values())
    assert table(tmp_path / "a" / "b" / "labels.csv")[0]["probability_wrong"] == "nan"
    assert "--overwrite" in refused("audit", run, "--out", tmp_path / "a" / "b")
    done("audit", run, "--out", tmp_path / "a" / "b", "--overwrite")


def test_mistakes_end_in_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert "there is no folder" in refused("audit", tmp_path / "nowhere")
    assert "not a run of narl" in refused("audit", tmp_path / "empty")
    assert "is a file" in refused("audit", run, "--out", tmp_path / "file")
    assert "cannot be made" in refused("audit", run, "--out", tmp_path / "file" / "below")
    assert "2 or more" in refused("audit", run, "--folds", 1)
    assert "leave it out with --folds" in refused("audit", run, "--folds", 3, "--no-calibrate")
    assert not (tmp_path / "file" / "below").exists()
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (broken / "samples.json").unlink()
    assert "no record of its samples" in refused("audit", broken)
    (broken / "samples.json").write_text('{"kind": "narl samples", "format": 1}')
    assert "damaged" in refused("audit", broken)


def test_folds_from_the_command_line(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    said = json.loads(done("audit", tmp_path / "run", "--folds", 2, "--json").out)
    assert said["samples"] == len(from_run(run))
    assert sorted(path.name for path in (tmp_path / "run" / "audit").glob("fold*")) == ["fold-1-of-2", "fold-2-of-2"]


def test_files_of_images_are_named(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    done("train", data, "--out", tmp_path / "run", *TRAIN[:1], 1, *TRAIN[2:])
    done("audit", tmp_path / "run")
    rows = table(tmp_path / "run" / "audit" / "labels.csv")
    assert len(rows) == 16
    assert all(Path(row["path"]).is_file() and row["path"].endswith(row["id"]) for row in rows)


def test_names_stay_in_their_line(run: Path) -> None:
    answer = done("audit", run)
    assert all(name in answer.out for name in command_line.CLASSES)
    verdicts = from_logits([[3.0, 0.0], [3.0, 0.0]], [0, 1], class_names=["a\n\x1b[31m", "b" * 200], ids=["x\r", "y"])
    from narl.cli.audit import _confusions

    (line,) = _confusions(verdicts)
    assert line.isprintable()
    assert len(line) < 200


@given(st.integers(0, 10_000), st.integers(2, 4), st.booleans())
@settings(max_examples=30, deadline=None)
def test_to_cleanlab_and_back(seed: int, classes: int, as_text: bool) -> None:
    rng = np.random.default_rng(seed)
    before = from_logits(rng.normal(size=(12, classes)) * 3, rng.integers(0, classes, 12))
    issues: dict[str, Any] = to_cleanlab(before)
    if as_text:
        issues = {name: [str(value) for value in values] for name, values in issues.items()}
    after = from_cleanlab(issues, before.class_names)
    for name in ("ids", "given", "suggested", "score", "wrong", "family"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.noise.rate == before.noise.rate
    assert np.isnan(after.margin).all()


def test_cleanlab_s_own_tables_are_read() -> None:
    pandas = pytest.importorskip("pandas")
    by_name = pandas.DataFrame(  # as Datalab.get_issues("label") gives it
        {
            "is_label_issue": [False, True, False],
            "label_score": [0.9, 0.05, 0.7],
            "given_label": ["cat", "dog", "dog"],
            "predicted_label": ["cat", "cat", "dog"],
        }
    )
    found = from_cleanlab(by_name, ["cat", "dog"])
    assert found.suggested.tolist() == [0, 0, 1]
    assert found.ids.tolist() == ["0", "1", "2"]
    by_number = by_name.assign(
        given_label=[0, 1, 1], predicted_label=[0.0, 0.0, 1.0], label_quality=by_name.label_score
    )
    assert from_cleanlab(by_number, ["cat", "dog"]).suggested.tolist() == [0, 0, 1]


@pytest.mark.parametrize("as_text", [False, True])
def test_names_that_look_like_numbers_are_not_taken_for_them(as_text: bool) -> None:
    rng, names = np.random.default_rng(0), ["1", "2", "3"]
    before = from_logits(3 * rng.normal(size=(60, 3)), rng.integers(0, 3, 60), class_names=names)
    issues: dict[str, Any] = to_cleanlab(before)
    if as_text:
        issues = {name: [str(value) for value in values] for name, values in issues.items()}
    for after in (from_cleanlab(issues, names), from_cleanlab(issues, names, labels="indices")):
        np.testing.assert_array_equal(after.given, before.given)
        np.testing.assert_array_equal(after.suggested, before.suggested)
    called = {
        name: [names[value] for value in to_cleanlab(before)[name]] for name in ("given_label", "predicted_label")
    }
    np.testing.assert_array_equal(from_cleanlab({**issues, **called}, names).given, before.given)
    part = {
        name: [values[row] for row in np.flatnonzero(before.given * before.suggested)]
        for name, values in issues.items()
    }
    with pytest.raises(DataError, match="by their number, from 0, or by their name"):
        from_cleanlab(part, names)  # 1 and 2 alone: both are possible
    assert set(from_cleanlab(part, names, labels="indices").given) == {1, 2}
    assert set(from_cleanlab(part, names, labels="names").given) == {0, 1}
    with pytest.raises(DataError, match="said to be 'words'"):
        from_cleanlab(part, names, labels="words")


def test_a_path_is_no_table() -> None:
    with pytest.raises(DataError, match=r"pandas\.read_csv"):
        from_cleanlab("cleanlab.csv", ["cat", "dog"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"given_label": None}, "no column 'given_label'"),
        ({"label_quality": None}, "no column 'label_quality'"),
        ({"label_quality": [2.0]}, "outside 0"),
        ({"label_quality": ["x"]}, "no number"),
        ({"label_quality": [float("nan")]}, "outside 0"),
        ({"given_label": ["catt"]}, "did you mean 'cat'"),
        ({"given_label": [2]}, "no class"),
        ({"is_label_issue": ["maybe"]}, "True or False"),
        ({"is_label_issue": [True, False]}, "differ in length"),
    ],
)
def test_tables_that_are_none_are_refused(change: dict[str, Any], says: str) -> None:
    issues: dict[str, Any] = {
        "is_label_issue": [True],
        "label_quality": [0.1],
        "given_label": [0],
        "predicted_label": [1],
    }
    issues = {name: values for name, values in {**issues, **change}.items() if values is not None}
    with pytest.raises(DataError, match=says):
        from_cleanlab(issues, ["cat", "dog"])


def test_a_table_may_have_another_order() -> None:
    verdicts: Verdicts = from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0]], [0, 1, 1])
    assert labels_table(verdicts, ["a", "b", "c"], order=np.arange(3))["path"] == ["a", "b", "c"]
    assert labels_table(verdicts, ["a", "b", "c"])["path"] == ["b", "a", "c"]
