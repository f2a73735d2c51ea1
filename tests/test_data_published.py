"""Published folder layouts, each as a tiny folder of the same shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from narl.data.read import has_part, read, read_inputs
from narl.data.samples import ImageFiles, Samples
from narl.errors import DataError


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def names(samples: Samples) -> list[str]:
    assert isinstance(samples.inputs, ImageFiles)
    assert all(samples.inputs.path(row).is_file() for row in range(len(samples)))
    return [samples.classes[label] for label in samples.labels]


def tiny_imagenet(root: Path) -> Path:
    text(root / "wnids.txt", "n02124075", "n01443537")
    text(root / "words.txt", "n01443537\tgoldfish, Carassius auratus", "n02124075\tEgyptian cat", "n00001740\tentity")
    for synset in ("n01443537", "n02124075"):
        for index in (0, 1, 10):
            image(root / "train" / synset / "images" / f"{synset}_{index}.JPEG")
        text(root / "train" / synset / f"{synset}_boxes.txt", f"{synset}_0.JPEG\t0\t10\t63\t58")
    for index, synset in enumerate(("n02124075", "n01443537")):
        image(root / "val" / "images" / f"val_{index}.JPEG")
        with (root / "val" / "val_annotations.txt").open("a") as file:
            file.write(f"val_{index}.JPEG\t{synset}\t0\t32\t44\t62\n")
    image(root / "test" / "images" / "test_0.JPEG")
    return root


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    train = read(root)
    assert train.classes == ("n01443537 goldfish", "n02124075 Egyptian cat")
    assert len(train) == 6
    assert train.ids[2] == "train/n01443537/images/n01443537_10.JPEG"
    assert names(train) == ["n01443537 goldfish"] * 3 + ["n02124075 Egyptian cat"] * 3
    assert has_part(root, "test")
    test = read(root, part="test", classes=train.classes)
    assert names(test) == ["n02124075 Egyptian cat", "n01443537 goldfish"]
    assert test.ids.tolist() == ["val/images/val_0.JPEG", "val/images/val_1.JPEG"]
    (root / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"no image .*val_1.JPEG"):
        read(root, part="test", classes=train.classes)
    text(root / "val" / "val_annotations.txt", "val_0.JPEG\tn00000000\t0\t0\t0\t0")
    with pytest.raises(DataError, match=r"'n00000000' is not in wnids.txt"):
        read(root, part="test", classes=train.classes)


def animal10n(root: Path) -> Path:
    for label in range(10):
        for number in (7, 10):
            image(root / "training" / f"{label}_{number}.jpg")
        image(root / "testing" / f"{label}_3.jpg")
    return root


def test_animal10n(tmp_path: Path) -> None:
    animal10n(tmp_path)
    train = read(tmp_path)
    assert train.classes[0] == "cat"
    assert train.classes[9] == "guinea pig"
    assert train.ids[:3].tolist() == ["training/0_7.jpg", "training/0_10.jpg", "training/1_7.jpg"]
    assert train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    test = read(tmp_path, part="test", classes=train.classes)
    assert test.labels.tolist() == list(range(10))
    assert has_part(tmp_path, "test")


def food101n(root: Path) -> Path:
    text(root / "meta" / "classes.txt", "class_name", "apple_pie", "waffles")
    keys = [f"{name}/{index:02x}.jpg" for name in ("apple_pie", "waffles") for index in range(4)]
    for key in keys:
        image(root / "images" / key)
    text(root / "meta" / "imagelist.tsv", "class_name/key", *keys)
    text(root / "meta" / "verified_train.tsv", "class_name/key\tverification_label", f"{keys[0]}\t1", f"{keys[4]}\t0")
    text(root / "meta" / "verified_val.tsv", "class_name/key\tverification_label", f"{keys[1]}\t1", f"{keys[5]}\t0")
    return root


def test_food101n(tmp_path: Path) -> None:
    root = food101n(tmp_path / "Food-101N_release")
    train = read(root)
    assert train.classes == ("apple_pie", "waffles")
    assert train.ids[:3].tolist() == ["apple_pie/00.jpg", "apple_pie/02.jpg", "apple_pie/03.jpg"]
    assert names(train) == ["apple_pie"] * 3 + ["waffles"] * 3
    assert read(root, part="test", classes=train.classes).ids.tolist() == ["apple_pie/01.jpg"]
    text(tmp_path / "food-101" / "meta" / "test.txt", "waffles/1005755")
    image(tmp_path / "food-101" / "images" / "waffles" / "1005755.jpg")
    test = read(root, part="test", classes=train.classes)
    assert test.ids.tolist() == ["waffles/1005755.jpg"]
    assert names(test) == ["waffles"]
    text(root / "meta" / "classes.txt", "class_name", "apple_pie", "pizza")
    with pytest.raises(DataError, match=r"'waffles/00.jpg' is not in meta/classes.txt"):
        read(root)


SYNSETS = [f"n{index:08d}" for index in range(1440764, 1440764 + 60)]


def mini_webvision(root: Path) -> Path:
    text(root / "info" / "synsets.txt", *(f"{synset} fish{i}, Tinca tinca" for i, synset in enumerate(SYNSETS)))
    train = [f"google/q{label:04d}/{label}.jpg {label}" for label in range(60)]
    text(root / "info" / "train_filelist_google.txt", *train)
    text(root / "info" / "val_filelist.txt", *(f"val{label:06d}.jpg {label}" for label in range(60)))
    for label in range(50):
        image(root / f"google/q{label:04d}/{label}.jpg")
        image(root / f"val_images_256/val{label:06d}.jpg")
    return root


def test_mini_webvision(tmp_path: Path) -> None:
    root = mini_webvision(tmp_path)
    train = read(root)
    assert len(train) == len(train.classes) == 50
    assert train.classes[1] == f"{SYNSETS[1]} fish1"
    assert train.ids[1] == "google/q0001/1.jpg"
    test = read(root, part="test", classes=train.classes)
    assert test.labels.tolist() == list(range(50))
    assert test.ids[49] == "val_images_256/val000049.jpg"
    with (root / "info" / "val_filelist.txt").open("a") as file:
        file.write("strange line\n")
    with pytest.raises(DataError, match="entry 61: 'strange line' is not 'IMAGE LABEL'"):
        read(root, part="test", classes=train.classes)


def ilsvrc_names(count: int) -> list[str]:
    return [f"ILSVRC2012_val_{index:08d}" for index in range(1, count + 1)]


def ilsvrc12(root: Path) -> Path:
    for synset, name in zip(SYNSETS[:55], ilsvrc_names(55), strict=True):
        image(root / "val" / synset / f"{name}.JPEG")
    return root


def test_ilsvrc12_in_folders_tests_mini_webvision(tmp_path: Path) -> None:
    train = read(mini_webvision(tmp_path / "webvision"))
    root = ilsvrc12(tmp_path / "ILSVRC")
    test = read(root, part="test", classes=train.classes)
    assert test.labels.tolist() == list(range(50)), "the images of other classes are left out"
    assert test.classes == train.classes
    assert not has_part(root, "test"), "it is all one part"
    whole = read(root, part="test")
    assert len(whole.classes) == 55
    assert whole.ids[0] == f"val/{SYNSETS[0]}/ILSVRC2012_val_00000001.JPEG"
    assert len(read(root / "val", part="test", layout="ilsvrc12-val")) == 55
    assert len(read_inputs(root)) == 55


def test_ilsvrc12_in_one_folder(tmp_path: Path) -> None:
    stems = ilsvrc_names(3)
    for stem in stems:
        image(tmp_path / f"{stem}.JPEG")
    with pytest.raises(DataError, match=r"add LOC_val_solution.csv, or .*meta.mat"):
        read(tmp_path, part="test")
    assert len(read_inputs(tmp_path)) == 3
    kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    text(kit / "ILSVRC2012_validation_ground_truth.txt", "2", "1", "2")
    meta(kit / "meta.mat", [SYNSETS[7], SYNSETS[3]])
    samples = read(tmp_path, part="test")
    assert samples.classes == (SYNSETS[3], SYNSETS[7])
    assert names(samples) == [SYNSETS[3], SYNSETS[7], SYNSETS[3]]
    (kit / "meta.mat").write_bytes(b"MATLAB 5.0 MAT-file, or not")
    with pytest.raises(DataError, match=r"meta.mat cannot be read"):
        read(tmp_path, part="test")
    rows = [f"{stem},{SYNSETS[index]} 85 1 499 272" for index, stem in enumerate(stems)]
    text(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString", *reversed(rows))
    text(tmp_path / "LOC_synset_mapping.txt", f"{SYNSETS[0]} tench, Tinca tinca", f"{SYNSETS[2]} great white shark")
    samples = read(tmp_path, part="test")
    assert names(samples) == [f"{SYNSETS[0]} tench", SYNSETS[1], f"{SYNSETS[2]} great white shark"]


def meta(path: Path, synsets: list[str]) -> None:
    """As in the development kit: a struct array with the class numbers and synsets among its fields."""
    from scipy.io import savemat

    rows = np.empty(len(synsets), dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")])
    for index, synset in enumerate(synsets):
        rows[index] = (index + 1, synset, "a word")
    savemat(path, {"synsets": rows})


@pytest.mark.parametrize("layout", ["tiny-imagenet", "animal10n", "food101n", "mini-webvision", "cifar10", "cifar100"])
def test_a_folder_of_another_kind(tmp_path: Path, layout: str) -> None:
    image(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match=r"there is no|has no|holds no"):
        read(tmp_path, layout=layout)
