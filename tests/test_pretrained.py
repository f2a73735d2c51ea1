"""Adjusters that were learned before: snapshots that know when they were taken, packs, releases, the hub."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

import narl
from command_line import done, refused
from made_up_runs import made_up
from methods_problem import setting_of
from narl import AdjustedLoss, Adjuster, losses
from narl.adjuster import packs, pretrained
from narl.adjuster.packs import Pack
from narl.adjuster.turns import after_fixed, in_turn
from narl.bench import adjusters as learning
from narl.bench import protocols, releases
from narl.bench.runs import Run
from narl.errors import AdjusterFileError, MissingExtraError, OptionError, ResultsError, UnknownNameError
from narl.integrations.learning import start
from narl.train import adjusters, defaults, methods
from narl.train.settings import Settings
from small_grid import points

LOGITS, LABELS = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]), torch.tensor([0, 2])


def snapshot(taken: float | None, q: float = 0.5, **options: Any) -> Adjuster:
    """One that gives every sample the same q."""
    made = Adjuster("gce", [5, 5], generator=torch.Generator().manual_seed(0), **options)
    low, high = made.spans["q"]
    share = (q - low) / (high - low)
    with torch.no_grad():
        made.heads.bias.fill_(float(torch.logit(torch.tensor(share))))
    made.taken = taken
    return made


def along(count: int = 3, **options: Any) -> list[Adjuster]:
    """Snapshots of before a training and along it, told apart by their q: 0.1, 0.2, …, at most 0.9."""
    return [snapshot(number / count, min(0.1 * (number + 1), 0.9), **options) for number in range(count + 1)]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What narl ships is in a folder of the test's own."""
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setattr(pretrained, "WEIGHTS", folder)
    return folder


def ship(folder: Path, name: str = "gce-1", snapshots: list[Adjuster] | None = None) -> Path:
    path = folder / f"{name}.safetensors"
    loss, _, version = name.rpartition("-")
    own = snapshots or along()
    assert own[0].robust_loss.name == loss
    packs.write(path, Pack(tuple(own), name, version, "nine tasks"))
    path.with_suffix(".md").write_text("# A card\n")
    (folder / pretrained.SUMS).write_text(releases._sums(folder))
    return path


def q_at(criterion: AdjustedLoss, progress: float) -> float:
    criterion(LOGITS, LABELS, progress=progress)
    return round(float(criterion.last.hyperparameters["q"][0]), 4)


# Snapshots that know when they were taken


def test_each_serves_from_the_time_on_at_which_it_was_taken() -> None:
    criterion = AdjustedLoss(along(), [5, 5, 5])
    assert [q_at(criterion, at) for at in (0, 0.3, 0.34, 0.66, 0.67, 1)] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert len(criterion.snapshots) == 3, "the one of the end never serves"


def test_as_in_the_paper_each_serves_until_then() -> None:
    criterion = AdjustedLoss(along(), [5, 5, 5], serves="until")
    assert [q_at(criterion, at) for at in (0, 0.3, 0.34, 0.66, 0.67, 1)] == [0.2, 0.2, 0.3, 0.3, 0.4, 0.4]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=7),
    st.sampled_from(["from", "until"]),
    st.floats(0, 1, exclude_max=True),
)
def test_some_snapshot_serves_at_any_time(times: list[float], serves: str, progress: float) -> None:
    snapshots = [snapshot(taken) for taken in times]
    begins, serving = in_turn(snapshots, serves)
    assert begins[0] == 0
    assert begins == sorted(set(begins))
    assert len(begins) == len(serving)
    served = serving[sum(begin <= progress for begin in begins) - 1].taken
    assert served is not None
    earlier, later = [t for t in times if t <= progress], [t for t in times if t > progress]
    if serves == "from":
        assert served == (max(earlier) if earlier else min(times))
    else:
        assert served == (min(later) if later else max(times))


def test_order_does_not_matter_and_a_mixture_is_refused() -> None:
    shuffled = [along()[number] for number in (2, 0, 3, 1)]
    assert q_at(AdjustedLoss(shuffled, [5, 5, 5]), 0.5) == 0.2
    with pytest.raises(OptionError, match="some snapshots know when they were taken and some do not"):
        AdjustedLoss([snapshot(0.5), snapshot(None)], [5, 5])
    with pytest.raises(OptionError, match="serves = 'before' is unknown"):
        AdjustedLoss(along(), [5, 5], serves="before")


# A beginning with the loss's fixed hyperparameters


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.8, 1.0]), min_size=1, max_size=5, unique=True),
    st.sampled_from(["from", "until"]),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_fixed_hyperparameters_first_then_what_has_learned_something(
    times: list[float], serves: str, start: float, progress: float
) -> None:
    begins, serving = after_fixed(*in_turn([snapshot(taken) for taken in times], serves), start)
    assert begins[0] == 0
    assert begins == sorted(set(begins))
    assert len(begins) == len(serving)
    served = serving[sum(begin <= progress for begin in begins) - 1]
    usual_begins, usual = in_turn([snapshot(taken) for taken in times], serves)
    usually = usual[sum(begin <= progress for begin in usual_begins) - 1].taken
    assert usually is not None
    later = [one.taken for one in usual if one.taken is not None and one.taken > 0]
    if progress < start or (start > 0 and not later):
        assert served.taken is None
        assert_close(served(LOGITS[:, :2], torch.tensor([0, 1]))["q"], torch.tensor([0.7, 0.7]))
    elif usually == 0 and start > 0:
        assert served.taken == min(later), "in place of the untrained one"
    else:
        assert served.taken == usually


