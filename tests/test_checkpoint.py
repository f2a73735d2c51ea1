"""Checkpoints: exact round trips, every damaged byte found, and the one before when the last is damaged."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from full_disk import file_size_limit
from narl.errors import CheckpointError, NarlError, OptionError, RunFolderError
from narl.train import checkpoint, trees
from narl.train.checkpoint import Checkpoints, load, save


def bits(tensor: Tensor) -> bytes:
    return (
        tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )


def same(one: Any, other: Any) -> bool:
    """Equal in kind, order, dtype and every bit."""
    if isinstance(one, Tensor):
        alike = isinstance(other, Tensor) and one.shape == other.shape and one.dtype == other.dtype
        return alike and bits(one) == bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            type(a) is type(b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


def round_trip(path: Path, tree: Any) -> Any:
    save(path, tree)
    return load(path)


TREE = {
    "epoch": 3,
    "big": 2**200,
    "name": "naïve \x00 \ud800 \u2028 \"quoted\" 'too'",
    "floats": [0.1, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
    "flags": (True, False, None, ()),
    "empty": {"dict": {}, "list": [], "tuple": ()},
    "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4, generator=torch.Generator().manual_seed(0))}},
    "0": {1: "int", "1": "str", -5: "negative"},
    "a.b": torch.tensor([1]),
    "a": {"b": torch.tensor([2])},
    "tensor": {"tensor": "not a tensor", "float": "nan", "dict": [], "stride": [1]},
    "__metadata__": torch.tensor([3]),
    "": torch.tensor([4]),
    "\ud800": torch.tensor([5]),
}


# Round trips


def test_everything_comes_back(path: Path) -> None:
    assert same(round_trip(path, TREE), TREE)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "tree", [None, True, 0, -0.0, "", "x", [], (), {}, torch.tensor(1.5), [[[]]], {1: ()}], ids=repr
)
def test_trees_of_one_value(path: Path, tree: Any) -> None:
    assert same(round_trip(path, tree), tree)


@pytest.mark.parametrize("dtype", [*trees.DTYPES, torch.complex64, torch.complex128, torch.complex32], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (3, 5)], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_and_shape(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (10 * torch.rand(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    found = round_trip(path, {"x": tensor, "y": [tensor]})
    assert same(found, {"x": tensor, "y": [tensor]})
    assert found["x"].stride() == tensor.stride()


def test_bits_of_unusual_numbers(path: Path) -> None:
    patterns = torch.tensor([0x7FC00001, 0x7F800001 - 2**32, 0x80000000 - 2**32, 1], dtype=torch.int64)
    tensor = patterns.to(torch.int32).view(torch.float32)  # NaNs with a payload, -0, the smallest number
    assert same(round_trip(path, tensor), tensor)


BASE = torch.arange(240.0).reshape(4, 5, 4, 3)
VIEWS = {
    "transposed": BASE[0, 0].T,
    "permuted": BASE.permute(3, 1, 0, 2),
    "channels last": BASE.to(memory_format=torch.channels_last),
    "1×1 channels last": BASE[:, :, :1, :1].contiguous().to(memory_format=torch.channels_last),
    "1×1": BASE[:, :, :1, :1].contiguous(),
    "one channel": BASE[:, :1].contiguous().to(memory_format=torch.channels_last),
    "3d channels last": BASE[None].to(memory_format=torch.channels_last_3d),
}
GAPS = {
    "steps": BASE[:, ::2],
    "slice": BASE[..., 1],
    "expanded": torch.ones(3, 1).expand(3, 4),
    "flipped": BASE.flip(0)[1:],
    "gaps, channels last": BASE.to(memory_format=torch.channels_last)[:, 1:3],
    "windows": torch.arange(9.0).unfold(0, 3, 1),
}


@pytest.mark.parametrize("name", [*VIEWS, *GAPS])
def test_memory_format(path: Path, name: str) -> None:
    tensor = {**VIEWS, **GAPS}[name]
    found = round_trip(path, tensor)
    assert same(found, tensor)
    assert found.stride() == tensor.clone().stride()
    if name in VIEWS:
        assert found.stride() == tensor.stride()
    assert found.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_conjugated_and_negated(path: Path) -> None:
    numbers = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    tree = {"conjugated": numbers.conj(), "transposed": numbers.mH, "negated": numbers.conj().imag}
    assert same(round_trip(path, tree), tree)


def test_shared_memory(path: Path) -> None:
    weight = torch.arange(12.0)
    tree = {"whole": weight, "again": weight, "half": weight[:6], "rows": weight.view(3, 4), "middle": weight[3:9]}
    found = round_trip(path, tree)
    assert same(found, tree)
    found["whole"].zero_()
    assert same({**found, "whole": weight}, tree)


def test_loaded_tensors_do_not_hang_on_the_file(path: Path) -> None:
    save(path, {"x": torch.ones(5000)})
    found = load(path)["x"]
    path.write_bytes(b"")
    found += 1
    assert (found == 2).all()


def test_parameters_become_tensors(path: Path) -> None:
    layer = nn.Linear(2, 3)
    found = round_trip(path, layer.state_dict())
    assert type(found) is dict
    assert same(found, dict(layer.state_dict()))
    parameter = round_trip(path, layer.weight)
    assert type(parameter) is Tensor
    assert not parameter.requires_grad


def test_kinds_that_are_nearly_plain(path: Path) -> None:
    tree = OrderedDict(size=torch.Size([2, 3]), number=np.float64(0.5), name=np.str_("x"))
    assert same(round_trip(path, tree), {"size": (2, 3), "number": 0.5, "name": "x"})


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
TENSORS = st.builds(
    lambda shape, dtype, seed: (9 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
    st.integers(0, 9),
)
TREES = st.recursive(
    PLAIN | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(tree=TREES)
def test_any_tree_survives(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    if isinstance(tree, float) and math.isnan(tree):
        tree = math.nan  # of a float's NaNs there is one
    file = tmp_path_factory.getbasetemp() / "any.safetensors"
    found = round_trip(file, tree)
    structure, tensors = trees.flatten(tree)
    again, others = trees.flatten(found)
    assert json.dumps(structure) == json.dumps(again)
    assert same(tensors, others)
    stored = load_file(file)  # in no particular order
    assert same(stored, {name: tensors[name] for name in stored})


def test_other_programs_read_it(path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save(path, {"model": model.state_dict(), "step": 7})
    found = load_file(path)
    assert set(found) == {f"model.{name}" for name in model.state_dict()}
    assert all(torch.equal(found[f"model.{name}"], value) for name, value in model.state_dict().items())
    with safe_open(str(path), framework="np") as file:
        about = json.loads(file.metadata()["narl"])
        assert np.array_equal(file.get_tensor("model.0.bias"), model.state_dict()["0.bias"].numpy())
    assert (about["kind"], about["format"]) == ("checkpoint", 1)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    begins = [entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"]
    assert all(begin % 4 == 0 for begin in begins)


# Training goes on bit for bit


class Run:
    def __init__(self, seed: int, adam: bool) -> None:
        torch_state = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch_state))
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, 0.01, amsgrad=True)
            if adam
            else torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)
        )
        self.generator = torch.Generator().manual_seed(seed + 1)

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            images = torch.randn(6, 3, 9, 9, generator=self.generator).to(memory_format=torch.channels_last)
            loss = nn.functional.cross_entropy(self.model(images), torch.arange(6))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def tree(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def restore(self, tree: dict[str, Any]) -> None:
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(tree["optimizer"])
        self.generator.set_state(tree["generator"])


@pytest.mark.parametrize("adam", [False, True])
def test_a_channels_last_model_goes_on_as_if_never_stopped(path: Path, adam: bool) -> None:
    whole = Run(0, adam)
    first = whole.train(4)
    save(path, whole.tree())
    second = whole.train(4)
    resumed = Run(5, adam)
    resumed.restore(load(path))
    assert resumed.train(4) == second
    assert first != second
    assert same(resumed.tree()["optimizer"], whole.tree()["optimizer"])
    states = [run.optimizer.state_dict()["state"] for run in (whole, resumed)]
    for number, entries in states[0].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                assert states[1][number][name].stride() == value.stride()


# Damage


SMALL = {"epoch": 3, "lr": math.inf, "w": torch.arange(6.0).reshape(2, 3), "state": {0: torch.tensor(True)}}


def test_every_changed_byte_is_found(path: Path) -> None:
    save(path, SMALL)
    content = path.read_bytes()
    for place, mask in zip(range(len(content)), itertools.cycle((0x01, 0x20, 0x80, 0xFF)), strict=False):
        changed = bytearray(content)
        changed[place] = ord("\t") if changed[place] == ord(" ") else changed[place] ^ mask  # padding counts too
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            load(path)
    path.write_bytes(content)
    assert same(load(path), SMALL)


def test_every_truncation_is_found(path: Path) -> None:
    save(path, SMALL)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut short|is not a checkpoint"):
            load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="cut short or changed; use an earlier checkpoint"):
        load(path)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_damage_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save(file, SMALL)
    content = file.read_bytes()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, min(len(content), begin + 40)))
    changed = content[:begin] + data.draw(st.binary(max_size=40)) + content[end:]
    file.write_bytes(changed)
    if changed == content:
        assert same(load(file), SMALL)
    else:
        with pytest.raises(CheckpointError):
            load(file)


def signed(tensors: dict[str, Tensor], about: Any) -> bytes:
    """A file with a right digest and any contents: what a person could make on purpose."""
    narl = about if isinstance(about, str) else json.dumps(about)
    metadata = {"digest": "0" * 64, "narl": narl}
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, value in tensors.items():
        begin, data = len(data), data + bits(value)
        header[name] = {
            "dtype": trees.DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [begin, len(data)],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    whole = len(head).to_bytes(8, "little") + head + data
    digest = hashlib.blake2b(whole, digest_size=32).hexdigest().encode()
    return whole.replace(b"0" * 64, digest, 1)


GOOD = {"kind": "checkpoint", "format": 1, "version": "0.1", "structure": {"tensor": "x", "stride": [1]}}


def test_the_signed_helper_signs(path: Path) -> None:
    path.write_bytes(signed({"x": torch.ones(3)}, GOOD))
    assert same(load(path), torch.ones(3))


@pytest.mark.parametrize(
    "about",
    [
        "{",
        "[" * 100_000,
        "null",
        {},
        {**GOOD, "kind": "adjuster"},
        {**GOOD, "format": 2},
        {"kind": "checkpoint", "format": 1},
        *(
            {**GOOD, "structure": structure}
            for structure in (
                {"tensor": "y", "stride": [1]},
                {"tensor": "x"},
                {"tensor": ["x"], "stride": [1]},
                {"tensor": "x", "stride": [1, 1]},
                {"tensor": "x", "stride": ["1"]},
                {"tensor": "x", "stride": [-1]},
                {"tensor": "x", "stride": [2**62]},
                {"tensor": "x", "stride": [2**80]},
                {"tensor": "x", "stride": None},
                {"tensor": "x", "stride": [1], "complex": True},
                {"other": 3},
                {"dict": [["a"]]},
                {"dict": [[[], 3]]},
                {"dict": 3},
                {"tuple": 3},
                {"float": "many"},
                {"float": None},
            )
        ),
    ],
    ids=range(24),
)
def test_nonsense_with_a_right_digest(path: Path, about: Any) -> None:
    path.write_bytes(signed({"x": torch.ones(3)}, about))
    with pytest.raises(
        CheckpointError, match=r"a\.safetensors (is damaged|is not a checkpoint|has format 2.*upgrade narl)"
    ):
        load(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04]\x94.", b"hello, this is a text file", b"\xff" * 64, b"\0" * 99])
def test_files_of_another_format(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a checkpoint of narl"):
        load(path)


def test_a_pickle_is_not_run(path: Path) -> None:
    torch.save(SMALL, path)
    with pytest.raises(CheckpointError, match="is not a checkpoint of narl"):
        load(path)


def test_safetensors_of_others(path: Path) -> None:
    for metadata in (None, {"format": "pt"}, {"digest": "0" * 64}, {"digest": "0"}):
        save_file({"weight": torch.zeros(3)}, path, metadata=metadata)
        with pytest.raises(CheckpointError, match=r"is not a checkpoint of narl|is damaged"):
            load(path)


def test_no_file(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*a\.safetensors: check the path") as caught:
        load(path)
    assert isinstance(caught.value, NarlError)
    with pytest.raises(CheckpointError, match="Is a directory"):
        load(path.parent)


# Trees that cannot be saved


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(3), "a ndarray"),
        (np.int64(3), "a int64"),
        ({1, 2}, "a set"),
        (b"x", "a bytes"),
        (1j, "a complex"),
        (torch.float32, "a dtype"),
        ({True: 1}, "the key True"),
        ({(1, 2): 1}, r"the key \(1, 2\)"),
        ({None: 1}, "the key None"),
        (torch.eye(3).to_sparse(), "a sparse, nested or meta tensor"),
        (torch.ones(3, device="meta"), "a sparse, nested or meta tensor"),
        (torch.zeros(3, dtype=torch.float8_e4m3fnuz), "a tensor of torch.float8_e4m3fnuz"),
    ],
    ids=str,
)
def test_what_a_checkpoint_cannot_hold(path: Path, value: Any, words: str) -> None:
    with pytest.raises(OptionError, match=rf"a checkpoint cannot hold {words} at 'method\.1': give dict"):
        save(path, {"method": [0, value]})
    with pytest.raises(OptionError, match=rf"a checkpoint cannot hold {words} as a whole"):
        save(path, value)
    assert os.listdir(path.parent) == []


# Failing disks


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device; free some space; nothing of the run so far is lost"),
        (errno.EROFS, "Read-only file system; allow writing there; nothing of the run so far is lost"),
        (errno.EACCES, "Permission denied; allow writing there; nothing of the run so far is lost"),
        (errno.EIO, "Input/output error; check the disk; nothing of the run so far is lost"),
    ],
)
def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    path: Path, call: str, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, SMALL)

    def refuse(*_: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(RunFolderError, match=rf"cannot write .*a\.safetensors: {words}"):
            save(path, TREE)
    assert same(load(path), SMALL)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("room", [0, 100, 5000, 40_000])
def test_a_file_that_cannot_grow(path: Path, room: int) -> None:
    save(path, SMALL)
    with (
        file_size_limit(room),
        pytest.raises(RunFolderError, match=r"File too large; .*nothing of the run so far is lost"),
    ):
        save(path, {"w": torch.ones(20_000), "v": torch.ones(3)})
    assert same(load(path), SMALL)
    assert os.listdir(path.parent) == [path.name]


def test_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name in ("folder", "no/folder", "file/below", "/proc/checkpoint"):
        with pytest.raises(RunFolderError, match="cannot write"):
            save(tmp_path / name, SMALL)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_disk_that_cannot_sync_folders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refuse)
    assert same(round_trip(path, SMALL), SMALL)


# The last few


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(os.listdir(checkpoints.folder))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "checkpoints")
    for epoch in range(1, 5):
        saved = checkpoints.save({"epoch": epoch}, epoch=epoch, step=150 * epoch)
        found = checkpoints.latest()
        assert (found.tree, found.path, found.rejected) == ({"epoch": epoch}, saved, [])
    assert names(checkpoints) == ["epoch-0003-step-00000450.safetensors", "epoch-0004-step-00000600.safetensors"]


def test_order_is_by_number_not_by_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for epoch, step in [(2, 0), (2, 99_999_999), (2, 100_000_000), (9999, 0), (10_000, 5), (10_000, 6)]:
        checkpoints.save([epoch, step], epoch, step)
        assert checkpoints.latest().tree == [epoch, step]
    assert len(names(checkpoints)) == 3


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        found = Checkpoints(folder).latest()
        assert (found.tree, found.path, found.rejected, found.remarks) == (None, None, [], [])


def test_the_one_before_a_damaged_one_is_used(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, second = checkpoints.save(SMALL, 1, 10), checkpoints.save(TREE, 2, 20)
    second.write_bytes(second.read_bytes()[:-1])
    found = checkpoints.latest()
    assert found.path == first
    assert same(found.tree, SMALL)
    [(rejected, reason)] = found.rejected
    assert rejected == second
    assert "cut short or changed" in reason
    [remark] = found.remarks
    assert remark == f"{reason} ({first.name} is used instead)"

    first.write_bytes(b"")
    found = checkpoints.latest()
    assert (found.tree, found.path) == (None, None)
    assert [path for path, _ in found.rejected] == [second, first]
    assert all("the run begins anew" in remark for remark in found.remarks)


def test_a_damaged_one_does_not_displace_whole_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save([1], 1, 0)
    checkpoints.save([9], 9, 0).write_bytes(b"damaged")
    assert checkpoints.latest().tree == [1]
    checkpoints.save([2], 1, 5)
    assert names(checkpoints) == ["epoch-0001-step-00000000.safetensors", "epoch-0001-step-00000005.safetensors"]
    assert checkpoints.latest().tree == [2]


def test_what_kills_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    mine = ["best.safetensors", "epoch-1.safetensors", ".notes.tmp", "epoch-0001-step-00000001.safetensors.bak"]
    for name in [*mine, ".epoch-0007-step-00000001.safetensors.tmp"]:
        (tmp_path / name).write_bytes(b"partial")
    saved = checkpoints.save([1], 1, 1)
    assert names(checkpoints) == sorted([*mine, saved.name])
    checkpoints.clear()
    assert names(checkpoints) == sorted(mine)
    assert checkpoints.latest().tree is None


def test_a_full_disk_keeps_the_old_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(SMALL, 1, 0)
    with file_size_limit(1000), pytest.raises(RunFolderError, match="nothing of the run so far is lost"):
        checkpoints.save({"w": torch.ones(5000)}, 2, 0)
    assert same(checkpoints.latest().tree, SMALL)
    assert len(names(checkpoints)) == 1


def test_an_old_one_that_cannot_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save([1], 1, 0)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    checkpoints.save([2], 2, 0)
    assert checkpoints.latest().tree == [2]


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(tmp_path / "file")
    with pytest.raises(RunFolderError, match=r"cannot read .*Not a directory"):
        checkpoints.latest()
    with pytest.raises(RunFolderError, match=r"cannot write .*File exists"):
        checkpoints.save([1], 1, 0)
    with pytest.raises(OptionError, match="cannot keep 0 checkpoints"):
        Checkpoints(tmp_path, keep=0)


def test_versions_are_in_the_file(path: Path) -> None:
    save(path, SMALL)
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["narl"])
    assert about["version"]
    assert about["format"] == checkpoint.FORMAT
