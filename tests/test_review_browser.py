"""The review's page in a real browser: every key, hostile samples, a server that goes away, a phone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from narl.audit.review.answers import FILE, Answers
from narl.data.samples import Images, Inputs, Texts
from review_desk import NASTY, Client, desk_in, made_up, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@contextmanager
def page_of(browser: Browser, client: Client, **looks: Any) -> Iterator[Page]:
    """The page, ready; nothing may go wrong in it, and nothing may be loaded from elsewhere."""
    context = browser.new_context(**looks)
    page = context.new_page()
    page.set_default_timeout(15_000)
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.on("request", lambda request: trouble.append(request.url) if not _own(request.url, client) else None)
    page.goto(f"http://127.0.0.1:{client.port}/#token={client.token}")
    page.wait_for_selector("#work:not([hidden])")
    settle(page)
    yield page
    settle(page)
    context.close()
    assert trouble == []


def _own(url: str, client: Client) -> bool:
    return url.startswith((f"http://127.0.0.1:{client.port}/", "blob:", "data:"))


def settle(page: Page) -> None:
    page.wait_for_selector("body:not([aria-busy])")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
        settle(page)


def said(folder: Path) -> list[tuple[str, str, str | None]]:
    answers = Answers(folder / FILE, create=False)
    try:
        return [(one.labeller, one.verdict, one.label) for one in answers.standing()]
    finally:
        answers.close()


def test_every_key_does_what_the_help_says(browser: Browser, tmp_path: Path) -> None:
    verdicts = dataclasses.replace(made_up(12), given=np.zeros(12, np.int64), suggested=np.full(12, 1))
    with served(desk_in(tmp_path, verdicts)) as client, page_of(browser, client) as page:
        assert page.url == f"http://127.0.0.1:{client.port}/"  # the token is gone from the address
        first = page.inner_text("#id")
        press(page, "k", "a", "3", "1", "u", "s")
        expected: list[tuple[str, str, str | None]] = [
            ("Ada", "keep", "cat"),
            ("Ada", "relabel", "dog"),
            ("Ada", "relabel", "fox"),
            ("Ada", "keep", "cat"),
            ("Ada", "unsure", None),
            ("Ada", "skip", None),
        ]
        assert said(tmp_path) == expected
        assert page.inner_text("#counts").startswith("2 kept · 2 relabelled · 1 unsure · 1 skipped")
        press(page, "z", "Control+z")
        assert said(tmp_path) == expected[:4]
        press(page, "z", "z", "z", "z", "z")
        assert said(tmp_path) == []
        assert page.inner_text("#id") == first
        assert page.inner_text("#status") == "There is nothing to take back."
        press(page, "?")
        assert page.is_visible("#help")
        press(page, "k", "Escape")  # a dialog takes the keys
        assert not page.is_visible("#help")
        press(page, "n")
        page.keyboard.type("Bob 🦊")
        press(page, "Enter")
        assert page.inner_text("#labeller") == "Bob 🦊"
        press(page, "k")
        page.reload()
        page.wait_for_selector("#work:not([hidden])")
        settle(page)
        assert page.inner_text("#labeller") == "Bob 🦊"
        press(page, "k", "x", "7", "ArrowDown")
        assert said(tmp_path) == [("Bob 🦊", "keep", "cat")] * 2


def test_the_mouse_and_the_end(browser: Browser, tmp_path: Path) -> None:
    with served(desk_in(tmp_path, made_up(3))) as client, page_of(browser, client) as page:
        for button in ("#keep", "#unsure", "#skip"):
            page.click(button)
            settle(page)
        assert page.is_visible("#done")
        assert page.inner_text("#command") == "narl train DATA --clean runs/first --train-on-clean --out NEW"
        page.click("#undo-done")
        settle(page)
        assert page.is_visible("#work")
        page.click("#classes button:enabled")
        settle(page)
        assert [verdict for _, verdict, _ in said(tmp_path)] == ["keep", "unsure", "relabel"]


@pytest.mark.parametrize(("classes", "given"), [(("0", "1", "2", "3"), "3"), (("cat", "1", "2", "fox"), "2")])
def test_digits_mean_classes_that_are_called_so(
    browser: Browser, tmp_path: Path, classes: tuple[str, ...], given: str
) -> None:
    """Where not all are, digits count the classes from 1."""
    verdicts = dataclasses.replace(made_up(8, classes), given=np.zeros(8, dtype=np.int64))
    with served(desk_in(tmp_path, verdicts)) as client, page_of(browser, client) as page:
        assert page.locator("#classes kbd").all_inner_texts()[-1] == ("3" if classes[0] == "0" else "4")
        press(page, "3")
        assert said(tmp_path)[0][1:] == ("relabel", given)


def test_among_many_classes_one_is_found_by_its_name(browser: Browser, tmp_path: Path) -> None:
    classes = tuple(f"class {number}" for number in range(300))
    with served(desk_in(tmp_path, made_up(20, classes))) as client, page_of(browser, client) as page:
        assert page.locator("#classes button").count() == 60
        press(page, "5")  # digits are for few classes
        assert said(tmp_path) == []
        press(page, "/")
        page.keyboard.type("CLASS 27")
        assert page.locator("#classes button").count() == 11
        press(page, "ArrowDown", "ArrowDown", "ArrowUp", "Enter")
        assert said(tmp_path)[0][2] == "class 270"
        press(page, "k")  # the field has let go of the keys
        assert len(said(tmp_path)) == 2
        press(page, "/")
        page.keyboard.type("nothing like it")
        press(page, "Enter", "Escape")
        assert len(said(tmp_path)) == 2


@pytest.mark.parametrize("look", ["light", "phone"])
def test_hostile_labels_names_and_texts_stay_text(browser: Browser, tmp_path: Path, look: str) -> None:
    ids = np.array([f"{number}{name.replace(chr(0), '')}" for number, name in enumerate(NASTY)])
    verdicts = dataclasses.replace(made_up(len(NASTY), NASTY), ids=ids)
    inputs: Inputs = Texts(np.array(NASTY, dtype=object))
    looks = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True} if look == "phone" else {}
    with (
        served(desk_in(tmp_path, verdicts, inputs), run=NASTY[1]) as client,
        page_of(browser, client, **looks) as page,
    ):
        assert page.text_content("#run") == NASTY[1]
        for _ in NASTY:
            number = int((page.text_content("#id") or "")[0])
            if "\udcff" not in NASTY[number]:
                assert page.text_content("#text") == NASTY[number]
            assert page.title() == "narl review"
            assert page.locator("main script, main img[src='x'], main b").count() == 0
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0
            press(page, "u")
        assert page.is_visible("#done")


def test_images_are_enlarged_pixel_by_pixel(browser: Browser, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 16, 3), dtype=np.uint8)
    with served(desk_in(tmp_path, made_up(5), Images(pixels))) as client, page_of(browser, client) as page:
        box = page.locator("#image").bounding_box()
        assert box is not None
        assert (box["width"], box["height"]) == (192, 384)
        assert page.evaluate("getComputedStyle(document.getElementById('image')).imageRendering") == "pixelated"
        before = page.get_attribute("#image", "src")
        press(page, "k")
        assert page.get_attribute("#image", "src") != before


def test_without_a_token_or_a_server_nothing_is_lost(browser: Browser, tmp_path: Path) -> None:
    with served(desk_in(tmp_path)) as client:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{client.port}/")
        page.wait_for_selector("#trouble:not([hidden])")
        assert "open the link that narl printed" in page.inner_text("#trouble")
        assert not page.is_visible("#work")
        page.goto(f"http://127.0.0.1:{client.port}/#token={client.token}")
        page.wait_for_selector("#work:not([hidden])")
        settle(page)
        press(page, "k")
        kept = page.inner_text("#id")
    press(page, "k")  # the server is gone
    assert "does not answer" in page.inner_text("#trouble")
    assert page.inner_text("#id") == kept
    assert len(said(tmp_path)) == 1
    context.close()


def test_twenty_samples_by_keyboard_with_a_reload_in_between(browser: Browser, tmp_path: Path) -> None:
    verdicts = dataclasses.replace(made_up(20), given=np.zeros(20, np.int64), suggested=np.full(20, 1))
    with served(desk_in(tmp_path, verdicts)) as client, page_of(browser, client) as page:
        seen = []
        for number in range(20):
            if number == 10:
                page.reload()
                page.wait_for_selector("#work:not([hidden])")
                settle(page)
            seen.append(page.inner_text("#id"))
            if number % 5 == 4:  # a slip, taken back
                press(page, "u", "z")
                assert page.inner_text("#id") == seen[-1]
            press(page, "ka3"[number % 3])
        page.wait_for_selector("#done:not([hidden])")
    assert len(set(seen)) == 20
    expected = [("keep", "cat"), ("relabel", "dog"), ("relabel", "fox")]
    assert [(verdict, label) for _, verdict, label in said(tmp_path)] == [expected[number % 3] for number in range(20)]


def test_two_tabs_share_the_work(browser: Browser, tmp_path: Path) -> None:
    with (
        served(desk_in(tmp_path)) as client,
        page_of(browser, client) as left,
        page_of(browser, client) as right,
    ):
        assert left.inner_text("#id") != right.inner_text("#id")
        for _ in range(3):
            press(left, "k")
            press(right, "k")
        first = left.inner_text("#id")
        press(left, "u", "z")
        assert left.inner_text("#id") == first
    assert len(said(tmp_path)) == 6
