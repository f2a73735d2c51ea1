"""The paper's figures: what is drawn equals what was computed another way, and what cannot be drawn is said."""

from __future__ import annotations

import importlib.util
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle, StepPatch
from numpy.typing import NDArray
from PIL import Image

from command_line import done, narl, refused
from made_up_runs import ASYMMETRIC, EPOCHS, MORE_SYMMETRIC, SYMMETRIC, enough, made_up
from narl.bench import figures, protocols
from narl.bench.cells import Task
from narl.bench.figures import Library
from narl.bench.figures.trainings import Histogram
from narl.bench.protocols import ADJUSTED, FIXED
from narl.bench.runs import Run
from narl.errors import ResultsError

ENOUGH = enough()


def drawn(number: int, runs: list[Run] = ENOUGH, schedule: str = "short") -> list[Axes]:
    return figures.draw(number, Library(runs, schedule)).figure.axes


def lines(panel: Axes) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    found = {str(line.get_label()): line for line in panel.get_lines()}
    return {
        name: (np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)) for name, line in found.items()
    }


def corners(band: Any) -> NDArray[np.float64]:
    """Of a filled band, ``(N, 2)``."""
    return np.asarray(band.get_paths()[0].vertices, float)


def written(folder: Path, runs: list[Run] = ENOUGH) -> Path:
    for run in runs:
        run.write(folder)
    return folder


def of(method: str, task: Task, runs: list[Run] = ENOUGH) -> list[Run]:
    return [run for run in runs if run.cell.method == method and run.cell.task == task]


def test_figure_1_has_the_losses_at_the_quantiles_of_q() -> None:
    histogram = of("A-GCE", SYMMETRIC)[0].samples["q"]
    for panel, group in zip(drawn(1), ("wrong", "right"), strict=True):
        found = lines(panel)
        p = found["CE"][0]
        np.testing.assert_allclose(found["CE"][1], -np.log(p))
        np.testing.assert_allclose(found["GCE, $q$ = 0.7"][1], (1 - p**0.7) / 0.7, rtol=1e-6)
        # an independent quantile: spread the samples evenly over their bins and sort them
        edges, counts = histogram["edges"], histogram[group]
        spread = [np.linspace(a, b, n) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]
        q = np.quantile(np.sort(np.concatenate(spread)), [0.1, 0.5, 0.9])
        np.testing.assert_allclose(found["A-GCE, median"][1], (1 - p ** q[1]) / q[1], rtol=2e-3, atol=1e-9)
        (band,) = panel.collections
        heights = corners(band)[:, 1]
        assert heights.max() == pytest.approx((1 - p[0] ** q[0]) / q[0], rel=2e-3)
        assert f"median $q$ = {q[1]:.2f}" in [text.get_text() for text in panel.texts]


def test_figure_2_has_the_closed_forms() -> None:
    panels = [lines(panel) for panel in drawn(2, [])]
    c = panels[0]["A-GCE"][0]
    assert (c[0], c[-1]) == (2, 1000)
    aware = np.log(c) + 1 / c - 1
    np.testing.assert_allclose(panels[0]["A-GCE"][1], aware)
    np.testing.assert_allclose(panels[1]["A-JS"][1], aware)
    for q in (0.5, 0.7, 0.9):
        np.testing.assert_allclose(panels[0][f"GCE, $q$ = {q}"][1], (c ** (1 - q) - 1) / q, rtol=1e-9)
    for pi1 in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(
            panels[1][rf"JS, $\pi_1$ = {pi1}"][1], [_js_gap(int(each), pi1) for each in c], rtol=1e-6
        )
    for panel, lam in zip(panels[2:], (6, 12), strict=True):
        printed = c * (lam - np.log(c)) / 2  # d = 2; no gap where it is negative
        np.testing.assert_allclose(panel["PolySoft, as printed"][1], np.where(printed < 0, np.nan, printed))
        np.testing.assert_allclose(panel["A-PolySoft, as printed"][1], lam / 2)
        tight = lam / 2 * (1 - np.clip(1 - np.log(c) / lam, 0, None) ** 2)
        np.testing.assert_allclose(panel["A-PolySoft"][1], tight, rtol=1e-9)
        own = panel["PolySoft"][1]
        assert ((own >= _seen_gap(c, lam) - 1e-9) & np.isfinite(own)).all()


def _js_gap(c: int, pi1: float) -> float:
    """From the definition: the sum over labels at a vertex, less that at the uniform prediction."""

    def js(p: NDArray[np.float64], label: int) -> float:
        e = np.eye(c)[label]
        m = pi1 * e + (1 - pi1) * p
        divergence = sum(
            weight * sum(a * math.log(a / b) for a, b in zip(one, m, strict=True) if a > 0)
            for weight, one in ((pi1, e), (1 - pi1, p))
        )
        return float(divergence / (-(1 - pi1) * math.log(1 - pi1)))

    uniform, vertex = np.full(c, 1 / c), np.eye(c)[0]
    return (c - 1) * js(vertex, 1) + js(vertex, 0) - c * js(uniform, 0)


