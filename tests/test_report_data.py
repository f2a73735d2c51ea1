"""What a report shows: numbers against slow and obvious counts, samples that are worth it, limits that hold."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narl.audit.report import gallery, page, training
from narl.audit.report.data import MOST_CLASSES, STEPS, page_data
from narl.audit.verdicts import Verdicts
from narl.data.samples import ImageFiles, Images, Inputs, Samples, Table, Texts
from narl.errors import MissingExtraError, OptionError
from report_pages import HOSTILE, made_up


def samples_of(verdicts: Verdicts, inputs: Inputs, true: Any = None) -> Samples:
    return Samples(inputs, verdicts.given, verdicts.class_names, verdicts.ids, true)


def texts(count: int) -> Texts:
    return Texts(np.array([f"text {number}" for number in range(count)], dtype=object))


@given(st.integers(1, 120), st.integers(2, 5), st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_thresholds_and_counts(count: int, c: int, seed: int) -> None:
    verdicts, true = made_up(count, tuple(f"class {number}" for number in range(c)), seed=seed)
    data = page_data(verdicts, title="t", samples=samples_of(verdicts, texts(count), true))
    wrong = true != verdicts.given
    for step in (0, 1, 250, 500, 999, STEPS):
        below = verdicts.score < step / STEPS
        assert data["scores"]["flagged"][step] == below.sum()
        assert data["scores"]["hits"][step] == (below & wrong).sum()
    assert data["scores"]["total"] == wrong.sum()
    assert data["scores"]["flagged"][data["scores"]["start"]] == data["flagged"] == verdicts.wrong.sum()
    assert sum(data["scores"]["all"]) == count
    assert sum(data["scores"]["wrong"]) == wrong.sum()
    for number, entry in enumerate(data["by_class"]):
        assert entry["labels"] == (verdicts.given == number).sum()
        assert entry["flagged"] == ((verdicts.given == number) & verdicts.wrong).sum()
        mine = true == number
        assert entry["actual"] == (pytest.approx(wrong[mine].mean()) if mine.any() else None)
        assert entry["low"] <= entry["rate"] <= entry["high"]
    for true_class, label, share, low, high, flagged in data["confusion"]["pairs"]:
        assert true_class != label
        assert low <= share == verdicts.noise.matrix[true_class, label] <= high
        of_pair = (verdicts.suggested == true_class) & (verdicts.given == label) & verdicts.wrong
        assert flagged == of_pair.sum()
    assert len(data["confusion"]["pairs"]) == c * (c - 1)


def test_quality_is_measured_expected_or_absent() -> None:
    verdicts, true = made_up(200, calibrated=True)
    measured = page_data(verdicts, title="t", samples=samples_of(verdicts, texts(200), true))
    assert measured["scores"]["measured"]
    both = (verdicts.wrong & (true != verdicts.given)).sum()
    assert measured["quality"]["precision"] == both / verdicts.wrong.sum()
    assert measured["quality"]["recall"] == both / (true != verdicts.given).sum()
    expected = page_data(verdicts, title="t", samples=samples_of(verdicts, texts(200)))
    assert not expected["scores"]["measured"]
    assert expected["quality"] is None
    assert verdicts.probability is not None
    below = verdicts.score < 0.3
    assert expected["scores"]["hits"][300] == pytest.approx(verdicts.probability[below].sum(), abs=0.01)
    assert expected["scores"]["total"] == pytest.approx(verdicts.probability.sum())
    absent = page_data(replace(verdicts, probability=None), title="t")
    assert absent["scores"]["hits"] is None
    assert absent["noise"]["actual"] is None


def test_true_labels_by_name_not_by_number() -> None:
    verdicts, true = made_up(60)
    turned = np.array([2, 0, 1])
    names = tuple(np.array(verdicts.class_names)[np.argsort(turned)].tolist())
    samples = Samples(texts(60), turned[verdicts.given], names, verdicts.ids, turned[true])
    data = page_data(verdicts, title="t", samples=samples)
    assert data["noise"]["actual"] == (true != verdicts.given).mean()
    foreign = replace(samples, classes=("cat", "dog", "wolf"))
    assert page_data(verdicts, title="t", samples=foreign)["noise"]["actual"] is None


@given(st.integers(1, 300), st.integers(2, 12), st.integers(2, 80), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_what_is_chosen(count: int, c: int, most: int, seed: int) -> None:
    verdicts, _ = made_up(count, tuple(map(str, range(c))), seed=seed)
    chosen = gallery.choose(verdicts, most)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, most)
    assert (np.diff(verdicts.score[chosen]) >= 0).all()
    assert set(verdicts.order()[: most // 2].tolist()) <= set(chosen.tolist())
    confusions = {(verdicts.given[row], verdicts.suggested[row]) for row in np.flatnonzero(verdicts.wrong)}
    if len(confusions) <= most - most // 2:
        shown = {(verdicts.given[row], verdicts.suggested[row]) for row in chosen}
        assert confusions <= shown


def test_many_classes_leave_a_heat_map_that_can_be_read() -> None:
    verdicts, _ = made_up(3000, tuple(f"class {number}" for number in range(200)))
    matrix = verdicts.noise.matrix.copy()
    matrix[150, 7] += 0.5
    noise = replace(verdicts.noise, matrix=matrix)
    confusion = page_data(replace(verdicts, noise=noise), title="t")["confusion"]
    assert len(confusion["shown"]) == MOST_CLASSES == len(confusion["matrix"])
    assert {150, 7} <= set(confusion["shown"])
    assert confusion["pairs"][0][:2] == [150, 7]
    assert confusion["left_out"] == 200 * 199 - len(confusion["pairs"])


def test_contents_of_every_kind(tmp_path: Path) -> None:
    verdicts, _ = made_up(3)
    rows, chosen = np.array([2, 0, 1]), np.array([0, 1])
    shown = gallery.entries(verdicts, chosen, texts(3), rows, None)
    assert [entry["text"] for entry in shown] == ["text 2", "text 0"]
    table = Table(
        np.array([[1.5], [2.0], [1 / 3]]), np.array([["a"], ["b"], ["c"]], dtype=object), ("width",), ("colour",)
    )
    shown = gallery.entries(verdicts, chosen, table, rows, None)
    assert shown[0]["cells"] == [["width", "0.333333"], ["colour", "c"]]
    grey = Images(np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8, 1))
    assert gallery.entries(verdicts, chosen, grey, rows, None)[0]["image"].startswith("data:image/png;base64,")
    PIL.Image.new("RGB", (900, 300), (200, 30, 30)).save(tmp_path / "large.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    files = ImageFiles(tmp_path, np.array(["large.jpg", "missing.jpg", "broken.jpg"]))
    first, second, third = gallery.entries(verdicts, np.arange(3), files, np.arange(3), None)
    assert first["image"].startswith("data:image/webp;base64,")
    assert len(first["image"]) < 2000
    assert second["unreadable"]
    assert third["unreadable"]
    assert "image" not in gallery.entries(verdicts, chosen, None, None, None)[0]


@pytest.mark.parametrize("letter", ["x", "ע", "🦊", "\x00", "<"])
def test_a_page_stays_small_whatever_the_samples_hold(letter: str) -> None:
    verdicts, _ = made_up(500)
    long = Texts(np.array([letter * 10_000] * 500, dtype=object))
    data = page_data(verdicts, title="t", samples=samples_of(verdicts, long))
    assert data["gallery"]["samples"][0]["left_out"] == 8_500
    assert len(page.embedded(data)) < gallery.BUDGET + 400_000
    assert len(data["gallery"]["samples"]) >= 100


@given(st.dictionaries(st.text(), st.text() | st.sampled_from(HOSTILE)))
def test_data_cannot_leave_its_element(values: dict[str, str]) -> None:
    text = page.embedded(values)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == values


def test_curves_and_settings_of_what_is_there() -> None:
    assert training.curves([]) is None
    found = training.curves([{"epoch": 3, "loss": 1, "test_accuracy": None}, {"epoch": 4, "loss": float("nan")}])
    assert found == {"epochs": [3, 4], "shares": {}, "losses": {"training loss": [1.0, None]}}


def test_without_the_extra(tmp_path: Path) -> None:
    verdicts, _ = made_up(5)
    for package in ("plotly", "jinja2"):
        with (
            mock.patch.dict(sys.modules, {package: None}),
            pytest.raises(MissingExtraError, match=r"pip install 'narl\[report\]'"),
        ):
            page.write_report(verdicts, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
    nothing, _ = made_up(0)
    with pytest.raises(OptionError, match="no samples"):
        page.write_report(nothing, tmp_path / "report.html")
