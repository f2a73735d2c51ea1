"""Adjusters as files: exact round trips, and refusals of everything else."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

import narl
from narl import Adjuster, losses
from narl.adjuster import files
from narl.errors import AdjusterFileError, ClassCountsError, NarlError, UnknownNameError

ADJUSTABLE = [name for name in losses.names() if losses.get(name).hyperparameters]
every_loss = pytest.mark.parametrize("name", ADJUSTABLE)
COUNTS = [500, 20, 510, 90]


def taught(name: str = "gce", seed: int = 0, **options: Any) -> Adjuster:
    generator = torch.Generator().manual_seed(seed)
    adjuster = Adjuster(name, **{"class_counts": COUNTS, "hidden": 5, "generator": generator, **options})
    with torch.no_grad():
        for parameter in adjuster.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return adjuster


def outputs(adjuster: Adjuster, seed: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    c = len(adjuster.of_class)
    logits, labels = 5 * torch.randn(30, c, generator=generator), torch.randint(c, (30,), generator=generator)
    values: dict[str, Tensor] = adjuster(logits, labels, torch.arange(30))
    return values


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="pt") as file:
        header = json.loads(file.metadata()["narl"])
    assert isinstance(header, dict)
    return header


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file, whose neighbours and contents a test may spoil."""
    taught().save(tmp_path / "adjuster.safetensors")
    return tmp_path / "adjuster.safetensors"


def rewrite(path: Path, **changes: Any) -> None:
    """The same file with another header; None removes an entry."""
    header = {key: value for key, value in {**header_of(path), **changes}.items() if value is not None}
    save_file(load_file(path), path, metadata={"narl": json.dumps(header)})


# Round trips


@every_loss
@pytest.mark.parametrize("kind", ["latest", "running"])
def test_round_trip_is_exact(name: str, kind: str, tmp_path: Path) -> None:
    adjuster = taught(name, margin=kind)
    adjuster.save(tmp_path / "a.safetensors")
    loaded = Adjuster.load(tmp_path / "a.safetensors")
    assert same(outputs(loaded), outputs(adjuster))
    assert (loaded.running is None) == (kind == "latest")
    assert loaded.robust_loss is losses.get(name)
    assert loaded.class_counts == COUNTS
    assert loaded.spans == adjuster.spans
    assert all(parameter.requires_grad for parameter in loaded.parameters())


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(ADJUSTABLE),
    families=st.integers(1, 6),
    hidden=st.integers(1, 40),
    counts=st.lists(st.integers(0, 10**6), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
)
def test_any_adjuster_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, name: str, families: int, hidden: int, counts: list[int], seed: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.safetensors"
    adjuster = taught(name, seed, families=families, hidden=hidden, class_counts=counts)
    adjuster.save(file)
    loaded = Adjuster.load(str(file))
    assert same(outputs(loaded), outputs(adjuster))
    assert torch.equal(loaded.of_class, adjuster.of_class)
    assert loaded.centres == adjuster.centres
    assert loaded.num_families == families


def test_the_header_says_what_the_adjuster_is_for(tmp_path: Path) -> None:
    taught("polysoft", families=2, margin="running").save(tmp_path / "a")
    assert header_of(tmp_path / "a") == {
        "kind": "adjuster",
        "format": 1,
        "version": narl.__version__,
        "loss": "polysoft",
        "ranges": {"lam": [0.5, 20.0], "d": [1.1, 2.0]},
        "families": 2,
        "class_counts": COUNTS,
        "hidden": 5,
        "margin": "running",
        "input": "margin",
    }
    shapes = {key: tuple(value.shape) for key, value in load_file(tmp_path / "a").items()}
    assert shapes == {"hidden.weight": (5, 1), "hidden.bias": (5,), "heads.weight": (4, 5), "heads.bias": (4,)}


