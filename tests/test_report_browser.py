"""A report in a browser: what a person clicks, drags, types and sees, and what hostile data cannot do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narl.audit.report import page
from narl.audit.report.data import page_data
from narl.data.samples import Images, Inputs, Samples, Table, Texts
from report_pages import HOSTILE, made_up

pytestmark = pytest.mark.browser
PLAIN = ("cat", "dog", "fox")


@dataclass
class Opened:
    """A page in a browser, and all that went wrong in it."""

    tab: Any
    trouble: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.tab.inner_text(selector))

    def see(self, chart: str) -> None:
        """Scroll to a chart, so that it is drawn."""
        self.tab.locator(f"#{chart}").scroll_into_view_if_needed()
        self.tab.wait_for_selector(f"#{chart} .main-svg")

    def until(self, condition: str) -> None:
        """Wait for a condition; playwright's own waiting evaluates strings in the page, which its policy forbids."""
        end = time.monotonic() + 20
        while not self.tab.evaluate(condition):
            assert time.monotonic() < end, condition
            self.tab.wait_for_timeout(20)

    def cards(self) -> list[tuple[str, str]]:
        """Given and suggested labels of the samples that are shown."""
        return [
            (given, suggested)
            for given, suggested, *_ in self.tab.eval_on_selector_all(
                "#cards li", "all => all.map(li => [...li.querySelectorAll('.labels dd')].map(dd => dd.textContent))"
            )
        ]


def opened(browser: Any, path: Path, **options: Any) -> Opened:
    tab = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}).new_page()
    found = Opened(tab)
    tab.on("console", lambda message: found.trouble.append(message.text) if message.type != "log" else None)
    tab.on("pageerror", lambda error: found.trouble.append(str(error)))
    tab.on("dialog", lambda dialog: found.trouble.append("a dialog opened"))
    tab.on("request", lambda asked: found.trouble.append(asked.url) if asked.url.startswith(("http", "ws")) else None)
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    return found


def written(path: Path, count: int, inputs: Inputs, classes: tuple[str, ...] = PLAIN, **options: Any) -> Path:
    verdicts, true = made_up(count, classes, **options)
    samples = Samples(inputs, verdicts.given, classes, verdicts.ids, true)
    path.write_text(page.render(page_data(verdicts, title="runs/first", samples=samples)))
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 8, 8, 3), dtype=np.uint8)
    return written(tmp_path_factory.mktemp("page") / "report.html", 300, Images(pixels))


@pytest.fixture
def shown(browser: Any, images: Path) -> Iterator[Opened]:
    found = opened(browser, images)
    yield found
    found.tab.context.close()
    assert found.trouble == []


def test_filters_and_pages(shown: Opened) -> None:
    tab = shown.tab
    everything = shown.text("#found")
    assert everything == "1 to 24 of 300 samples"
    assert tab.eval_on_selector("#cards img", "image => image.decode().then(() => image.naturalWidth)") == 8
    tab.click("#next")
    assert shown.text("#found") == "25 to 48 of 300 samples"
    assert tab.evaluate("document.activeElement.id") == "gallery-title"
    tab.select_option("#filter-given", "1")
    assert {given for given, _ in shown.cards()} == {"dog"}
    assert shown.text("#found").startswith("1 to ")
    tab.select_option("#filter-suggested", "2")
    assert set(shown.cards()) == {("dog", "fox")}
    tab.click("#filter-reset")
    shown.until(f"document.getElementById('found').textContent === '{everything}'")
    tab.check("#filter-below")
    assert set(tab.locator("#cards .mark").all_inner_texts()) == {"flagged"}


def test_the_slider(shown: Opened) -> None:
    verdicts, true = made_up(300)
    tab = shown.tab
    shown.see("histogram")
    shown.see("quality")
    tab.focus("#slider")
    for key, step in (("ArrowRight", 501), ("Home", 0), ("End", 1000), ("ArrowLeft", 999)):
        tab.keyboard.press(key)
        below = verdicts.score < step / 1000
        assert shown.text("#slider-value") == f"{step / 1000:.3f}"
        assert shown.text("#slider-says").startswith(
            f"{below.sum()} of 300 labels ({below.mean():.1%}".replace("%", " %")
        )
    found = (true != verdicts.given) & (verdicts.score < 0.999)
    assert f"Of them {found.sum()} are wrong" in shown.text("#slider-says")
    shown.until("document.getElementById('histogram').layout.shapes[0].x0 === 0.999")
    assert "labels flagged" in tab.get_attribute("#slider", "aria-valuetext")
    tab.click("#slider-reset")
    assert shown.text("#slider-says").startswith(f"{verdicts.wrong.sum()} of 300 labels")


def test_a_click_on_the_heat_map_filters(shown: Opened) -> None:
    tab = shown.tab
    shown.see("confusion")
    box = tab.locator("#confusion .nsewdrag").first.bounding_box()
    assert box is not None
    row, column = 2, 0  # in truth a fox, labelled a cat
    tab.mouse.move(box["x"] + box["width"] * (column + 0.5) / 3, box["y"] + box["height"] * (row + 0.5) / 3)
    tab.wait_for_selector("#confusion .hoverlayer .hovertext")
    assert "click to see some" in tab.text_content("#confusion .hoverlayer")
    tab.mouse.down()
    tab.mouse.up()
    shown.until("document.activeElement.id === 'gallery-title'")
    assert set(shown.cards()) == {("cat", "fox")}
    assert tab.input_value("#filter-given") == "0"
    assert tab.input_value("#filter-suggested") == "2"


