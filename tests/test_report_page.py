"""The file of a report: whole, closed to everything outside, and made of a real run."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from command_line import CLASSES, done, refused, rings
from narl.audit import from_run
from narl.audit.report import write_report
from narl.errors import RunFolderError
from report_pages import data_in, made_up


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with a clean set; the truth is known."""
    folder = tmp_path_factory.mktemp("audited")
    short = ("--epochs", 3, "--device", "cpu", "--threads", 1, "--no-tensorboard")
    done("train", rings(folder / "rings.csv"), "--clean", 24, "--out", folder / "run", *short)
    return folder / "run"


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    return write_report(from_run(run), run.parent / "out" / "report.html", run=run)


def test_a_run_is_shown(run: Path, report: Path) -> None:
    data, verdicts = data_in(report), from_run(run)
    assert data["samples"] == len(verdicts)
    assert data["flagged"] == verdicts.wrong.sum()
    assert data["classes"] == list(CLASSES) == list(verdicts.class_names)
    assert data["kind"] == "table"
    assert 0.1 < data["noise"]["actual"] < 0.4
    assert data["curves"]["epochs"] == [1, 2, 3]
    assert set(data["curves"]["shares"]) >= {"accuracy on the test set", "agreement with the given labels"}
    assert [entry["name"] for entry in data["hyperparameters"]] == ["q"]
    for family in data["hyperparameters"][0]["families"]:
        assert family["margin"] == sorted(family["margin"])
        assert all(low <= high for low, high in zip(family["low"], family["high"], strict=True))
    first = data["gallery"]["samples"][0]
    assert first["id"] == verdicts.ids[verdicts.order()[0]]
    assert [name for name, _ in first["cells"]] == ["east", "north", "colour"]
    line = next(line for line in (run.parent / "rings.csv").read_text().splitlines() if line.startswith(first["id"]))
    assert float(line.split(",")[1]) == pytest.approx(float(first["cells"][0][1]), abs=1e-5)
    settings = {name: value for _, name, value in data["settings"]}
    assert settings["method"] == "A-GCE"
    assert settings["epochs"] == "3"
    assert settings["seed"] == "0"


def test_the_file_is_closed(report: Path) -> None:
    text = report.read_text()
    assert report.stat().st_size < 10_000_000
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in rules["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    assert len(scripts) == 3
    for ours in scripts[:2]:
        assert "innerHTML" not in ours
        assert "insertAdjacentHTML" not in ours
        assert "document.write" not in ours
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#)', outside)
    assert not re.search(r"\son\w+=", outside)


def test_the_same_audit_makes_the_same_file(run: Path, report: Path, tmp_path: Path) -> None:
    again = write_report(from_run(run), tmp_path / "again.html", run=run)
    assert again.read_bytes() == report.read_bytes()


def test_data_that_is_gone_leaves_the_verdicts(run: Path, tmp_path: Path) -> None:
    verdicts = from_run(run)
    data = run.parent / "rings.csv"
    data.rename(tmp_path / "elsewhere.csv")
    try:
        shown = data_in(write_report(verdicts, tmp_path / "report.html", run=run))
    finally:
        (tmp_path / "elsewhere.csv").rename(data)
    assert len(shown["notes"]) == 1
    assert "rings.csv" in shown["notes"][0]
    assert shown["kind"] is None
    assert shown["noise"]["actual"] is None
    assert "cells" not in shown["gallery"]["samples"][0]
    assert shown["curves"] is not None


def test_predictions_made_elsewhere(tmp_path: Path) -> None:
    verdicts, _ = made_up(50)
    data = data_in(write_report(verdicts, tmp_path / "report.html"))
    assert data["curves"] is None
    assert data["settings"] == data["hyperparameters"] == []
    assert len(data["gallery"]["samples"]) == 50


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    verdicts, _ = made_up(5)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RunFolderError, match="cannot write"):
        write_report(verdicts, tmp_path / "report.html")
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot write"):
        write_report(verdicts, tmp_path / "file" / "report.html")
    with pytest.raises(RunFolderError, match="no folder nowhere"):
        write_report(verdicts, tmp_path / "x", run="nowhere")


def test_the_command_writes_it(run: Path, report: Path, tmp_path: Path) -> None:
    answer = done("audit", run, "--out", tmp_path)
    assert "report.html" in answer.out
    assert (tmp_path / "report.html").read_bytes() == report.read_bytes()
    assert "exists already" in refused("audit", run, "--out", tmp_path)
    answer = done("audit", run, "--out", tmp_path / "tables", "--no-report", "--no-calibrate")
    assert "report.html" not in answer.out
    assert not (tmp_path / "tables" / "report.html").exists()


def test_the_command_without_the_extra(run: Path, tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"plotly": None}):
        answer = done("audit", run, "--out", tmp_path, "--no-calibrate")
    assert (tmp_path / "labels.csv").exists()
    assert not (tmp_path / "report.html").exists()
    assert "report.html" not in answer.out
    (line,) = answer.err.splitlines()
    assert line.startswith("narl: no report.html is written: ")
    assert "pip install 'narl[report]'" in line
