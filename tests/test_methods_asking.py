"""What methods may ask of the training loop beyond a batch: networks, views, a look at all samples, their own rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from narl import StepReport, margin
from narl.bilevel import Processes
from narl.errors import OptionError
from narl.models.committee import Committee, Networks
from narl.train import Settings, Trained, plan, resume, start
from narl.train.assembly import assemble
from narl.train.methods import Method, Setting, descend
from narl.train.methods.base import Look
from narl.train.record import SampleRecord
from test_train_session import StopAt, files

SIDE, SAMPLES, BATCH, EPOCHS = 8, 48, 8, 3


class Greedy(Method):
    """Asks for everything: two networks with averages, three views, a look, rows of its own."""

    networks = Networks(2, averaged=True)
    fields = ("probability",)
    views = ("usual", "usual", "strong")
    log: list[tuple[Any, ...]] = []  # noqa: RUF012  what the last run was given

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.model, Committee)
        self.setting, self.committee = setting, setting.model
        self.easy = torch.zeros(setting.num_samples, dtype=torch.bool)
        self.steps = 0
        self.log.clear()

    def begin_epoch(self, epoch: int, look: Look) -> None:
        labels = self.setting.labels
        assert labels is not None
        logits = [look(member) for member in self.committee.members]
        assert self.committee.training
        self.log.append(("begin", epoch, [found.clone() for found in logits]))
        values = sum(nn.functional.cross_entropy(found, labels, reduction="none") for found in logits)
        assert isinstance(values, Tensor)
        self.easy = values <= values.median()

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        if epoch == 0:
            return None
        easy = self.easy.nonzero().squeeze(1)
        return list(torch.split(easy[torch.randperm(len(easy), generator=generator)], 6))

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        self.log.append(("step", ids.tolist(), x, self.setting.optimizer.param_groups[0]["lr"]))
        number = self.steps % 2
        member = self.committee.members[number]
        loss, logits = descend(
            member,
            self.setting.optimizer,
            torch.cat(x),
            y.repeat(3),
            lambda logits: nn.functional.cross_entropy(logits, y.repeat(3), reduction="none"),
        )
        self.committee.follow(0.9, [number])
        self.steps += 1
        p = logits[: len(y)].softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        return StepReport(loss, None, {"probability": p}, margin(logits[: len(y)], y))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "easy": self.easy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.easy = state["steps"], state["easy"].bool()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, SAMPLES)
    images = rng.integers(0, 160, (SAMPLES, SIDE, SIDE, 3)) + 30 * labels[:, None, None, None]
    path = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(path, x=images.astype(np.uint8), y=labels)
    return path


@pytest.fixture(autouse=True)
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method of this module, under a name by which runs find it again."""
    monkeypatch.setitem(sys.modules, "greedy_methods", sys.modules[__name__])


def asked(data: Path, method: str = "greedy_methods:Greedy", **changes: Any) -> Settings:
    usual = {"test": "none", "epochs": EPOCHS, "batch_size": BATCH, "model": "convnet", "schedule": "cosine"}
    return Settings(data=str(data), method=method, device="cpu", threads=1, **{**usual, **changes})