def test_a_criterion_begins_with_fixed_hyperparameters_where_it_is_asked_to() -> None:
    criterion = AdjustedLoss(along(), [5, 5, 5], total_steps=6, robust_start=0.4)
    found = [(criterion(LOGITS, LABELS), float(criterion.last.hyperparameters["q"][0])) for _ in range(6)]
    assert [round(q, 4) for _, q in found] == [0.7, 0.7, 0.7, 0.2, 0.3, 0.3]
    assert_close(found[0][0], losses.gce(LOGITS, LABELS, 0.7).mean())
    assert len(AdjustedLoss(along(), [5, 5, 5], robust_start=0.0).snapshots) == 3
    alone = AdjustedLoss(snapshot(None), [5, 5, 5], robust_start=0.5)
    assert [q_at(alone, at) for at in (0, 0.49, 0.5, 1)] == [0.7, 0.7, 0.5, 0.5]
    with pytest.raises(OptionError, match=r"robust_start = 1\.5 is outside \[0, 1\]"):
        AdjustedLoss(along(), [5, 5], robust_start=1.5)


def test_running_margins_are_remembered_from_the_beginning() -> None:
    criterion = AdjustedLoss(along(margin="running"), [5, 5, 5], robust_start=0.5)
    criterion(LOGITS, LABELS, progress=0.0, ids=torch.arange(2))
    running = criterion.at(1).running
    assert running is not None
    assert running.table.tolist() == [2.0, -2.0]


# Heads that have learned nothing


@pytest.mark.parametrize("loss", ["gce", "sl", "polysoft", "js"])
def test_heads_that_learned_nothing_get_what_the_nearest_one_learned(loss: str) -> None:
    """Classes of one size are one family: the other heads never see a sample, but would serve on uneven classes."""
    torch.manual_seed(0)
    model, adjuster = nn.Linear(3, 2), Adjuster(loss, [5, 5])
    step = narl.MetaStep(model, torch.optim.SGD(model.parameters(), lr=0.5), adjuster)
    for _ in range(3):
        step.step(torch.randn(8, 3), torch.randint(0, 2, (8,)), (torch.randn(8, 3), torch.randint(0, 2, (8,))))
    before = {name: value.clone() for name, value in adjuster.state_dict().items()}
    criterion = AdjustedLoss(adjuster, [10, 200, 3000], reduction="none")
    seen = torch.linspace(-3, 3, 7)
    for name, values in criterion.at(0).curves(seen).items():
        assert_close(values, adjuster.curves(seen)[name][:, :1].detach().expand(-1, 3))
    assert all(torch.equal(value, before[name]) for name, value in adjuster.state_dict().items()), "it is copied"


def test_heads_that_learned_stay() -> None:
    adjuster = Adjuster("gce", [5, 5], hidden=1)
    for weights, expected in (
        ([0, 0, 0], [0, 0, 0]),
        ([0, 4, 2], [4, 4, 2]),
        ([0, 0, 2], [2, 2, 2]),
        ([1, 0, 3], [1, 1, 3]),
    ):
        adjuster.heads.weight.data[:, 0] = torch.tensor(weights, dtype=torch.float32)
        adjuster.heads.bias.data[:] = torch.tensor(weights, dtype=torch.float32) + 1
        adjuster.spread()
        assert adjuster.heads.weight.flatten().tolist() == expected
        assert adjuster.heads.bias.tolist() == [value + 1 for value in expected]


# Files


@pytest.mark.parametrize("taken", [None, 0.0, 1 / 3, 1.0])
def test_a_file_keeps_when_it_was_taken(tmp_path: Path, taken: float | None) -> None:
    snapshot(taken).save(tmp_path / "a.safetensors")
    assert Adjuster.load(tmp_path / "a.safetensors").taken == taken


@pytest.mark.parametrize("taken", [-0.1, 1.5, "soon", True])
def test_a_time_that_is_none(tmp_path: Path, taken: Any) -> None:
    made = snapshot(0.5)
    made.taken = taken
    made.save(tmp_path / "a.safetensors")
    with pytest.raises(AdjusterFileError, match="nonsense in its header"):
        Adjuster.load(tmp_path / "a.safetensors")


def test_runs_of_before_snapshots_knew_it(tmp_path: Path) -> None:
    for number in range(4):
        snapshot(None, 0.1 * (number + 1)).save(tmp_path / f"adjuster-{number}.safetensors")
    found = adjusters.load_adjusters([str(tmp_path)])
    assert [one.taken for one in found] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    (tmp_path / "adjuster-0.safetensors").unlink()
    assert [one.taken for one in adjusters.load_adjusters([str(tmp_path)])] == [None] * 3, "by position"