@pytest.mark.parametrize("seen", ["margin", "scaled", "rank+progress", "margin+progress+classes"])
def test_what_the_adjuster_sees_is_kept(tmp_path: Path, seen: str) -> None:
    adjuster = taught(input=seen)
    adjuster.progress.fill_(0.7)
    adjuster.save(tmp_path / "a")
    assert header_of(tmp_path / "a")["format"] == (1 if seen == "margin" else 2), "older versions refuse it"
    loaded = Adjuster.load(tmp_path / "a")
    assert loaded.input == seen
    loaded.progress.fill_(0.7)
    assert same(outputs(loaded), outputs(adjuster))


@pytest.mark.parametrize("data", [None, "table"])
def test_the_data_that_it_is_for_is_kept(tmp_path: Path, data: str | None) -> None:
    adjuster = taught()
    adjuster.data = data
    adjuster.save(tmp_path / "a")
    assert ("data" in header_of(tmp_path / "a")) == (data is not None)
    assert Adjuster.load(tmp_path / "a").data == data


def test_sizes_are_kept_in_files_copies_and_states(tmp_path: Path) -> None:
    adjuster = taught()
    assert "sizes" not in adjuster.header().to_json()
    adjuster.sizes = (0.5, 1.0, 2.0)
    adjuster.refit([10, 90, 100, 300])
    assert adjuster.of_class.tolist() == [0, 1, 1, 2]
    adjuster.save(tmp_path / "a")
    again = Adjuster.load(tmp_path / "a")
    assert (again.sizes, again.of_class.tolist()) == ((0.5, 1.0, 2.0), [0, 1, 1, 2])
    assert Adjuster.load(tmp_path / "a", [99, 100, 101]).of_class.tolist() == [1, 1, 1]
    assert copy.deepcopy(again).refit([30, 100]).of_class.tolist() == [0, 2]
    again.refit([5, 5]).load_state_dict(adjuster.state_dict())
    assert again.of_class.tolist() == [0, 1, 1, 2]


def test_how_long_a_training_it_wants_is_kept(tmp_path: Path) -> None:
    adjuster = taught()
    assert "least_steps" not in adjuster.header().to_json()
    adjuster.least_steps = 600
    adjuster.save(tmp_path / "a")
    assert header_of(tmp_path / "a")["format"] == 4, "older versions would use it in any training"
    assert Adjuster.load(tmp_path / "a").least_steps == 600
    assert copy.deepcopy(adjuster).least_steps == 600


def test_that_the_noise_rate_has_a_say_is_kept(tmp_path: Path) -> None:
    adjuster = taught()
    assert "noise_rate" not in adjuster.header().to_json()
    adjuster.noise_rate = "estimated"
    adjuster.save(tmp_path / "a")
    assert header_of(tmp_path / "a")["format"] == files.FORMAT, "older versions would leave it out"
    for again in (Adjuster.load(tmp_path / "a"), copy.deepcopy(adjuster), pickle.loads(pickle.dumps(adjuster))):
        assert again.noise_rate == "estimated"


def test_files_of_before_there_was_a_choice(tmp_path: Path) -> None:
    taught().save(tmp_path / "a")
    header = header_of(tmp_path / "a")
    header.pop("input")
    save_file(load_file(tmp_path / "a"), tmp_path / "old", metadata={"narl": json.dumps(header)})
    assert Adjuster.load(tmp_path / "old").input == "margin"
    for nonsense in ("colour", "+progress", 3):
        header["input"] = nonsense
        save_file(load_file(tmp_path / "a"), tmp_path / "odd", metadata={"narl": json.dumps(header)})
        with pytest.raises(AdjusterFileError, match="nonsense in its header"):
            Adjuster.load(tmp_path / "odd")


def test_a_file_holds_nothing_of_the_samples(tmp_path: Path) -> None:
    adjuster = taught(margin="running")
    adjuster.observe(torch.eye(4), torch.arange(4), torch.arange(4))
    adjuster.save(tmp_path / "a")
    loaded = Adjuster.load(tmp_path / "a").running
    assert loaded is not None
    assert len(loaded.table) == 0