def test_keys_reach_all_of_it(shown: Opened) -> None:
    tab = shown.tab
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.locator("summary", has_text="button for each confusion").focus()
    tab.keyboard.press("Enter")
    button = tab.locator("#confusion-table button").first
    name = button.get_attribute("aria-label")
    button.focus()
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    tab.keyboard.press("Enter")
    (given, suggested), *others = set(shown.cards())
    assert not others
    assert name == f"show {suggested} labelled {given}"
    unnamed = tab.evaluate(
        """[...document.querySelectorAll('button, select, input, a, [role], img, summary')].filter(element =>
            !(element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || element.alt ||
              element.textContent.trim() || element.labels?.length || element.closest('.js-plotly-plot'))).length"""
    )
    assert unnamed == 0


@pytest.mark.parametrize("kind", ["text", "table"])
def test_hostile_data_stays_text(browser: Any, tmp_path: Path, kind: str) -> None:
    count = 40
    words = np.array([HOSTILE[number % len(HOSTILE)] for number in range(count)], dtype=object)
    if kind == "text":
        inputs: Inputs = Texts(words)
    else:
        inputs = Table(np.zeros((count, 1)), words[:, None], (HOSTILE[0],), (HOSTILE[1],))
    ids = np.array([f"{HOSTILE[number % len(HOSTILE)]}{number}" for number in range(count)])
    path = tmp_path / "report.html"
    verdicts, true = made_up(count, HOSTILE, ids=ids)
    samples = Samples(inputs, verdicts.given, HOSTILE, ids, true)
    data = page_data(verdicts, title=HOSTILE[0], samples=samples, notes=HOSTILE)
    path.write_bytes(page.render(data).encode("utf-8", "backslashreplace"))
    found = opened(browser, path)
    tab = found.tab
    for chart in ("by-class", "confusion", "histogram", "quality"):
        found.see(chart)
    tab.locator("#confusion .nsewdrag").first.hover(position={"x": 5, "y": 60})
    tab.wait_for_selector("#confusion .hoverlayer .hovertext")
    tab.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    seen = tab.eval_on_selector_all("#by-class-table tbody tr td:first-child", "all => all.map(one => one.textContent)")
    assert {text.replace("\ufffd", "\udcff") for text in seen} == set(data["classes"])
    assert tab.locator("script").count() == 4
    assert tab.locator("main img, main a, main b, main script, main iframe").count() == 0
    assert tab.title() == f"Label audit: {HOSTILE[0]}"
    assert HOSTILE[0] in tab.text_content("#notes")
    ticks = tab.text_content("#by-class .yaxislayer-above")
    for name in ("<script>docum", "<i>&lt;a</i>", "<a href=x>y</a>"):
        assert name in ticks
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = max(tab.locator("#cards li").all(), key=lambda card: len(card.text_content()))
    assert "x" * 100 in first.text_content()
    tab.context.close()
    assert found.trouble == []


def test_phones_and_the_dark(browser: Any, images: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    found = opened(browser, images, color_scheme="dark", **phone)
    for chart in ("by-class", "confusion", "histogram", "quality"):
        found.see(chart)
    tab = found.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 23)"
    ink = "getComputedStyle(document.querySelector('#histogram .xtick text')).fill"
    assert tab.evaluate(ink) == "rgb(236, 236, 234)"
    tab.emulate_media(color_scheme="light")
    found.until(f"{ink} === 'rgb(28, 28, 26)'")
    assert found.text("#found") == "1 to 12 of 300 samples"
    tab.context.close()
    assert found.trouble == []


def test_charts_keep_their_room_when_the_window_changes(browser: Any, images: Path) -> None:
    found = opened(browser, images)
    charts = ("by-class", "confusion", "histogram", "quality")
    for chart in charts:
        found.see(chart)
    found.tab.set_viewport_size({"width": 700, "height": 900})
    for chart in charts:
        box, plot = f"document.querySelector('#{chart}')", f"document.querySelector('#{chart} .main-svg')"
        found.until(f"{plot}.clientWidth === {box}.clientWidth && {box}.clientWidth > 600")  # drawn anew
        found.until(f"{plot}.clientHeight <= {box}.clientHeight")
    found.tab.context.close()
    assert found.trouble == []


def test_one_class_pair_nothing_flagged_no_truth(browser: Any, tmp_path: Path) -> None:
    verdicts, _ = made_up(30, ("yes", "no"), rate=0.0)
    path = tmp_path / "report.html"
    path.write_text(page.render(page_data(verdicts, title="predictions")))
    found = opened(browser, path)
    for chart in ("by-class", "confusion", "histogram"):
        found.see(chart)
    assert found.tab.is_hidden("#quality-figure")
    assert found.tab.is_hidden("#training")
    assert found.tab.is_hidden("#settings")
    found.tab.context.close()
    assert found.trouble == []