def test_more_than_ten_snapshots_stay_in_order(tmp_path: Path) -> None:
    adjusters.save_adjusters(along(12), tmp_path)
    assert [one.taken for one in adjusters.load_adjusters([str(tmp_path)])] == [number / 12 for number in range(13)]
    adjusters.keep_adjusters(along(12), tmp_path)
    (kept,) = adjusters.kept_adjusters(tmp_path)
    assert adjusters.digest_of([kept]) == adjusters.digest_of([str(tmp_path)]), "however they are kept"


# The margin


def test_without_ids_it_is_the_latest_margin(tmp_path: Path) -> None:
    packs.write(tmp_path / "gce.safetensors", Pack(tuple(along(margin="running"))))
    criterion = AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 5, 5], total_steps=9)
    assert float(criterion(LOGITS, LABELS)) > 0
    with_ids = AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 5, 5], 9, margin=None)
    with pytest.raises(narl.NarlError, match="pass ids="):
        with_ids(LOGITS, LABELS)
    with_ids(LOGITS, LABELS, ids=torch.arange(2))
    assert with_ids.at(0).running is with_ids.at(1).running is not None
    added = AdjustedLoss(along(), [5, 5, 5], margin="running")
    added(LOGITS, LABELS, progress=0.0, ids=torch.arange(2))
    running = added.at(1).running
    assert running is not None
    assert running.table.tolist() == [2.0, -2.0]
    with pytest.raises(OptionError, match="margin = 'mean' is unknown"):
        AdjustedLoss(along(), [5, 5], margin="mean")


def by_margin() -> tuple[Adjuster, ...]:
    """Snapshots that give each sample its own q, and were learned with averages."""
    made = along(margin="running")
    for one in made:
        torch.nn.init.uniform_(one.heads.weight, -0.3, 0.3, generator=torch.Generator().manual_seed(1))
    return tuple(made)


def seen_by(criterion: AdjustedLoss) -> Tensor:
    running = criterion.at(0).running
    assert running is not None
    assert running.seen is not None
    return running.seen


def test_by_default_averages_are_seen_where_samples_are_named(tmp_path: Path) -> None:
    packs.write(tmp_path / "gce.safetensors", Pack(by_margin()))
    ids, turned = torch.arange(2), LOGITS.roll(1, dims=1)

    def second(ids: Tensor | None, **how: Any) -> float:
        criterion = AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 5, 5], **how)
        criterion(LOGITS, LABELS, progress=0.9, ids=ids)
        return float(criterion(turned, LABELS, progress=0.9, ids=ids))

    assert second(ids) == second(ids, margin="running")
    assert second(None, margin="latest") == second(ids, margin="latest")
    assert len({second(ids), second(None), second(None, margin="latest")}) == 3, "what is not named is guessed"


def test_where_margins_grow_evenly_the_guess_is_the_average() -> None:
    """Some epochs of three batches: by their ids, and without."""
    named, unnamed = (AdjustedLoss(by_margin(), [4, 3, 2], margin=margin) for margin in ("running", "auto"))
    for epoch in range(1, 6):
        for ids in torch.arange(9).view(3, 3):
            logits = epoch * torch.tensor([[1.0, 0.0, -1.0], [-2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
            labels = torch.tensor([0, 0, 1])
            seen_by(unnamed).fill_(9 * (epoch - 1))
            assert_close(unnamed(logits, labels, 0.9), named(logits, labels, 0.9, ids=ids))


def test_samples_are_counted_in_training(tmp_path: Path) -> None:
    packs.write(tmp_path / "gce.safetensors", Pack(by_margin()))
    made = [AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 3, 2], 9) for _ in range(3)]
    first, second, third = made
    for _ in range(10):
        first(LOGITS, LABELS, progress=0.5)
    first.eval()(LOGITS, LABELS, progress=0.5)
    assert int(seen_by(first)) == 20
    second.load_state_dict(first.state_dict())
    for other in (second, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert float(other(LOGITS, LABELS, 0.9)) == float(first(LOGITS, LABELS, 0.9))
        assert seen_by(other) is not seen_by(first)
    assert float(third(LOGITS, LABELS, 0.9)) != float(first(LOGITS, LABELS, 0.9))
    third.at_epoch(2)
    assert float(third.eval()(LOGITS, LABELS, 0.9)) == float(first(LOGITS, LABELS, 0.9))
    first.load_state_dict(
        AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 3, 2], 9, margin="latest").state_dict()
    )
    assert int(seen_by(first)) == 0, "of a state that has none"


def test_what_is_made_of_a_used_one_begins_anew() -> None:
    used = AdjustedLoss(by_margin(), [5, 5, 5], margin="auto")
    used(LOGITS, LABELS, progress=0.5)
    used.at_epoch(3)
    for margin in (None, "running"):
        strict = AdjustedLoss(used.at(0.5), [5, 5, 5], margin=margin)
        with pytest.raises(narl.NarlError, match="pass ids="):
            strict(LOGITS, LABELS, progress=0.5)
    assert int(seen_by(AdjustedLoss(used.at(0.5), [5, 5, 5], margin="auto"))) == 0
    used.at(0.5).refit([5, 5])
    assert int(seen_by(used)) == 0, "on another data set"


