"""GPUs that several trainings share: whose daemon it is, and when there is none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from narl.bench.sharing import shared_gpus
from narl.errors import NarlWarning, OptionError
from small_grid import script


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, as far as anyone asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A daemon's control that writes down how it is called; FAIL beside it lets it fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = folder / "calls"
    script(
        folder / "nvidia-cuda-mps-control",
        f'echo "$* pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY $(test "$1" || cat)" >> {calls}\n'
        f'test -d "$CUDA_MPS_PIPE_DIRECTORY" && test -d "$CUDA_MPS_LOG_DIRECTORY" && ! test -e {folder}/FAIL',
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return calls


def test_a_daemon_of_ones_own(gpus: None, control: Path) -> None:
    with shared_gpus("cuda", None) as slots:
        (begun,) = control.read_text().splitlines()
        pipe = slots[0]["CUDA_MPS_PIPE_DIRECTORY"]
        assert begun.strip() == f"-d pipe={pipe} log={slots[0]['CUDA_MPS_LOG_DIRECTORY']}"
        assert len(slots) == 12
        assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1"] * 6, "GPUs in turns"
        assert {slot["CUDA_MPS_PIPE_DIRECTORY"] for slot in slots} == {pipe}
        assert Path(pipe).is_dir()
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert control.read_text().splitlines()[1:] == [f" pipe={pipe} log={slots[0]['CUDA_MPS_LOG_DIRECTORY']} quit"]
    assert not Path(pipe).parent.exists()


def test_the_daemon_is_ended_after_an_error(gpus: None, control: Path) -> None:
    def stopped() -> None:
        with shared_gpus("auto", 3) as slots:
            assert len(slots) == 6
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [line.split()[-1] for line in control.read_text().splitlines()][1:] == ["quit"]


def test_no_daemon_where_it_gains_nothing(gpus: None, control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_gpus("cuda", 1) as slots:
        assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1"]
        assert not any(name.startswith("CUDA_MPS") for slot in slots for name in slot)
    with shared_gpus("cpu", None) as slots:
        assert slots == [{}]
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somebody/elses")
    with shared_gpus("cuda", None) as slots:
        assert len(slots) == 12
        assert slots[0]["CUDA_MPS_PIPE_DIRECTORY"] == "/somebody/elses"
    assert not control.exists()


def test_a_daemon_that_does_not_start(gpus: None, control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (control.parent / "FAIL").touch()
    with shared_gpus("cuda", None) as slots:
        assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1"], "one at a time on each"
    assert len(control.read_text().splitlines()) == 1, "nothing to quit"
    with pytest.warns(NarlWarning, match="3 trainings on a GPU take turns .* did not start"), shared_gpus("cuda", 3):
        pass
    monkeypatch.setenv("PATH", "/nowhere")
    with shared_gpus("cuda", None) as slots:
        assert len(slots) == 2


def test_which_gpus(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-7f")
    monkeypatch.setenv("PATH", "/nowhere")
    with contextlib.ExitStack() as stack:
        with pytest.warns(NarlWarning, match="is not installed; see to that"):
            slots = stack.enter_context(shared_gpus("cuda", 2))
        assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["3", "GPU-7f"] * 2
        cores = max(1, (os.cpu_count() or 1) // 4)
        assert {slot["OMP_NUM_THREADS"] for slot in slots} == {str(cores)}
    with pytest.raises(OptionError, match="0 trainings at once are none: give at least 1"), shared_gpus("cuda", 0):
        pass