def test_load_can_fit_the_families_to_new_data(path: Path) -> None:
    loaded = Adjuster.load(path, class_counts=[1, 1, 50])
    assert loaded.of_class.tolist() == [0, 0, 1]
    assert same(outputs(loaded), outputs(taught().refit([1, 1, 50])))
    with pytest.raises(ClassCountsError, match="class 0 has -1 samples"):
        Adjuster.load(path, class_counts=[-1, 1])


def test_spans_of_the_file_win_over_those_of_today(path: Path) -> None:
    rewrite(path, ranges={"q": [0.2, 0.6]})
    loaded = Adjuster.load(path)
    shares = (outputs(taught())["q"] - 0.01) / 0.99
    assert_close(outputs(loaded)["q"], 0.2 + 0.4 * shares, rtol=1e-5, atol=1e-6)
    loaded.save(path)
    assert header_of(path)["ranges"] == {"q": [0.2, 0.6]}


def test_a_file_can_be_saved_over_itself(path: Path) -> None:
    loaded = Adjuster.load(path)
    expected = outputs(loaded)
    loaded.save(path)
    taught("gce", seed=9).save(path)
    assert same(outputs(loaded), expected)
    assert same(outputs(Adjuster.load(path)), outputs(taught("gce", seed=9)))
    assert os.listdir(path.parent) == [path.name]


def test_loading_leaves_the_global_random_state_alone(path: Path) -> None:
    before = torch.get_rng_state()
    Adjuster.load(path)
    assert torch.equal(torch.get_rng_state(), before)


# Files that are none


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(AdjusterFileError, match=r"no file .*nowhere\.safetensors: check the path") as caught:
        Adjuster.load(tmp_path / "nowhere.safetensors")
    assert isinstance(caught.value, OSError)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(AdjusterFileError, match="is a folder"):
        Adjuster.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04]\x94.", b"hello, this is a text file", b"\xff" * 64])
def test_files_of_another_format(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    with pytest.raises(AdjusterFileError, match="other is not a safetensors file or is damaged"):
        Adjuster.load(file)


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    torch.save(taught().state_dict(), tmp_path / "pickle.pt")
    with pytest.raises(AdjusterFileError, match="is not a safetensors file"):
        Adjuster.load(tmp_path / "pickle.pt")


def test_truncated_anywhere(path: Path) -> None:
    content = path.read_bytes()
    for length in (1, 8, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(AdjusterFileError, match="damaged"):
            Adjuster.load(path)


def test_a_damaged_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8:12] = b"\x00\x00\x00\x00"
    path.write_bytes(bytes(content))
    with pytest.raises(AdjusterFileError, match="damaged"):
        Adjuster.load(path)


@pytest.mark.parametrize(
    "metadata",
    [None, {"narl": "null"}, {"narl": "[1]"}, {"narl": json.dumps({"kind": "checkpoint"})}, {"format": "pt"}],
    ids=str,
)
def test_safetensors_of_another_kind(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "other", metadata=metadata)
    with pytest.raises(AdjusterFileError, match=r"is not a narl adjuster: give a file that Adjuster\.save wrote"):
        Adjuster.load(tmp_path / "other")


def test_a_header_that_is_no_json(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "other", metadata={"narl": "{"})
    with pytest.raises(AdjusterFileError, match="damaged"):
        Adjuster.load(tmp_path / "other")


@pytest.mark.parametrize("future", [files.FORMAT + 1, 99, "2", None])
def test_a_newer_format(future: Any, path: Path) -> None:
    rewrite(path, format=future, version="7.1")
    with pytest.raises(AdjusterFileError, match=rf"has format {future}, written by narl 7\.1.*upgrade narl"):
        Adjuster.load(path)


# Contents that contradict the header


@pytest.mark.parametrize("entry", ["loss", "ranges", "families", "class_counts", "hidden", "margin"])
def test_a_header_with_a_missing_entry(entry: str, path: Path) -> None:
    rewrite(path, **{entry: None})
    with pytest.raises(AdjusterFileError, match=f"has no {entry} in its header"):
        Adjuster.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"families": "3"},
        {"families": 0},
        {"families": 2.5},
        {"hidden": "many"},
        {"hidden": -1},
        {"loss": 3},
        {"margin": "mean"},
        {"class_counts": "many"},
        {"ranges": [0.1, 1.0]},
        {"ranges": {"q": [0.1]}},
        {"ranges": {"q": ["a", "b"]}},
        {"sizes": 1.0},
        {"sizes": [0.5, 1.0]},
        {"sizes": [0.5, 1.0, "large"]},
        {"sizes": [0.0, 1.0, 2.0]},
        {"sizes": [1.0, 0.5, 2.0]},
        {"sizes": [0.5, 1.0, math.nan]},
        {"least_steps": 0},
        {"least_steps": 600.5},
        {"least_steps": "600"},
        {"noise_rate": 0.4},
        {"noise_rate": "ignored"},
    ],
    ids=str,
)
def test_a_header_with_nonsense_in_it(change: dict[str, Any], path: Path) -> None:
    rewrite(path, **change)
    with pytest.raises(NarlError):
        Adjuster.load(path)


