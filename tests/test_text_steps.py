"""Drawn texts to choose on: which labels are wrong, that a line is one training, and what the tables show."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from narl.train.settings import Settings

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("text_steps")
    monkeypatch.setattr(sys.modules["drawn_texts"], "TESTED", 60)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "text-steps.jsonl")
    yield module
    for name in ("text_steps", "drawn_texts", "real_texts"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("labels", "least", "most"), [("right", 0.0, 0.0), ("symmetric", 0.35, 0.45), ("weak", 0.3, 0.7)]
)
def test_labels_are_wrong_as_often_as_they_should_be(study: ModuleType, labels: str, least: float, most: float) -> None:
    made = study._labelled(study.Training(6, 900, 5, labels))
    assert least <= (made["given_train"] != made["y_train"]).mean() <= most
    assert (len(made["text_train"]), len(made["text_test"])) == (900, 60)


@pytest.mark.parametrize("labels", ["weak", "symmetric", "right"])
def test_fortunes_are_labelled_in_the_same_ways(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch, labels: str
) -> None:
    some = {name: [f"{name} {word}s {row} it" for row in range(400) for word in "ab"] for name in ("he", "she", "we")}
    monkeypatch.setattr(study.real_texts, "collection", {"fortunes": some}.__getitem__)
    made = study._labelled(study.Training(3, 300, 5, labels, texts="fortunes", seed=1))
    wrong = (made["given_train"] != made["y_train"]).mean()
    assert {"weak": 0.2 < wrong < 0.6, "symmetric": 0.3 < wrong < 0.5, "right": wrong == 0}[labels]


def test_a_fixed_loss_is_trained_as_it_is(study: ModuleType) -> None:
    wanted = list(study.trainings("fortunes", ("sl",), ("weak",)))
    named = {(one.loss, one.form): study._method(one) for one in wanted}
    assert named == {("", ""): "CE", ("sl", "fixed"): "SL"} | {("sl", form): "T-SL" for form in study.FORMS}
    design = study.DESIGNS["fortunes"]
    assert len(wanted) == len(set(wanted)) == len(design.draws) * len(design.sizes) * len(named)


def test_a_line_is_a_training_and_is_not_made_twice(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [study.Training(3, 200, 6, "right"), study.Training(3, 200, 6, "right", "gce", "any data")]
    lines = [study.trained(one) for one in wanted]
    for one, line in zip(wanted, lines, strict=True):
        assert one.steps == 12
        assert 0 <= line["last5"] <= line["best"] <= 1
        assert line["method"] == ("T-GCE" if one.loss else "CE")
    study.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(study, "trained", None)
    study.run(wanted, at_once=1)
    assert len(study.results()) == 2


def test_estimated_rates_have_a_say_in_trainings_of_any_length(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def plan(settings: Settings) -> None:
        asked.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "plan", plan)
    for form in study.FORMS:
        with pytest.raises(KeyboardInterrupt):
            study.trained(study.Training(3, 200, 6, "symmetric", "sl", form))
    rates = {form: settings.options.get("noise_rate") for form, settings in zip(study.FORMS, asked, strict=True)}
    assert rates == {**dict.fromkeys(study.FORMS), "any data, noise estimated": "estimated"}
    assert all(Path(file).exists() for settings in asked for file in settings.adjusters)


def test_tables_show_means_of_what_is_complete(study: ModuleType) -> None:
    assert study.tables() == []
    design = study.DESIGNS["drawn"]
    (rows, epochs), *_ = design.sizes
    lines = [
        {
            "classes": classes,
            "rows": rows,
            "epochs": epochs,
            "labels": "weak",
            "loss": loss,
            "form": form,
            "seed": seed,
            "last5": classes / 100,
        }
        for classes, seed in design.draws
        for loss, form in (("", ""), ("sl", "tables"))
        if loss == "" or classes != 6
    ]
    study.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table,) = study.tables()
    assert [line[:3] for line in table.rows] == [("CE", "7.3", "–")]
    assert table.columns[1] == "1,500 texts, 225 steps"
