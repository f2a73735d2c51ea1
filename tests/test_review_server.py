"""A review over HTTP: tabs and labellers side by side, undo, samples as they are, hostile ones as text."""

from __future__ import annotations

import dataclasses
import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from narl.audit.review.answers import FILE, Answers
from narl.audit.review.server import Server
from narl.audit.samples import eight_bits
from narl.data.samples import ImageFiles, Images, Inputs, Table, Texts
from narl.errors import AnswersError, OptionError
from review_desk import NASTY, Client, desk_in, made_up, served


def standing(folder: Path) -> list[tuple[str, str, str, str | None]]:
    answers = Answers(folder / FILE, create=False)
    try:
        return [(one.labeller, one.sample, one.verdict, one.label) for one in answers.standing()]
    finally:
        answers.close()


def test_a_whole_review(tmp_path: Path) -> None:
    verdicts = made_up(9)
    with served(desk_in(tmp_path, verdicts)) as client:
        about = client.ask("GET", "/api/about").json
        assert about == {
            "run": "runs/first",
            "labeller": "Ada",
            "kind": "text",
            "samples": 9,
            "classes": ["cat", "dog", "fox"],
        }
        expected, shown = [], client.next()
        for turn in range(9):
            sample = shown["sample"]
            number = sample["number"]
            assert sample["id"] == f"sample-{number}"
            assert sample["content"]["text"] == f"text of sample {number}"
            assert sample["given"] == verdicts.given[number]
            verdict = ("keep", "relabel", "unsure", "skip")[turn % 4]
            other = (sample["given"] + 1) % 3
            shown = client.answer(number, verdict, other if verdict == "relabel" else None)
            right = {"keep": sample["given"], "relabel": other}.get(verdict)
            expected.append(("Ada", sample["id"], verdict, None if right is None else about["classes"][right]))
            assert standing(tmp_path) == expected  # on the disk before the reply
        assert shown["sample"] is None
        far = shown["progress"]
        assert (far["keep"], far["relabel"], far["unsure"], far["skip"], far["left"]) == (3, 2, 2, 2, 0)
        assert far["goal"] == 9
        assert 0 < far["reached"] <= 5


def test_undo_goes_back_answer_by_answer(tmp_path: Path) -> None:
    with served(desk_in(tmp_path)) as client:
        first = client.next()["sample"]["number"]
        second = client.answer(first, "keep")["sample"]["number"]
        client.answer(second, "unsure")
        back = client.undo()
        assert (back["undone"], back["sample"]["number"]) == ("unsure", second)
        assert client.next()["sample"]["number"] == second
        back = client.undo()
        assert (back["undone"], back["sample"]["number"]) == ("keep", first)
        assert back["progress"]["keep"] == back["progress"]["reached"] == 0
        assert client.undo()["undone"] is None
        assert standing(tmp_path) == []
        assert client.answer(first, "skip")["sample"]["number"] == second


def test_two_tabs_see_different_samples_and_two_labellers_the_same(tmp_path: Path) -> None:
    with served(desk_in(tmp_path)) as left:
        right, other = replace(left, tab="right"), replace(left, labeller="Bob")
        a, b = left.next()["sample"]["number"], right.next()["sample"]["number"]
        assert a != b
        assert left.next()["sample"]["number"] == a  # a reload shows it again
        assert other.next()["sample"]["number"] == a
        left.answer(a, "keep")
        other.answer(a, "unsure")
        right.answer(b, "keep")
        assert right.undo()["sample"]["number"] == b  # the tab's own, not the last
        assert [row[:3] for row in standing(tmp_path)] == [
            ("Ada", f"sample-{a}", "keep"),
            ("Bob", f"sample-{a}", "unsure"),
        ]


def test_with_once_nobody_sees_what_another_has_answered(tmp_path: Path) -> None:
    with served(desk_in(tmp_path, made_up(6), once=True)) as ada:
        bob = replace(ada, labeller="Bob")
        seen = []
        for client in (ada, bob, ada, bob, ada, bob):
            number = client.next()["sample"]["number"]
            client.answer(number, "keep")
            seen.append(number)
        assert sorted(seen) == list(range(6))
        assert ada.next()["sample"] is None
        assert bob.undo()["sample"]["number"] == seen[-1]


def test_eight_at_once_lose_nothing_and_see_nothing_twice(tmp_path: Path) -> None:
    done: dict[str, list[int]] = {"Ada": [], "Bob": []}

    def work(client: Client) -> None:
        shown = client.next()
        for _ in range(10):
            number = shown["sample"]["number"]
            shown = client.answer(number, "keep")
            done[client.labeller].append(number)

    with served(desk_in(tmp_path, made_up(100))) as client:
        clients = [replace(client, labeller=("Ada", "Bob")[k % 2], tab=f"tab-{k}") for k in range(8)]
        threads = [threading.Thread(target=work, args=(one,)) for one in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(len(set(numbers)) == 40 for numbers in done.values())
    assert {row[:2] for row in standing(tmp_path)} == {
        (who, f"sample-{number}") for who, numbers in done.items() for number in numbers
    }


def test_another_process_on_the_same_run_is_noticed(tmp_path: Path) -> None:
    with served(desk_in(tmp_path)) as first, served(desk_in(tmp_path)) as second:
        number = first.next()["sample"]["number"]
        following = first.answer(number, "keep")["sample"]["number"]
        shown = second.next()
        assert shown["sample"]["number"] == following
        assert shown["progress"]["keep"] == 1


def test_a_review_goes_on_after_the_server_was_stopped(tmp_path: Path) -> None:
    with served(desk_in(tmp_path)) as client:
        following = client.answer(client.next()["sample"]["number"], "keep")["sample"]["number"]
    desk = desk_in(tmp_path, made_up(29))  # another run on the same data: one sample is gone
    assert desk.strangers in (0, 1)
    with served(desk) as client:
        assert client.next()["progress"]["keep"] == 1 - desk.strangers
    with served(desk_in(tmp_path)) as client:
        assert client.next()["sample"]["number"] == following


def test_what_cannot_be_written_is_said_and_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*ignored: Any, **more: Any) -> int:
        raise AnswersError("nothing could be written (database or disk is full): answer again")

    with served(desk_in(tmp_path)) as client:
        number = client.next()["sample"]["number"]
        with monkeypatch.context() as patch:
            patch.setattr(Answers, "add", full)
            reply = client.post("/api/answer", labeller="Ada", tab="tab", sample=number, verdict="keep")
        assert reply.status == 507
        assert "disk is full" in reply.json["error"]
        assert client.next()["sample"]["number"] == number
        client.answer(number, "keep")