@pytest.mark.parametrize("span", [[0.9, 0.1], [-5.0, 9.0], [0.1, float("nan")]], ids=str)
def test_a_span_outside_the_losss_range(span: list[float], path: Path) -> None:
    rewrite(path, ranges={"q": span})
    with pytest.raises(NarlError, match="q"):
        Adjuster.load(path)


def test_an_unknown_loss_names_it(path: Path) -> None:
    rewrite(path, loss="gcee")
    with pytest.raises((AdjusterFileError, UnknownNameError), match=r"gcee.*gce"):
        Adjuster.load(path)


def test_other_hyperparameters_than_the_losss(path: Path) -> None:
    rewrite(path, ranges={"p": [0.1, 1.0]})
    with pytest.raises(AdjusterFileError, match="adjusts p but the registered 'gce' has q: register"):
        Adjuster.load(path)


def shrunk(tensors: dict[str, Tensor]) -> None:
    tensors["heads.weight"] = tensors["heads.weight"][:, :4].contiguous()


def missing(tensors: dict[str, Tensor]) -> None:
    del tensors["hidden.bias"]


def extra(tensors: dict[str, Tensor]) -> None:
    tensors["more"] = torch.zeros(1)


@pytest.mark.parametrize("spoil", [shrunk, missing, extra])
def test_tensors_other_than_promised(spoil: Callable[[dict[str, Tensor]], None], path: Path) -> None:
    header, tensors = header_of(path), load_file(path)
    spoil(tensors)
    save_file(tensors, path, metadata={"narl": json.dumps(header)})
    with pytest.raises(AdjusterFileError, match="but its header promises"):
        Adjuster.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["hidden.weight", "hidden.bias", "heads.weight", "heads.bias"])
def test_tensors_that_are_not_finite(key: str, value: float, path: Path) -> None:
    header, tensors = header_of(path), load_file(path)
    tensors[key].view(-1)[2] = value
    save_file(tensors, path, metadata={"narl": json.dumps(header)})
    with pytest.raises(AdjusterFileError, match=f"NaN, infinity or no floats in {key}"):
        Adjuster.load(path)


# Failing writes


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("owner", "attribute", "fault"),
    [(files, "save", refuse), (os, "fsync", refuse), (os, "replace", refuse)],
    ids=["write", "sync", "rename"],
)
def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    owner: Any, attribute: str, fault: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, fault)
        with pytest.raises(AdjusterFileError, match=r"cannot write the adjuster to .*adjuster\.safetensors.*space"):
            taught(seed=8).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_saving_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(AdjusterFileError, match="check that the folder exists"):
        taught().save(tmp_path / "no" / "such" / "folder.safetensors")
    assert os.listdir(tmp_path) == []


def test_saving_over_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(AdjusterFileError, match="cannot write the adjuster to"):
        taught().save(folder)
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_saving_to_a_path_without_a_file_name(name: str) -> None:
    with pytest.raises(AdjusterFileError, match="cannot write the adjuster to"):
        taught().save(name)