def _seen_gap(c: NDArray[np.float64], lam: float) -> NDArray[np.float64]:
    """What PolySoft's sum moves between a vertex and the uniform prediction: no bound can be below that."""
    ceiling = lam / 2
    uniform = c * ceiling * (1 - np.clip(1 - np.log(c) / lam, 0, None) ** 2)
    return np.abs(np.asarray(uniform - (c - 1) * ceiling))


def bars(panel: Axes) -> dict[str, list[float]]:
    return {
        str(group.get_label()): [bar.get_height() for bar in group if isinstance(bar, Rectangle)]
        for group in panel.containers
        if hasattr(group, "patches") and group.patches
    }


def test_figure_5_has_means_deviations_and_seeds() -> None:
    (panel,) = drawn(5)
    found = bars(panel)
    assert list(found) == ["fixed", "adjusted"]
    for name, methods in (("fixed", FIXED), ("adjusted", ADJUSTED)):
        scores = [[100 * run.last5 for run in of(method, ASYMMETRIC)] for method in methods]
        np.testing.assert_allclose(found[name], np.mean(scores, axis=1))
    dots = [line.get_ydata() for line in panel.get_lines() if line.get_marker() == "o"]
    wanted = [100 * run.last5 for run in ENOUGH if run.cell.task == ASYMMETRIC]
    np.testing.assert_allclose(np.sort(np.concatenate(dots)), np.sort(wanted))
    stems = [np.ptp(corners(stem)[:, 1]) / 2 for stem in panel.collections]
    deviations = [np.std([100 * run.last5 for run in of(m, ASYMMETRIC)], ddof=1) for m in (*FIXED, *ADJUSTED)]
    np.testing.assert_allclose(stems, deviations)
    assert [text.get_text() for text in panel.get_xticklabels()] == list(FIXED)


def test_figure_5_without_repetition_has_no_deviation_and_shows_tuned_losses_where_there_are_some() -> None:
    single = [run for run in ENOUGH if run.cell.seed == 0]
    (panel,) = drawn(5, single)
    assert not panel.collections
    tuned = made_up("JS", ASYMMETRIC, tune=True, seed=4)
    (panel,) = drawn(5, [*single, tuned])
    found = bars(panel)
    assert list(found) == ["fixed", "fixed, tuned", "adjusted"]
    assert found["fixed, tuned"] == pytest.approx([100 * tuned.last5])
    (own,) = of("JS", ASYMMETRIC, single)
    assert found["fixed"][FIXED.index("JS")] == pytest.approx(100 * own.last5)


def test_figure_6_has_the_histograms_as_shares_of_their_group() -> None:
    for panel, (method, name) in zip(drawn(6), (("A-GCE", "q"), ("A-SL", "gamma1"), ("A-JS", "pi1")), strict=True):
        wanted = of(method, MORE_SYMMETRIC)[0].samples[name]
        found = {str(patch.get_label()): patch for patch in panel.patches if isinstance(patch, StepPatch)}
        for group in ("right", "wrong"):
            values, edges, _ = found[f"{group} labels"].get_data()
            np.testing.assert_allclose(values, 100 * np.array(wanted[group]) / sum(wanted[group]))
            np.testing.assert_allclose(edges, wanted["edges"])


def test_figure_6_prefers_the_papers_rate_and_then_the_highest_with_all_three() -> None:
    def title(runs: list[Run]) -> str:
        (legend,) = figures.draw(6, Library(runs)).figure.legends
        return str(legend.get_title().get_text())

    at_half = [made_up(method, Task("CIFAR-10", "symmetric", 0.5)) for method in ("A-GCE", "A-SL", "A-JS")]
    assert title(ENOUGH) == "CIFAR-10, 60 % symmetric noise"
    assert title(ENOUGH + at_half) == "CIFAR-10, 50 % symmetric noise"
    assert title(ENOUGH + at_half[1:]) == "CIFAR-10, 60 % symmetric noise"
    assert title([run for run in ENOUGH if run.cell.task == SYMMETRIC]) == "CIFAR-10, 40 % symmetric noise"
    with pytest.raises(ResultsError, match=r"figure6 .* --tasks cifar-10/symmetric-0\.5 --methods A-GCE "):
        figures.draw(6, Library(at_half[1:]))


