"""Labels in files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from narl.data.read import detect_columns, read
from narl.errors import DataError

TRUE = np.array([0, 1, 2, 0, 1, 2])
NOISY = np.array([0, 1, 1, 0, 2, 2])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=np.eye(6), y=TRUE, classes=np.array(["cat", "dog", "eel"]), other=NOISY)
    return tmp_path / "data.npz"


def save(folder: Path, kind: str) -> str:
    """CIFAR-10N's labels, as published or converted."""
    labels: dict[str, Any] = {"clean_label": TRUE, "aggre_label": TRUE, "worse_label": NOISY}
    if kind == "npz":
        np.savez(folder / "human.npz", **labels)
    elif kind == "pt":
        torch.save(labels, folder / "human.pt")
    elif kind == "old pt":
        torch.save(labels, folder / "human.pt", _use_new_zipfile_serialization=False)
    elif kind == "tensors":
        torch.save({name: torch.tensor(value) for name, value in labels.items()}, folder / "human.pt")
    elif kind == "csv":
        rows = "".join(f"{true},{noisy}\n" for true, noisy in zip(TRUE, NOISY, strict=True))
        (folder / "human.csv").write_text("clean_label,worse_label\n" + rows)
    elif kind == "jsonl with ids":
        rows = "".join(json.dumps({"id": str(row), "worse_label": int(NOISY[row])}) + "\n" for row in range(5, -1, -1))
        (folder / "human.jsonl").write_text(rows)
    suffix = {"old pt": "pt", "tensors": "pt", "jsonl with ids": "jsonl"}.get(kind, kind)
    return f"{folder}/human.{suffix}:worse_label"


@pytest.mark.parametrize("kind", ["npz", "pt", "old pt", "tensors", "csv", "jsonl with ids"])
def test_every_kind_of_file(tmp_path: Path, data: Path, kind: str) -> None:
    samples = read(data, labels=save(tmp_path, kind))
    assert samples.classes == ("cat", "dog", "eel")
    assert samples.labels.tolist() == NOISY.tolist()
    assert samples.true_labels is not None
    assert samples.true_labels.tolist() == TRUE.tolist()


@pytest.mark.parametrize("names", [True, False])
def test_one_label_a_line_or_an_array(tmp_path: Path, data: Path, names: bool) -> None:
    words = [("cat", "dog", "eel")[label] if names else str(label) for label in NOISY]
    (tmp_path / "labels.txt").write_text("\n".join(words))
    assert read(data, labels=str(tmp_path / "labels.txt")).labels.tolist() == NOISY.tolist()
    np.save(tmp_path / "labels.npy", np.array(words))
    assert read(data, labels=str(tmp_path / "labels.npy")).labels.tolist() == NOISY.tolist()
    assert read(data, labels=f"{data}:other").labels.tolist() == NOISY.tolist()


def test_a_class_that_only_the_file_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.eye(3), y=np.array([0, 1, 1]))
    np.save(tmp_path / "labels.npy", np.array([0, 10, 2]))
    samples = read(tmp_path / "data.npz", labels=str(tmp_path / "labels.npy"))
    assert samples.classes == ("0", "1", "2", "10")
    assert samples.labels.tolist() == [0, 3, 2]
    assert samples.true_labels is not None
    assert samples.true_labels.tolist() == [0, 1, 1]


def test_a_table_without_labels(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("id,x,colour\na,1,red\nb,2,blue\n")
    (tmp_path / "labels.csv").write_text("id,label\nb,no\na,yes\n")
    samples = read(tmp_path / "data.csv", labels=str(tmp_path / "labels.csv"))
    assert samples.classes == ("no", "yes")
    assert samples.labels.tolist() == [1, 0]
    assert samples.true_labels is None
    assert detect_columns(tmp_path / "data.csv", own_labels=False).categories == ("colour",)


def test_files_in_another_order_are_noticed(tmp_path: Path, data: Path) -> None:
    np.savez(tmp_path / "human.npz", clean_label=TRUE[::-1], worse_label=NOISY)
    with pytest.raises(DataError, match="samples in another order"):
        read(data, labels=f"{tmp_path}/human.npz:worse_label")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def test_bad_label_files(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "npz")
    torch.save({"worse_label": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "short.txt").write_text("0\n1\n")
    (tmp_path / "unknown.txt").write_text("cat\ndog\neel\ncat\ndogg\neel\n")
    (tmp_path / "few.csv").write_text("id,label\n0,1\n1,2\n")
    (tmp_path / "twice.csv").write_text("id,label\n0,1\n0,2\n")
    (tmp_path / "a.xlsx").write_text("")
    for spec, message in {
        "human.npz": r"several arrays .*human.npz:KEY",
        "human.npz:worst_label": "no 'worst_label': did you mean 'worse_label'",
        "humann.npz:worse_label": r"no file of labels .*did you mean .*human.npz",
        "short.txt": "2 labels for 6 samples",
        "short.txt:x": "leave out",
        "unknown.txt": r"class 'dogg', .*did you mean 'dog'",
        "few.csv": r"no label for 4 of 6 samples \('2', '3'",
        "twice.csv": "names a sample twice",
        "a.xlsx": "labels cannot be read from",
        ".": "is a folder",
        "evil.pt": "only arrays",
    }.items():
        with pytest.raises(DataError, match=message):
            read(data, labels=f"{tmp_path}/{spec}")
    assert "unpickled" not in capsys.readouterr().out
