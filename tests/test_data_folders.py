"""Folders of class folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from narl.data.read import has_part, read, read_inputs
from narl.data.samples import ImageFiles
from narl.errors import DataError, NarlWarning


def image(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size)).save(path)
    return path


def test_classes_are_folders_in_natural_order(tmp_path: Path) -> None:
    for name in ("c10/b.png", "c10/a10.png", "c10/a9.png", "c2/x.JPG", "c2/deep/er/y.webp"):
        image(tmp_path / name)
    (tmp_path / "c2" / "notes.txt").write_text("no image")
    (tmp_path / "c2" / ".hidden.png").write_text("no image")
    (tmp_path / ".git").mkdir()
    samples = read(tmp_path)
    assert samples.classes == ("c2", "c10")
    assert samples.ids.tolist() == ["c2/deep/er/y.webp", "c2/x.JPG", "c10/a9.png", "c10/a10.png", "c10/b.png"]
    assert samples.labels.tolist() == [0, 0, 1, 1, 1]
    assert isinstance(samples.inputs, ImageFiles)
    assert all(samples.inputs.path(row).is_file() for row in range(5))
    np.testing.assert_array_equal(samples.ids, read(str(tmp_path), layout="folder").ids)


@pytest.mark.parametrize("test", ["test", "val", "valid"])
def test_parts(tmp_path: Path, test: str) -> None:
    for name in ("train/a/1.png", "train/b/2.png", f"{test}/b/3.png"):
        image(tmp_path / name)
    assert has_part(tmp_path, "train")
    assert has_part(tmp_path, "test")
    train = read(tmp_path)
    assert train.ids.tolist() == ["train/a/1.png", "train/b/2.png"]
    tested = read(tmp_path, part="test", classes=train.classes)
    assert tested.ids.tolist() == [f"{test}/b/3.png"]
    assert tested.labels.tolist() == [1]
    assert read_inputs(tmp_path).ids.tolist() == [f"{test}/b/3.png"]


def test_a_test_class_that_training_does_not_know(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/dog/2.png", "test/cats/3.png"):
        image(tmp_path / name)
    with pytest.raises(DataError, match=r"class 'cats', .* \('cat', 'dog'\): did you mean 'cat'\?"):
        read(tmp_path, part="test", classes=("cat", "dog"))
    (tmp_path / "test").rename(tmp_path / "other")
    with pytest.raises(DataError, match="no test part"):
        read(tmp_path, part="test")


def test_images_to_predict_need_no_classes(tmp_path: Path) -> None:
    image(tmp_path / "b.png")
    image(tmp_path / "in" / "a.png")
    assert read_inputs(tmp_path).ids.tolist() == ["b.png", "in/a.png"]
    assert read_inputs(tmp_path / "b.png").ids.tolist() == ["b.png"]


def test_links_in_circles_end(tmp_path: Path) -> None:
    image(tmp_path / "a" / "1.png")
    image(tmp_path / "b" / "2.png")
    os.symlink(tmp_path, tmp_path / "a" / "up")
    os.symlink(tmp_path / "b", tmp_path / "b" / "self")
    os.symlink("loop", tmp_path / "b" / "loop")
    samples = read(tmp_path)
    assert samples.classes == ("a", "b")
    assert "b/2.png" in samples.ids.tolist()
    assert read_inputs(tmp_path).ids.tolist()[0] == "a/1.png"


def test_deep_folders(tmp_path: Path) -> None:
    image(tmp_path / "a" / "1.png")
    image(tmp_path / "b" / Path(*["d"] * 400) / "1.png")
    assert len(read(tmp_path)) == 2


def test_unreadable_images_are_left_out_on_request(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        image(tmp_path / name)
    (tmp_path / "a" / "2.png").write_bytes(b"broken")
    assert len(read(tmp_path)) == 3, "reading alone decodes nothing"
    with pytest.warns(NarlWarning, match=r"1 of 3 images of .* cannot be read and are left out: 'a/2.png'"):
        assert read(tmp_path, skip_unreadable=True).ids.tolist() == ["a/1.png", "b/3.png"]
    with pytest.warns(NarlWarning, match=r"1 of 3 images of .* cannot be read and are left out: 'a/2.png'"):
        found = read_inputs(tmp_path, skip_unreadable=True)
    assert found.ids.tolist() == ["a/1.png", "b/3.png"]
    assert isinstance(found.inputs, ImageFiles)
    assert found.inputs.paths.tolist() == ["a/1.png", "b/3.png"]
    (tmp_path / "b" / "3.png").write_bytes(b"broken")
    with pytest.warns(NarlWarning), pytest.raises(DataError, match="no sample of 'b'"):
        read(tmp_path, skip_unreadable=True)
    (tmp_path / "a" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="none of the 3 images"):
        read(tmp_path, skip_unreadable=True)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        read(tmp_path)
    (tmp_path / "readme.md").write_text("")
    with pytest.raises(DataError, match=r"no class folders, only 'readme.md'"):
        read(tmp_path)
    image(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"holds images \('1.png'\) but no class folders"):
        read(tmp_path)
    image(tmp_path / "cat" / "2.png")
    with pytest.raises(DataError, match="one class only"):
        read(tmp_path)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"class folder .*dog holds no images \(1 other files\)"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"1.png is no folder"):
        read(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"no file or folder .*cats: did you mean .*cat\?"):
        read(tmp_path / "cats")
    with pytest.raises(DataError, match=r"holds no images \(1 other files\)"):
        read_inputs(tmp_path / "dog")


def test_a_file_name_that_is_not_text(tmp_path: Path) -> None:
    image(tmp_path / "a" / "1.png")
    folder = os.fsencode(tmp_path / "b")
    os.mkdir(folder)
    with open(folder + b"/\xff.png", "wb"):
        pass
    with pytest.raises(DataError, match=r"not UTF-8 \('b/\\udcff.png'\)"):
        read(tmp_path)
