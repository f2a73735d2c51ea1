"""Progress: what is seen on a terminal and in a log, and what it costs."""

from __future__ import annotations

import contextlib
import io
import re
import time
from typing import Any

import pytest
import torch
from rich.console import Console

from narl.cli.progress import Counting, TrainingProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that passes, to be set by the test."""
    now = [100.0]
    monkeypatch.setattr("narl.cli.progress.time.monotonic", lambda: now[0])
    return now


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=150, color_system=None), file


def plain(file: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def record(epoch: int, **values: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": 1.2341, "meta_loss": 0.987, "test_accuracy": 0.8123, **values}


def test_a_line_an_epoch_where_there_is_no_terminal(clock: list[float]) -> None:
    screen, file = console(terminal=False)
    with TrainingProgress(30, 10, console=screen) as progress:
        progress.start(0)
        for epoch in range(1, 4):
            for _ in range(10):
                progress.step(1.0, 0.5)
            clock[0] += 4.0
            progress.epoch(record(epoch))
    assert file.getvalue().splitlines() == [
        "epoch 1/30  loss 1.234  meta 0.987  test 81.2 %  (0:04 left 1:56)",
        "epoch 2/30  loss 1.234  meta 0.987  test 81.2 %  (0:08 left 1:52)",
        "epoch 3/30  loss 1.234  meta 0.987  test 81.2 %  (0:12 left 1:48)",
    ]


def test_a_resumed_run_counts_from_where_it_was_but_times_only_itself(clock: list[float]) -> None:
    screen, file = console(terminal=False)
    with TrainingProgress(4, 100, title="GCE q=0.7", console=screen) as progress:
        progress.start(250)  # half of epoch 3 was done before
        for _ in range(50):
            progress.step(1.0)
        clock[0] += 60.0
        progress.epoch(record(3, meta_loss=None))
        for _ in range(100):
            progress.step(1.0)
        clock[0] += 120.0
        progress.epoch(record(4, meta_loss=None))
    assert file.getvalue().splitlines() == [
        "GCE q=0.7  epoch 3/4  loss 1.234  test 81.2 %  (1:00 left 2:00)",
        "GCE q=0.7  epoch 4/4  loss 1.234  test 81.2 %  (3:00 left 0:00)",
    ]


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ({"loss": 0.5}, "loss 0.500  ("),
        ({"loss": float("nan"), "test_accuracy": None}, "loss nan  ("),
        ({"loss": 0.5, "heldout_accuracy": 0.5}, "loss 0.500  heldout 50.0 %  ("),
        ({"loss": 0.5, "heldout_accuracy": 0.5, "test_accuracy": 1.0}, "loss 0.500  heldout 50.0 %  test 100.0 %  ("),
        ({}, "epoch 1/2  ("),
    ],
)
def test_what_is_not_known_is_not_shown(clock: list[float], values: dict[str, Any], numbers: str) -> None:
    screen, file = console(terminal=False)
    with TrainingProgress(2, 5, console=screen) as progress:
        progress.start()
        progress.epoch({"epoch": 1, **values})
    assert numbers in file.getvalue()
    assert "None" not in file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_notes_stand_on_lines_of_their_own(terminal: bool) -> None:
    note = "[bold]stopping[/bold] after this step 3/4 " + "x" * 200
    screen, file = console(terminal)
    with TrainingProgress(2, 5, console=screen) as progress:
        progress.start()
        progress.note(note)
    assert note in [line.strip() for line in re.split(r"[\r\n]", plain(file))]


def test_a_bar_on_a_terminal(clock: list[float]) -> None:
    screen, file = console(terminal=True)
    with TrainingProgress(30, 10, title="A-GCE", console=screen) as progress:
        progress.start(20)
        clock[0] += 1.0
        progress.step(torch.tensor(1.5), torch.tensor(0.25))
        progress._bar.refresh()
        assert "A-GCE  epoch 3/30" in plain(file)
        assert "loss 1.500  meta 0.250  left 4:39" in plain(file)  # 279 steps at one a second
        progress.epoch(record(3))
        progress._bar.refresh()
        assert "test 81.2 %" in plain(file)
        assert progress._bar.tasks[0].completed == 10  # the end of epoch 3, not the beginning of 4
        clock[0] += 1.0
        progress.step(1.0)
        assert progress._bar.tasks[0].completed == 1
        assert "epoch 4/30" in progress._bar.tasks[0].description
        assert "meta 0.250" in progress._bar.tasks[0].fields["numbers"]  # the last one there was
    assert "\x1b[?25h" in file.getvalue()  # the cursor is back


def test_the_bar_goes_away_when_the_training_fails() -> None:
    screen, file = console(terminal=True)
    with contextlib.suppress(KeyError), TrainingProgress(3, 5, console=screen) as progress:
        progress.start()
        raise KeyError
    assert file.getvalue().count("\x1b[?25h") == file.getvalue().count("\x1b[?25l") == 1


class Costly:
    """A loss that counts how often somebody waits for it, as one waits for a tensor on a GPU."""

    looked = 0

    def __float__(self) -> float:
        Costly.looked += 1
        return 1.0


@pytest.mark.parametrize(("terminal", "looks"), [(False, 0), (True, 10)])
def test_losses_are_looked_at_a_few_times_a_second(clock: list[float], terminal: bool, looks: int) -> None:
    screen, _ = console(terminal)
    Costly.looked = 0
    with TrainingProgress(3, 10_000, console=screen) as progress:
        progress.start()
        for _ in range(2000):  # two seconds of a thousand steps each
            clock[0] += 0.001
            progress.step(Costly())
    assert looks - 2 <= Costly.looked <= looks


def test_steps_cost_next_to_nothing() -> None:
    screen, _ = console(terminal=True)
    with TrainingProgress(1, 100_000, console=screen) as progress:
        progress.start()
        loss = torch.tensor(1.0)
        began = time.perf_counter()
        for _ in range(20_000):
            progress.step(loss, loss)
        assert (time.perf_counter() - began) / 20_000 < 50e-6


def test_counting(clock: list[float]) -> None:
    for total in (20_000, None):
        screen, file = console(terminal=False)
        with Counting(total, "decoding images", console=screen) as count:
            count(5000)
            clock[0] += 35.0
            count(20_000)
        assert file.getvalue() == "decoding images: 20,000 (0:35)\n"
        screen, file = console(terminal=True)
        with Counting(total, "decoding [b]images", console=screen) as count:
            count(5000)
            count._bar.refresh()
        assert "decoding [b]images" in plain(file)
        assert "5000/20000" in plain(file) if total else "5000/?" in plain(file)


def test_short_or_failed_counting_leaves_no_line(clock: list[float]) -> None:
    screen, file = console(terminal=False)
    with Counting(10, "reading", console=screen) as count:
        count(10)
    with contextlib.suppress(KeyError), Counting(10, "reading", console=screen) as count:
        clock[0] += 60.0
        raise KeyError
    assert file.getvalue() == ""