def test_figure_7_has_the_adjusters_curves() -> None:
    figure = figures.draw(7, Library(ENOUGH)).figure
    wanted = of("A-SL", ASYMMETRIC)[0].adjuster  # its families differ in size, those under symmetric noise hardly
    panels = iter(figure.axes)
    for name in ("gamma1", "gamma2"):
        for snapshot in wanted["curves"]:
            found = lines(next(panels))
            for family, centre in enumerate(("2,000", "5,000", "8,000")):
                x, y = found[f"classes of about {centre} samples"]
                np.testing.assert_allclose(x, wanted["margins"])
                np.testing.assert_allclose(y, snapshot[name][family])
    assert [panel.get_title(loc="left") for panel in figure.axes[:3]] == [
        "(a) after a third",
        "(b) after two thirds",
        "(c) at the end",
    ]


def test_figure_7_leaves_heads_out_that_served_no_family() -> None:
    full = made_up("A-SL").adjuster
    one = {**full, "centres": full["centres"][:1]}  # all classes alike
    for panel in figures.draw(7, Library([made_up("A-SL", adjuster=one)])).figure.axes[:3]:
        assert len([label for label in lines(panel) if label.startswith("classes of about")]) == 1


def test_figure_7_takes_another_adjuster_where_there_is_no_a_sl_but_none_that_was_only_transferred() -> None:
    assert figures.draw(7, Library([made_up("A-JS"), made_up("A-PolySoft")])).note.startswith("A-JS on CIFAR-10 symm")
    transferred = replace(made_up("T-SL"), adjuster=made_up("A-SL").adjuster)
    with pytest.raises(ResultsError, match="A-SL"):
        figures.draw(7, Library([transferred, made_up("GCE")]))


def test_figure_8_has_means_bands_and_milestones() -> None:
    for panel, loss in zip(drawn(8), ("GCE", "JS"), strict=True):
        found = lines(panel)
        for band, (label, method) in zip(panel.collections, (("fixed", loss), ("adjusted", f"A-{loss}")), strict=True):
            values = np.array([run.curves["loss"] for run in of(method, SYMMETRIC)], float)
            mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
            np.testing.assert_array_equal(found[label][0], np.arange(1, EPOCHS + 1))
            np.testing.assert_allclose(found[label][1], mean)
            outline = corners(band)
            for epoch in (1, 17, EPOCHS):
                heights = outline[outline[:, 0] == epoch, 1]
                np.testing.assert_allclose(
                    [heights.min(), heights.max()], (mean + np.outer((-1, 1), spread))[:, epoch - 1]
                )
        falls = [
            np.asarray(line.get_xdata())[0] for line in panel.get_lines() if to_hex(line.get_color()) == to_hex("grey")
        ]
        assert falls == [40.5, 50.5]


def test_figure_8_leaves_a_gap_where_a_loss_is_unknown_and_refuses_half_a_training() -> None:
    runs = [made_up(method) for method in ("GCE", "A-GCE", "JS", "A-JS")]
    runs[0].curves["loss"][3] = None
    assert np.isnan(lines(drawn(8, runs)[0])["fixed"][1][3])
    short = made_up("GCE", seed=1)
    del short.curves["loss"][30:]
    with pytest.raises(ResultsError, match=r"GCE on CIFAR-10 symmetric 0\.4 have losses of 30 and 60 epochs"):
        figures.draw(8, Library([*runs, short]))


def test_variants_other_models_and_other_schedules_are_not_drawn() -> None:
    changes: list[dict[str, Any]] = [
        {"options": (("margin", "latest"),)},
        {"model": "resnet34"},
        {"schedule": "paper"},
        {"heldout": 0.2},
        {"tune": True},
    ]
    others = [replace(run, cell=replace(run.cell, **change)) for run in ENOUGH for change in changes]
    for number in (1, 5, 6, 8):
        with pytest.raises(ResultsError):
            figures.draw(number, Library([run for run in others if run.cell.schedule == "short"]))
    assert bars(drawn(5, [*ENOUGH, *[run for run in others if not run.cell.tune]])[0]) == bars(drawn(5)[0])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_and_stay_in_the_bins_that_hold_something(counts: list[int], one: float, other: float) -> None:
    edges = np.linspace(-1, 3, len(counts) + 1)
    found = Histogram(edges, np.array(counts, float), np.array(counts, float))
    low, high = (found.quantile(share, wrong=True) for share in sorted((one, other)))
    assert low <= high
    full = np.flatnonzero(counts)
    if min(one, other) > 0 and max(one, other) < 1:
        assert edges[full[0]] <= low
        assert high <= edges[full[-1] + 1] + 1e-12


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ({}, "has no histogram of q"),
        ({"q": {"edges": [0, 1], "right": [3]}}, "has no histogram of q"),
        ({"q": {"edges": [0, 1], "right": [3, 4], "wrong": [1, 2]}}, "do not fit"),
        ({"q": {"edges": [1, 0], "right": [3], "wrong": [1]}}, "do not fit"),
        ({"q": {"edges": [0, 1], "right": [3], "wrong": [0]}}, "no samples"),
    ],
)
def test_results_without_what_is_drawn_are_named(samples: dict[str, Any], problem: str) -> None:
    with pytest.raises(ResultsError, match=problem) as refusal:
        figures.draw(1, Library([made_up("A-GCE", samples=samples)]))
    assert "cifar-10/symmetric-0.4/resnet32-short/a-gce-seed0" in str(refusal.value)


