"""The pictures of the page on the method show what narl computes, and stand without a script."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
NUMBERS = json.loads((FOLDER / "numbers.js").read_text().split("window.narlNumbers = ")[1].rstrip(";\n"))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pictures")


def near(found: Any, expected: Any) -> bool:
    """Equal up to the last digit that is written."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(near(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(near, found, expected))
    return bool(found == expected if isinstance(expected, str) else found == pytest.approx(expected, abs=2e-4))


def test_the_numbers_are_the_losses(pictures: ModuleType) -> None:
    assert near(NUMBERS, pictures.numbers()), "run: python benchmarks/pictures.py"


def test_gce_by_its_formula() -> None:
    gce = NUMBERS["losses"]["gce"]
    for q, losses, pulls in zip(gce["values"], gce["loss"], gce["pull"], strict=True):
        for p, loss, pull in zip(NUMBERS["p"], losses, pulls, strict=True):
            assert loss == pytest.approx((1 - p**q) / q, abs=1e-4)
            assert pull == pytest.approx(p**q, abs=1e-4)


@pytest.mark.parametrize("loss", ["gce", "js", "polysoft"])
def test_every_loss_lies_where_it_is_said_to(loss: str) -> None:
    found = NUMBERS["losses"][loss]
    assert len(found["values"]) == len(found["loss"]) == len(found["pull"])
    assert all(len(row) == len(NUMBERS["p"]) for kind in ("loss", "pull") for row in found[kind])
    assert all(-1e-4 <= pull <= 1.0001 for row in found["pull"] for pull in row)  # no sample pulls harder than with CE


def test_the_files_are_drawn_from_them(pictures: ModuleType) -> None:
    drawn = pictures.pictures()
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(drawn)
    for name, text in drawn.items():
        kept = (FOLDER / f"{name}.svg").read_text()
        root = ElementTree.fromstring(kept)
        for before, after in zip(root.iter(), ElementTree.fromstring(text).iter(), strict=True):
            assert before.tag == after.tag
            if before.tag.endswith("polyline"):
                points = [[float(x) for x in re.split(r"[ ,]", one.attrib["points"])] for one in (before, after)]
                assert points[0] == pytest.approx(points[1], abs=0.11), f"run: python benchmarks/pictures.py ({name})"
        named = root.attrib["aria-labelledby"].split()
        assert [one.attrib.get("id") for one in root][:2] == named
        assert "<script" not in kept
        assert "http" not in kept.replace("http://www.w3.org/2000/svg", "")


def test_the_page_shows_them() -> None:
    page = (ROOT / "docs" / "method.md").read_text()
    assert set(re.findall(r"\]\(pictures/(\w+)\.svg\)", page)) == {path.stem for path in FOLDER.glob("*.svg")}


@pytest.mark.browser
def test_the_pictures_move(browser: Any, tmp_path: Path) -> None:
    inside = "".join(
        f"<p>{(FOLDER / f'{name}.svg').read_text()}</p>" for name in ("loss", "pull", "margin", "adjusted")
    )
    scripts = "".join(f'<script src="file://{FOLDER}/{name}.js"></script>' for name in ("numbers", "pictures"))
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{inside}{scripts}")
    tab = browser.new_page()
    trouble: list[str] = []
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.goto(f"file://{tmp_path}/page.html")

    def points(panel: str, kind: str) -> list[float]:
        text = tab.locator(f'svg[data-panel="{panel}"] polyline.{kind}').get_attribute("points")
        return [float(number) for number in re.split(r"[ ,]", text)]

    drawn = re.search(r'class="now".*?points="(.*?)"', (FOLDER / "loss.svg").read_text())
    assert drawn is not None
    assert points("loss", "now") == pytest.approx([float(x) for x in re.split(r"[ ,]", drawn[1])], abs=0.11)

    slider = tab.get_by_label("q", exact=True)
    slider.focus()
    tab.keyboard.press("End")  # by keyboard, to q = 1: MAE
    assert points("loss", "now") == pytest.approx(points("loss", "mae"), abs=0.11)
    assert points("pull", "now") == pytest.approx(points("pull", "mae"), abs=0.11)
    assert slider.get_attribute("aria-valuetext") == "q = 1 (small: cross entropy, 1: MAE)"
    tab.keyboard.press("ArrowLeft")
    assert "q = 0.95" in str(slider.get_attribute("aria-valuetext"))

    tab.get_by_label("Loss", exact=True).select_option("polysoft")
    assert "PolySoft, λ" in str(tab.locator('svg[data-panel="loss"] text.now').text_content())

    margin = tab.get_by_label("Margin", exact=True)
    margin.focus()
    tab.keyboard.press("End")
    words = str(margin.get_attribute("aria-valuetext"))
    assert words.startswith("margin 10: q is small classes 0.01")
    before = points("margin", "three")
    tab.get_by_label("Adjuster", exact=True).select_option("0")
    assert points("margin", "three") != before
    assert trouble == []
    tab.close()