def test_shares_of_classes_do_not_say_how_many_samples_there_are() -> None:
    for counts in ([0.3, 0.3, 0.4], [0, 0, 0]):
        with pytest.raises(OptionError, match=r"class_counts add up to [01]: give numbers of samples"):
            AdjustedLoss(by_margin(), counts, margin="auto")
        assert float(AdjustedLoss(by_margin(), counts, margin="latest")(LOGITS, LABELS, 0.5)) > 0
        assert float(AdjustedLoss(along(), counts, margin="auto")(LOGITS, LABELS, 0.5)) > 0, "which needs no averages"


def test_of_several_processes_each_sees_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    criterion = AdjustedLoss(by_margin(), [5, 3, 2], margin="auto")
    criterion(LOGITS, LABELS, progress=0.5)
    assert int(seen_by(criterion)) == 4 * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_unnamed_samples_go_through_compile(backend: str) -> None:
    torch._dynamo.reset()
    plain = AdjustedLoss(by_margin(), [2, 1, 1], total_steps=12, margin="auto")
    whole = copy.deepcopy(plain)
    graph = torch.compile(whole, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(12):
            logits = (step + 1) * LOGITS
            assert_close(graph(logits, LABELS), plain(logits, LABELS))
    assert int(seen_by(whole)) == int(seen_by(plain)) == 24


def test_states_with_averages_go_into_safetensors(tmp_path: Path) -> None:
    criterion = AdjustedLoss(by_margin(), [5, 5, 5], total_steps=9, margin="auto")
    criterion(LOGITS, LABELS, ids=torch.arange(2))
    save_file(criterion.state_dict(), tmp_path / "state.safetensors")
    assert (tmp_path / "state.safetensors").stat().st_size > 0


def test_states_of_trainings_that_named_samples_and_of_others(tmp_path: Path) -> None:
    packs.write(tmp_path / "gce.safetensors", Pack(by_margin()))
    made = [AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 5, 5], 9) for _ in range(3)]
    made[0](LOGITS, LABELS, ids=torch.arange(2))
    made[1].load_state_dict(made[0].state_dict())
    again = [float(one(LOGITS.roll(1, dims=1), LABELS, ids=torch.arange(2))) for one in made[:2]]
    assert again[0] == again[1]
    latest = AdjustedLoss.pretrained(tmp_path / "gce.safetensors", [5, 5, 5], 9, margin="latest")
    latest(LOGITS, LABELS)
    made[2].load_state_dict(latest.state_dict())
    assert made[2].steps == 1


# Packs


def test_a_pack_is_what_was_packed(tmp_path: Path) -> None:
    pack = Pack(tuple(along(4, input="scaled+progress")), "gce-1", "1", "digits", {"cells": ["a/b"]})
    packs.write(tmp_path / "gce.safetensors", pack)
    again = packs.read(tmp_path / "gce.safetensors")
    assert (again.name, again.version, again.trained_on, again.about) == ("gce-1", "1", "digits", {"cells": ["a/b"]})
    assert (again.loss, again.input, again.digest) == ("gce", "scaled+progress, latest", pack.digest)
    assert (tmp_path / "gce.safetensors").stat().st_size < 20_000
    with pytest.raises(AdjusterFileError, match="holds all snapshots of an adjuster"):
        Adjuster.load(tmp_path / "gce.safetensors")


def test_digests_tell_what_serves_otherwise() -> None:
    same, later = packs.digest(along()), along()
    assert packs.digest([one.refit([1, 2, 3]) for one in along()]) == same, "the classes are of the new data"
    later[1].taken = 0.4
    assert packs.digest(later) != same
    assert packs.digest(along(margin="running")) != same