@pytest.mark.parametrize("adjuster", [{"margins": [0.0]}, {"margins": [0.0], "centres": [1.0], "curves": []}])
def test_results_with_half_an_adjuster_are_named(adjuster: dict[str, Any]) -> None:
    with pytest.raises(ResultsError, match="a-sl-seed0 has"):
        figures.draw(7, Library([made_up("A-SL", adjuster=adjuster)]))


def test_the_command_draws_all_figures(tmp_path: Path) -> None:
    results, out = written(tmp_path / "results"), tmp_path / "new" / "figures"
    answer = done("figures", "--results", results, "--out", out, "--format", "png")
    assert answer.err == ""
    assert "A-GCE on CIFAR-10 symmetric 0.4, ResNet-32, short schedule, seed 0" in answer.out
    paths = [out / f"figure{number}.png" for number in (1, 2, 5, 6, 7, 8)]
    assert sorted(out.iterdir()) == paths
    for path in paths:
        assert str(path) in answer.out
        with Image.open(path) as image:
            assert image.width in (round(3.5 * 300), round(7.16 * 300))


def test_the_same_results_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = written(tmp_path / "results", [run for run in ENOUGH if run.cell.task == SYMMETRIC])
    asked = ("figures", 1, 8, "--results", results, "--format", "svg", "--format", "pdf", "--format", "png")
    done(*asked, "--out", tmp_path / "one")
    import matplotlib

    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": "other"}):  # a user's own settings play no part
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
        done(*asked, "--out", tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
        assert path.read_bytes().startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF-"}[path.suffix])
    assert len([*(tmp_path / "one").iterdir()]) == 6


def test_what_is_missing_is_named_with_its_command_and_the_rest_is_drawn(tmp_path: Path) -> None:
    results = written(tmp_path / "results", of("GCE", SYMMETRIC) + of("A-GCE", SYMMETRIC))
    answer = done("figures", "--results", results, "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["figure1.svg", "figure2.svg", "figure7.svg"]
    said = answer.err.splitlines()
    assert [line.split(" is not drawn")[0] for line in said] == [f"narl: figure {number}" for number in (5, 6, 8)]
    assert said[2].endswith(
        "no training of JS and A-JS on CIFAR-10 symmetric 0.4 with the short schedule; make it with: narl bench run "
        f"table1 --data FOLDER --tasks cifar-10/symmetric-0.4 --methods JS,A-JS --schedule short --results {results}"
    )
    for line in said:
        words = shlex.split(line.partition("make it with: ")[2])
        chosen = dict(zip(words[4::2], words[5::2], strict=True))
        protocol = protocols.get(words[3])
        cells = protocol.cells(methods=chosen["--methods"].split(","), tasks=[chosen["--tasks"]])
        assert [cell.method for cell in cells] == chosen["--methods"].split(",")


def test_a_figure_that_was_asked_for_and_cannot_be_drawn_decides_the_exit_code(tmp_path: Path) -> None:
    answer = narl("figures", 8, 2, "--results", tmp_path / "none", "--out", tmp_path)
    assert answer.code == 2
    assert answer.err.startswith("narl: figure 8 is not drawn")
    assert (tmp_path / "figure2.svg").exists()
    assert narl("figures", 2, "--results", tmp_path / "none", "--out", tmp_path).code == 0


def test_the_other_schedule_is_pointed_to(tmp_path: Path) -> None:
    results = written(tmp_path / "results", [made_up("A-GCE", schedule="paper")])
    answer = narl("figures", 1, "--results", results, "--out", tmp_path)
    assert "with the short schedule (there is one with --schedule paper); make it with" in answer.err
    done("figures", 1, "--results", results, "--out", tmp_path, "--schedule", "paper")


def test_mistakes_end_in_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "figure 3 shows neither results nor theory: choose from 1, 2, 5, 6, 7 and 8" in refused("figures", 3)
    assert "NUMBER" in refused("figures", "two")
    assert "'gif'" in refused("figures", "--format", "gif")
    (tmp_path / "file").touch()
    assert "choose another" in refused("figures", 2, "--out", tmp_path / "file")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "broken.json").write_text("{")
    assert "broken.json is not the result of a training" in refused("figures", "--results", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = refused("figures", 2, "--results", tmp_path / "none", "--out", tmp_path)
    assert "pip install 'narl[figures]'" in line