def test_a_method_is_given_what_it_asks_for(pictures: Path, tmp_path: Path) -> None:
    made = plan(asked(pictures))
    assert start(made, tmp_path / "run", tensorboard=False).finished
    begins = [entry for entry in Greedy.log if entry[0] == "begin"]
    assert [entry[1] for entry in begins] == [0, 1, 2]
    assert all(found.shape == (SAMPLES, 3) for entry in begins for found in entry[2])
    fresh = made.model().eval()
    assert isinstance(fresh, Committee)
    x = made.encoder.finish(made.encoder.encode(made.sets.train.inputs))
    for member, found in zip(fresh.members, begins[0][2], strict=True):
        torch.testing.assert_close(found, member(x), rtol=1e-5, atol=1e-6)

    steps = [entry for entry in Greedy.log if entry[0] == "step"]
    assert len(steps) == 6 + 4 + 4  # all samples, then the easier half in sixes, twice
    assert sorted(row for entry in steps[:6] for row in entry[1]) == list(range(SAMPLES))
    assert len({row for entry in steps[6:10] for row in entry[1]}) == SAMPLES // 2
    first, second, strong = steps[0][2]
    assert first.shape == second.shape == strong.shape == (BATCH, 3, SIDE, SIDE)
    assert not torch.equal(first, second)
    assert not torch.equal(first, strong)
    rates = [entry[3] for entry in steps]
    expected = [0.05 * (1 + np.cos(np.pi * step / 18)) for step in (*range(6), 6, 7, 9, 10, 12, 13, 15, 16)]
    np.testing.assert_allclose(rates, expected)

    record = SampleRecord.open(tmp_path / "run")
    assert np.isfinite(record.read("probability")).all()  # of samples that an epoch leaves out: what is known of them
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < entry["loss"] < 5 for entry in metrics)


def test_a_committee_is_kept_and_predicts_as_it_was_evaluated(pictures: Path, tmp_path: Path) -> None:
    outcome = start(plan(asked(pictures, test="0.25")), tmp_path / "run", tensorboard=False)
    trained = Trained(tmp_path / "run", device="cpu")
    assert isinstance(trained.model, Committee)
    assert trained.model.averages is not None
    test = plan(asked(pictures, test="0.25")).sets.test
    assert test is not None
    found = trained.predict(test.inputs)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert (found.argmax(1) == test.labels).mean() == outcome.summary["last"]["test_accuracy"]


def test_a_run_that_asks_for_everything_goes_on_bitwise(pictures: Path, tmp_path: Path) -> None:
    assert start(plan(asked(pictures)), tmp_path / "whole", tensorboard=False).finished
    stops = [3, 3, 2, 1]  # in an epoch, at an epoch's end, and twice in one with rows of its own
    run = tmp_path / "parts"
    assert not start(plan(asked(pictures)), run, observer=StopAt(stops[0]), tensorboard=False).finished
    for stop in stops[1:]:
        assert not resume(run, observer=StopAt(stop), tensorboard=False).finished
    assert resume(run, tensorboard=False).finished
    assert files(run) == files(tmp_path / "whole")


class Empty(Greedy):
    """Chooses nothing."""

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        return []


class Beyond(Greedy):
    """Chooses a sample that there is not."""

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        return [torch.tensor([0, 1]), torch.tensor([3, SAMPLES])]


class Real(Greedy):
    """Chooses by numbers that are no positions."""

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        return [torch.tensor([0.5])]


class InPlace(Greedy):
    """Changes the usual batches where they are."""

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        return None

    def redrawn(self, batches: list[Tensor], epoch: int, generator: torch.Generator) -> list[Tensor]:
        batches[-1] = torch.tensor([3, SAMPLES])
        return batches


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("InPlace", "chooses sample 48 of 48"),
        ("Empty", "chooses no batch"),
        ("Beyond", "chooses sample 48 of 48"),
        ("Real", "give int64 positions"),
    ],
)
def test_rows_that_cannot_be_are_refused(method: str, words: str, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        start(plan(asked(pictures, f"greedy_methods:{method}")), tmp_path / "run", tensorboard=False)


def test_several_processes_are_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "together", lambda self, work: work())
    monkeypatch.setattr(Processes, "same", lambda self, tensors: None)
    with pytest.raises(OptionError, match=r"greedy_methods:Greedy trains several networks.*start it without torchrun"):
        assemble(plan(asked(pictures)), processes=Processes(0, 2))


def test_ordinary_methods_ask_for_nothing(pictures: Path) -> None:
    loop = assemble(plan(asked(pictures, "GCE")))
    assert not loop.method.asks_more
    assert not isinstance(loop.model, Committee)
    assert Greedy.views