def spoilt(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["narl"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(about, tensors)
    save_file(tensors, path, metadata={"narl": json.dumps(about)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about, tensors: about.update(format=99), "upgrade narl"),
        (lambda about, tensors: about.update(kind="cake"), "holds no adjusters"),
        (lambda about, tensors: about.update(snapshots=[]), "does not say which snapshots"),
        (lambda about, tensors: about.update(snapshots="many"), "does not say which snapshots"),
        (lambda about, tensors: about.update(name=5), "nonsense in its header"),
        (lambda about, tensors: about["snapshots"][0].pop("loss"), "has no loss in its header"),
        (lambda about, tensors: about["snapshots"].pop(), "of which its header says nothing"),
        (lambda about, tensors: tensors.update({"x.hidden": torch.ones(1)}), "of which its header says nothing"),
        (lambda about, tensors: tensors.pop("1.heads.bias"), "but its header promises"),
        (lambda about, tensors: tensors["2.heads.bias"].fill_(torch.nan), "NaN, infinity"),
    ],
)
def test_packs_from_elsewhere(tmp_path: Path, change: Any, words: str) -> None:
    path = tmp_path / "gce.safetensors"
    packs.write(path, Pack(tuple(along())))
    spoilt(path, change)
    with pytest.raises(AdjusterFileError, match=words):
        packs.read(path)


# What is shipped


def test_nothing_is_shipped(weights: Path) -> None:
    assert narl.pretrained() == ()
    assert "ships no adjusters yet" in repr(narl.pretrained())
    with pytest.raises(UnknownNameError, match="no shipped adjuster is called 'gce': none is shipped yet"):
        AdjustedLoss.pretrained("gce", [5, 5])
    assert defaults.method_of(Settings(data="x.csv")) == "SL"
    assert adjusters.without_clean("js") == ("JS", None)


def test_what_is_shipped_is_listed_and_used(weights: Path) -> None:
    for name in ("gce-1", "gce-10", "gce-9"):
        ship(weights, name)
    listed = narl.pretrained()
    assert [one.name for one in listed] == ["gce-1", "gce-9", "gce-10"]
    assert (listed[0].loss, listed[0].version, listed[0].snapshots) == ("gce", "1", 4)
    assert listed[0].card == "# A card\n"
    lines = repr(listed).splitlines()
    assert lines[0].split()[:3] == ["name", "loss", "version"]
    assert "any data" in lines[1]
    assert listed[0].trained_on == "nine tasks"
    assert listed[0].sha256[:12] in lines[1]
    for name in ("gce", "GCE", "gce-9", "narl:gce-1"):
        assert q_at(AdjustedLoss.pretrained(name, [5, 5, 5]), 0.5) == 0.2
    assert pretrained.shipped("gce") == "narl:gce-10"
    assert adjusters.without_clean("gce") == ("T-GCE", "narl:gce-10")
    assert defaults.method_of(Settings(data="x.csv")) == "SL", "of which none is shipped here"
    ship(weights, "sl-1", [Adjuster("sl", [5, 5])])
    assert defaults.method_of(Settings(data="x.csv")) == "T-SL"
    assert defaults.method_of(Settings(data="x.csv", clean="100")) == "A-GCE"
    assert defaults.adjusters_of(Settings(data="x.csv")) == ("narl:sl-1",)
    assert defaults.adjusters_of(Settings(data="x.csv", method="T-GCE")) == ("narl:gce-10",)
    assert defaults.adjusters_of(Settings(data="x.csv", method="T-JS")) == ()
    with pytest.raises(UnknownNameError, match="did you mean 'gce"):
        AdjustedLoss.pretrained("gcf", [5, 5])
    with pytest.raises(UnknownNameError, match="None names no adjuster: give a string"):
        AdjustedLoss.pretrained(None, [5, 5])  # type: ignore[arg-type]


def test_a_file_that_is_another_one_is_refused(weights: Path, tmp_path: Path) -> None:
    path = ship(weights)
    own = tmp_path / "own.safetensors"
    own.write_bytes(path.read_bytes())
    assert len(AdjustedLoss.pretrained(own, [5, 5, 5], sha256=packs.sha256(own).upper()).snapshots) == 3
    path.write_bytes(path.read_bytes() + b" ")
    for call in (narl.pretrained, lambda: AdjustedLoss.pretrained("gce", [5, 5])):
        with pytest.raises(AdjusterFileError, match="is another file than it should be: its SHA-256"):
            call()
    with pytest.raises(AdjusterFileError, match="is another file than it should be"):
        AdjustedLoss.pretrained(own, [5, 5, 5], sha256="0" * 64)
    with pytest.raises(AdjusterFileError, match="there is no file"):
        AdjustedLoss.pretrained("nowhere/gce.safetensors", [5, 5])


def test_a_path_that_is_there_is_meant(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(weights)
    monkeypatch.chdir(tmp_path)
    snapshot(None, 0.7).save("gce")
    assert q_at(AdjustedLoss.pretrained("gce", [5, 5, 5]), 0.5) == 0.7
    assert q_at(AdjustedLoss.pretrained("narl:gce", [5, 5, 5]), 0.5) == 0.2


def test_training_without_clean_samples(weights: Path, tmp_path: Path) -> None:
    ship(weights, "sl-1", [Adjuster("sl", [5, 5])])
    data = points(tmp_path / "points.csv")
    plan = narl.train.plan(Settings(data=str(data), device="cpu", epochs=2))
    assert (plan.recipe.method, plan.settings.adjusters) == ("T-SL", ("narl:sl-1",))
    outcome = narl.train.start(plan, tmp_path / "run", tensorboard=False)
    assert outcome.summary["method"] == "T-SL"
    (kept,) = adjusters.kept_adjusters(tmp_path / "run")
    assert packs.read(kept).digest == packs.read(weights / "sl-1.safetensors").digest
    assert narl.train.plan(Settings(data=str(data), device="cpu", clean="20")).recipe.method == "A-GCE"


def test_a_run_that_began_before_anything_was_shipped_goes_on_as_it_was(weights: Path, tmp_path: Path) -> None:
    settings = Settings(data=str(points(tmp_path / "points.csv")), device="cpu", epochs=2)
    before = narl.train.plan(settings)
    assert before.recipe.method == "SL"
    ship(weights, "sl-1", [Adjuster("sl", [5, 5])])
    assert narl.train.plan(settings).recipe.method == "T-SL"
    assert narl.train.plan(settings, before.recipe).recipe.method == "SL"


# The hub


class Hub:
    """In place of huggingface_hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str, str | None]] = []

    def list_repo_files(self, repo: str, revision: str | None = None) -> list[str]:
        return [path.name for path in (self.folder / repo).iterdir()]

    def hf_hub_download(self, repo: str, file: str, revision: str | None = None) -> str:
        self.asked.append((repo, file, revision))
        if not (self.folder / repo / file).exists():
            raise FileNotFoundError("404: no such\nentry")
        return str(self.folder / repo / file)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path) -> Hub:
    (tmp_path / "hub" / "me" / "mine").mkdir(parents=True)
    packs.write(tmp_path / "hub" / "me" / "mine" / "gce.safetensors", Pack(tuple(along())))
    (tmp_path / "hub" / "me" / "mine" / "README.md").write_text("")
    made = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


def test_adjusters_of_the_hub(hub: Hub) -> None:
    for name in ("me/mine", "hf://me/mine", "hf://me/mine/gce.safetensors", "hf://me/mine/gce.safetensors@v1"):
        assert q_at(AdjustedLoss.pretrained(name, [5, 5, 5]), 0.5) == 0.2
    assert hub.asked[-1] == ("me/mine", "gce.safetensors", "v1")
    assert hub.asked[0] == ("me/mine", "gce.safetensors", None)
    with pytest.raises(AdjusterFileError, match="there is no file me/mine: check the path"):
        adjusters.load_adjusters(["me/mine"])  # a run that is not there, more likely


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf://me", "names no file of the hub"),
        ("hf://me/mine/model.pkl", "narl opens no others"),
        ("hf://me/mine/other.safetensors", r"cannot be downloaded \(404: no such entry\)"),
    ],
)
def test_what_the_hub_has_not(hub: Hub, name: str, words: str) -> None:
    with pytest.raises((OptionError, AdjusterFileError), match=words):
        AdjustedLoss.pretrained(name, [5, 5])


def test_which_file_of_the_hub(hub: Hub) -> None:
    (hub.folder / "me" / "mine" / "js.safetensors").write_bytes(b"")
    with pytest.raises(AdjusterFileError, match=r"has several: gce.safetensors, js.safetensors; name it"):
        AdjustedLoss.pretrained("hf://me/mine", [5, 5])


def test_without_the_hubs_library(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'narl\[hub\]'"):
        AdjustedLoss.pretrained("hf://me/mine/gce.safetensors", [5, 5])


# Use without ceremony


def test_it_has_nothing_for_a_gradient_and_keeps_its_count(weights: Path) -> None:
    """So DistributedDataParallel finds no unused parameter, wherever the criterion is."""
    ship(weights)
    criterion = AdjustedLoss.pretrained("gce", [5, 5, 5], total_steps=6)
    assert not [parameter for parameter in criterion.parameters() if parameter.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        loss = criterion(nn.Linear(3, 3)(LOGITS), LABELS)
    assert loss.dtype == torch.float32
    criterion(LOGITS, LABELS)
    file = io.BytesIO()
    torch.save(criterion.state_dict(), file)
    file.seek(0)
    again = AdjustedLoss.pretrained("gce", [5, 5, 5], total_steps=6)
    again.load_state_dict(torch.load(file, weights_only=True))
    for other in (again, pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion)):
        assert other.steps == 2
        assert q_at(other, 0.7) == 0.3
        assert float(other(LOGITS, LABELS)) == float(copy.deepcopy(criterion)(LOGITS, LABELS))


# Releases


SETTINGS = {
    "epochs": 60,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "batch_size": 100,
    "clean_samples": 1000,
    "milestones": [40, 50],
    "options": {"margin": "running"},
}


def learned_with(cells: Any) -> list[Run]:
    """The trainings of a row that never were."""
    return [replace(made_up(cell.method, cell.task), cell=cell, settings=SETTINGS) for cell in cells]


def test_a_release_has_a_card_a_checksum_and_figures(tmp_path: Path, weights: Path) -> None:
    cells = protocols.get("adjusters").cells(methods=["A-GCE"])
    pack = Pack(tuple(along()), "", "", learning._in_words(cells), {"cells": [cell.slug for cell in cells]})
    transferred = {
        method: protocols.get("transfer-tables").cells(methods=[method], tasks=["letter/symmetric-0.4"])[0]
        for method in ("CE", "GCE", "T-GCE")
    }
    shares = {"CE": 0.9, "GCE": 0.85, "T-GCE": 0.88}
    made_with = {"adjusters": [pack.digest]}
    there = [Run(cell, shares[method], 1.0, {}, settings=made_with) for method, cell in transferred.items()]
    written = releases.release(pack, "1", [*learned_with(cells), *there], weights, tmp_path / "figures")
    assert {path.name for path in written} == {
        "gce-1.safetensors", "gce-1.md", "SHA256SUMS", "gce-1-figure6.svg", "gce-1-figure7.svg",
    }  # fmt: skip
    (listed,) = narl.pretrained()
    assert listed.trained_on.startswith("CIFAR-10 symmetric 0.2, 0.4, 0.6; CIFAR-10 asymmetric")
    card = listed.card
    assert listed.sha256 in card
    assert "4, at 0.00, 0.33, 0.67, 1.00 of the training" in card
    assert "- letter symmetric 0.4: 2.0 points behind CE." in card
    assert "| letter symmetric 0.4 | 90.0 | 85.0 | – | 88.0 |" in card
    assert "../figures/gce-1-figure6.svg" in card
    assert "$" not in card
    assert packs.read(listed.path).digest == pack.digest, "results that were made before the release stay"


def test_a_release_for_several_kinds_of_data(tmp_path: Path, weights: Path) -> None:
    cells = protocols.get("adjusters").cells(methods=["A-GCE"])
    pack = Pack(tuple(along()), trained_on="nine tasks", about={"cells": [cell.slug for cell in cells]})
    for_tables = snapshot(0.0, 0.9, margin="running", input="margin+progress+classes")
    for_tables.data = "table"
    other = Pack((for_tables,), trained_on="drawn tables", about={"section": "## On tables\n\nLearned otherwise."})
    releases.release(pack, "1", learned_with(cells), weights, None, [other])
    (listed,) = narl.pretrained()
    assert listed.trained_on == "nine tasks; on data of kind table: drawn tables"
    assert listed.input == "margin, latest; on data of kind table: margin+progress+classes, running"
    assert "## On tables\n\nLearned otherwise.\n" in listed.card
    assert "5, at 0.00, 0.33, 0.67, 1.00, 0.00 (table) of the training" in listed.card
    assert q_at(AdjustedLoss.pretrained("gce", [5, 5, 5], total_steps=6), 0.0) == pytest.approx(0.1)
    assert q_at(AdjustedLoss.pretrained("gce", [5, 5, 5], 6, data="table"), 0.0) == pytest.approx(0.9)
    paths = [f"narl:{listed.name}"]
    assert adjusters.digest_of(paths, "image") == pack.digest, "results that were made before the release stay"
    assert adjusters.digest_of(paths, "table") == other.digest
    for wrong, words in (([pack], "for None data"), ([other, other], "for table data")):
        with pytest.raises(OptionError, match=f"an adjuster of gce {words} cannot be added to one of gce"):
            releases.release(pack, "1", learned_with(cells), weights, None, wrong)


def test_a_release_for_one_kind_of_data_alone(tmp_path: Path, weights: Path) -> None:
    for_tables = snapshot(0.0, 0.9)
    for_tables.data = "table"
    pack = Pack((for_tables,), trained_on="drawn tables", about={"section": "## On tables\n\nLearned otherwise."})
    releases.release(pack, "1", [], weights, None)
    (listed,) = narl.pretrained()
    assert listed.trained_on == "on data of kind table: drawn tables"
    assert "| for | table |" in listed.card
    assert "Not measured yet: TinyImageNet-32 symmetric 0, " in listed.card
    assert 'len(loader), data="table")' in listed.card
    assert "## On tables\n\nLearned otherwise.\n" in listed.card
    assert "How it was learned" not in listed.card
    assert "$" not in listed.card
    other = Pack((for_tables,), trained_on="others", about={"section": "## On tables\n\nLearned anew."})
    releases.release(other, "1", [], weights, None)
    assert "Learned anew." in narl.pretrained()[0].card, "a release that is made again takes the place of the first"
    assert adjusters.without_clean("gce", "table") == ("T-GCE", "narl:gce-1")
    assert adjusters.without_clean("gce", "image") == ("GCE", None)
    for_texts = copy.deepcopy(for_tables)
    for_texts.data = "text"
    with pytest.raises(OptionError, match=r"for data of kind table or text: say which it is \(data=\)"):
        AdjustedLoss([for_tables, for_texts], [5, 5])
    images = tmp_path / "images.npz"
    np.savez(images, x=np.zeros((40, 8, 8, 3), np.uint8), y=np.arange(40) % 2)
    words = refused("train", images, "--loss", "gce", "--test", "none", "--device", "cpu", "--out", tmp_path / "run")
    assert "T-GCE uses a learned adjuster and narl ships none of its loss for such data" in words
    assert "have the loss fixed with --method GCE" in words


@pytest.mark.parametrize("name", ["T-GCE", "T-GCE+"])
def test_methods_take_what_is_for_their_data(name: str) -> None:
    for_tables = snapshot(0.0, 0.9)
    for_tables.data = "table"
    for kind, q in (("table", 0.9), ("image", 0.4), (None, 0.4)):
        setting = replace(setting_of(name), kind=kind)
        method: Any = methods.build(name, setting, adjusters=[snapshot(0.0, 0.4), for_tables], robust_start=0.0)
        serving = getattr(method, "plain", method).current
        assert float(serving.curves(torch.zeros(1))["q"][0, 0]) == pytest.approx(q)


@pytest.mark.parametrize("name", ["T-GCE", "T-GCE+"])
def test_methods_take_what_their_training_is_long_enough_for(name: str) -> None:
    for_texts = snapshot(0.0, 0.9)
    for_texts.data, for_texts.least_steps = "text", 600
    for steps, q in ((599, 0.4), (600, 0.9)):
        setting = replace(setting_of(name), kind="text", total_steps=steps)
        method: Any = methods.build(name, setting, adjusters=[snapshot(0.0, 0.4), for_texts])
        serving = getattr(method, "plain", method).current
        assert float(serving.curves(torch.zeros(1))["q"][0, 0]) == pytest.approx(q)


@pytest.mark.parametrize("kind", [None, "text"])
def test_methods_say_what_is_no_adjuster(kind: str | None) -> None:
    with pytest.raises(OptionError, match="got int, no adjuster"):
        methods.build("T-GCE", replace(setting_of("T-GCE"), kind=kind), adjusters=[42])


def test_a_state_of_other_adjusters_is_refused_in_words() -> None:
    for_texts = snapshot(0.0, 0.9)
    for_texts.data, for_texts.least_steps = "text", 600
    short, long = (AdjustedLoss([*along(), for_texts], [5, 5], total_steps=n, data="text") for n in (599, 600))
    assert (len(short.snapshots), len(long.snapshots)) == (3, 1)
    words = "state is of a criterion with 3 snapshots, and this one has 1: .* decided by data= and total_steps="
    with pytest.raises(OptionError, match=words):
        long.load_state_dict(short.state_dict())
    beside = nn.ModuleDict({"model": nn.Linear(2, 2), "criterion": long})
    found = beside.load_state_dict({f"model.{key}": part for key, part in nn.Linear(2, 2).state_dict().items()}, False)
    assert any("snapshots" in name for name in found.missing_keys), "one that was not there yet is torch's affair"


def test_what_is_learned_on_from_one_for_long_trainings_is_for_all() -> None:
    for_texts = snapshot(0.0, 0.9)
    for_texts.data, for_texts.least_steps = "text", 600
    going_on = start("gce", torch.tensor([5, 5]), for_texts, "latest", 0, "text")
    assert (going_on.data, going_on.least_steps) == (None, None)


def test_what_serves_in_a_training_tells_results_apart(tmp_path: Path) -> None:
    """Where adjusters serve is no part of what they compute."""
    for_texts = snapshot(0.0, 0.9)
    for_texts.data = "text"
    before = packs.digest([for_texts])
    for_texts.least_steps = 600
    assert packs.digest([for_texts]) == before
    path = tmp_path / "gce.safetensors"
    packs.write(path, Pack((snapshot(0.0, 0.4), for_texts)))
    assert [one.least_steps for one in packs.read(path).snapshots] == [None, 600]
    found = {steps: adjusters.digest_of([str(path)], "text", steps) for steps in (599, 600, None)}
    assert found == {599: packs.digest([snapshot(0.0, 0.4)]), 600: before, None: before}


@pytest.mark.parametrize("change", ["sizes", "spans", "hidden", "nothing"])
def test_each_snapshot_gives_what_it_is_whatever_it_differs_in(change: str) -> None:
    """Weights are taken over in place where that is all that differs; else the snapshot itself serves."""
    first, second = snapshot(0.0, 0.2), snapshot(0.5, 0.6, **({"hidden": 7} if change == "hidden" else {}))
    with torch.no_grad():
        second.heads.bias.add_(torch.arange(3.0))
    if change == "sizes":
        second.sizes = (0.5, 1.0, 2.0)
    if change == "spans":
        second.spans = {"q": (0.1, 0.7)}
    setting = replace(setting_of("T-GCE"), kind="image")
    method: Any = methods.build("T-GCE", setting, adjusters=[first, second])
    method.steps = setting.total_steps - 1
    method.before_step()
    expected = copy.deepcopy(second).refit(setting.class_counts)
    classes = len(setting.class_counts)
    logits, labels = torch.randn(6, classes), torch.arange(6) % classes
    assert_close(method.current(logits, labels)["q"], expected(logits, labels)["q"].detach())
    assert method.phase == (0 if change == "nothing" else 1)


def test_what_is_learned_on_from_an_adjuster_for_tables_is_for_any_data() -> None:
    for_tables = snapshot(0.0, 0.9)
    for_tables.data = "table"
    begun = start("gce", torch.tensor([5, 5]), [snapshot(0.0, 0.4), for_tables], "latest", 0)
    assert float(begun.curves(torch.zeros(1))["q"][0, 0].detach()) == pytest.approx(0.4)
    assert start("gce", torch.tensor([5, 5]), for_tables, "latest", 0).data is None


def test_releases_that_cannot_be(tmp_path: Path) -> None:
    cells = protocols.get("adjusters").cells(methods=["A-GCE"])
    pack = Pack(tuple(along()), about={"cells": [cell.slug for cell in cells]})
    with pytest.raises(OptionError, match="version = 'new' is none"):
        releases.release(pack, "new", [], tmp_path, None)
    with pytest.raises(ResultsError, match=r"there is no result of cifar-10/symmetric-0\.2/resnet32-adjusters/a-gce"):
        releases.release(pack, "1", [], tmp_path, None)
    with pytest.raises(ResultsError, match="does not say which trainings it was learned from"):
        releases.release(Pack(tuple(along())), "1", [], tmp_path, None)


def test_on_the_command_line(tmp_path: Path) -> None:
    data = points(tmp_path / "points.csv")
    packs.write(tmp_path / "gce.safetensors", Pack(tuple(along())))
    asked = ("transfer", data, "--device", "cpu", "--epochs", 1, "--json", "--dry-run")
    assert '"method": "T-GCE"' in done(*asked, "--from", tmp_path / "gce.safetensors", "-o", "serves=until").out
    assert "narl ships no adjuster of 'mae'" in refused("transfer", data, "--loss", "mae", "--out", tmp_path / "run")
    answer = refused("bench", "pack", tmp_path / "gce.safetensors", "--version", "1", "--out", tmp_path / "out")
    assert "does not say which trainings" in answer