def decoded(client: Client, number: int) -> Any:
    reply = client.ask("GET", f"/api/image/{number}")
    assert (reply.status, reply.headers["content-type"]) == (200, "image/png")
    return np.asarray(PIL.Image.open(io.BytesIO(reply.body)))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_shown_pixel_by_pixel(tmp_path: Path, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 24, channels), dtype=np.uint8)
    with served(desk_in(tmp_path, made_up(4), Images(pixels))) as client:
        assert client.next()["sample"]["content"] == {"kind": "image"}
        shown = decoded(client, 2)
        assert np.array_equal(shown.reshape(32, 24, channels), pixels[2])


def test_images_in_files_and_one_that_is_broken(tmp_path: Path) -> None:
    for name, size in {"small.png": (20, 10), 'large "&<b>.jpg': (3000, 100)}.items():
        PIL.Image.new("RGB", size, (255, 0, 0)).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = ImageFiles(tmp_path, np.array(["small.png", 'large "&<b>.jpg', "broken.png", "missing.png"]))
    with served(desk_in(tmp_path, made_up(4), files)) as client:
        assert decoded(client, 0).shape == (10, 20, 3)
        assert decoded(client, 1).shape[1] == 1024
        for number, reason in {2: "no image at all", 3: "there is no image"}.items():
            reply = client.ask("GET", f"/api/image/{number}")
            assert reply.status == 422
            assert reason in reply.json["error"]


def test_floats_of_any_range_can_be_seen() -> None:
    unit = np.array([[[0.0], [0.5], [1.0]]])
    assert eight_bits(unit).ravel().tolist() == [0, 128, 255]
    assert eight_bits(unit * 254).ravel().tolist() == [0, 127, 254]
    assert eight_bits(unit * 4 - 2).ravel().tolist() == [0, 128, 255]
    assert eight_bits(np.array([[[np.nan], [np.inf]]])).ravel().tolist() == [0, 0]


def test_rows_of_tables_are_shown_by_column(tmp_path: Path) -> None:
    table = Table(np.array([[1.0, 1 / 3]] * 3), np.array([["<b>"]] * 3, dtype=object), ("width", "height"), ("colour",))
    with served(desk_in(tmp_path, made_up(3), table)) as client:
        content = client.next()["sample"]["content"]
    assert content["cells"] == [["width", "1"], ["height", "0.3333333"], ["colour", "<b>"]]


def nasty_inputs(kind: str) -> Inputs:
    words = np.array(NASTY, dtype=object)
    if kind == "text":
        return Texts(words)
    return Table(np.zeros((len(words), 0)), words[:, None], (), (NASTY[0],))


@pytest.mark.parametrize("kind", ["text", "table"])
def test_hostile_labels_names_and_texts_come_through_as_they_are(tmp_path: Path, kind: str) -> None:
    verdicts = dataclasses.replace(
        made_up(len(NASTY), NASTY), ids=np.array([f"{k}{name}" for k, name in enumerate(NASTY)])
    )
    with served(desk_in(tmp_path, verdicts, nasty_inputs(kind)), run=NASTY[0]) as client:
        about = client.ask("GET", "/api/about")
        assert about.headers["content-type"] == "application/json"
        assert about.json["classes"] == [*NASTY]
        shown = client.next()
        while shown["sample"]:
            sample = shown["sample"]
            content = sample["content"]
            said = content["text"] if kind == "text" else content["cells"][0][1]
            assert said == NASTY[sample["number"]]
            assert sample["id"] == f"{sample['number']}{said}"
            shown = client.answer(sample["number"], "relabel", (sample["given"] + 1) % len(NASTY))
    assert {(row[1][1:]) for row in standing(tmp_path)} == set(NASTY)


def test_long_texts_are_cut_and_it_is_said(tmp_path: Path) -> None:
    long = Texts(np.array(["ä" * 250_000] * 2, dtype=object))
    with served(desk_in(tmp_path, made_up(2), long)) as client:
        content = client.next()["sample"]["content"]
    assert (len(content["text"]), content["left_out"]) == (100_000, 150_000)


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    desk = desk_in(tmp_path)
    first = Server(desk, run="", labeller="Ada")
    assert first._socket.getsockname()[0] == "127.0.0.1"
    assert first.link == f"http://127.0.0.1:{first.port}/#token={first.token}"
    assert len(first.token) >= 40
    with pytest.raises(OptionError, match="leave it out, or give another one"):
        Server(desk, run="", labeller="Ada", port=first.port)
    first._socket.close()
    desk.close()
