"""Encoders: what training inputs teach them, and that nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from narl.data.encoding import Encoder, ImageEncoder, TableEncoder, TextEncoder, fit, from_state
from narl.data.samples import ImageFiles, Images, Inputs, Table, Texts
from narl.data.text_encoding import tokens
from narl.errors import DataError, OptionError


def texts(*lines: str) -> Texts:
    return Texts(np.array(lines, dtype=object))


def table(numbers: Any, categories: Any = None, number_names: str = "", category_names: str = "") -> Table:
    values = np.asarray(numbers, np.float32)
    words = np.empty((len(values), 0), object) if categories is None else np.array(categories, object)
    names = tuple(number_names or "abcdefgh"[: values.shape[1]])
    return Table(values, words, names, tuple(category_names or "uvwxyz"[: words.shape[1]]))


def write(folder: Path, name: str, pixels: NDArray[np.uint8]) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels.squeeze()).save(path)
    return name


def through_json(encoder: Encoder) -> Encoder:
    return from_state(json.loads(json.dumps(encoder.state())))


RNG = np.random.default_rng(3)
INPUTS: dict[str, Inputs] = {
    "bytes": Images(RNG.integers(0, 256, (9, 12, 12, 3), dtype=np.uint8)),
    "floats": Images(RNG.normal(5, 3, (9, 6, 6, 1)).astype(np.float32)),
    "texts": texts("Who wrote Hamlet?", "", "How far is 1,000 km?", "naïve café — 東京"),
    "table": table(RNG.lognormal(0, 4, (20, 3)), [[w, "x"] for w in "abcabcabcabcabcabca "]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_state_survives_json_exactly(name: str) -> None:
    encoder = fit(INPUTS[name])
    again = through_json(encoder)
    assert again.state() == encoder.state()
    assert again.shape == encoder.shape
    encoded = encoder.encode(INPUTS[name])
    assert torch.equal(again.encode(INPUTS[name]), encoded)
    assert torch.equal(again.finish(encoded), encoder.finish(encoded))


@pytest.mark.parametrize("fitted", INPUTS)
@pytest.mark.parametrize("given", INPUTS)
def test_other_kinds_are_refused(fitted: str, given: str) -> None:
    encoder = fit(INPUTS[fitted])
    if fitted == given:
        assert len(encoder.encode(INPUTS[given])) == len(INPUTS[given])
    else:
        with pytest.raises(DataError, match=r"trained on|training images"):
            encoder.encode(INPUTS[given])


@pytest.mark.parametrize("name", INPUTS)
def test_rows_are_encoded_independently(name: str) -> None:
    inputs = INPUTS[name]
    encoder = fit(inputs)
    rows = np.array([len(inputs) - 1, 0, 2])
    assert torch.equal(encoder.encode(inputs.take(rows)), encoder.encode(inputs)[torch.from_numpy(rows)])
    assert len(encoder.encode(inputs.take(rows[:0]))) == 0


@pytest.mark.parametrize("name", INPUTS)
def test_nothing_to_fit(name: str) -> None:
    with pytest.raises(DataError, match="no training inputs"):
        fit(INPUTS[name].take(np.arange(0)))


@pytest.mark.parametrize("state", [{}, {"kind": "imagee"}, {"kind": "text"}, {"kind": "table", "number_names": 3}])
def test_broken_state(state: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="encoder"):
        from_state(state)


# Images


def test_bytes_are_standardised_as_by_hand() -> None:
    images = INPUTS["bytes"]
    assert isinstance(images, Images)
    encoder = fit(images)
    encoded = encoder.encode(images)
    assert encoded.dtype == torch.uint8
    assert np.array_equal(encoded.numpy(), images.pixels.transpose(0, 3, 1, 2))
    plain = images.pixels.astype(np.float64) / 255
    wanted = (plain - plain.mean(axis=(0, 1, 2))) / plain.std(axis=(0, 1, 2))
    finished = encoder.finish(encoded)
    assert finished.dtype == torch.float32
    np.testing.assert_allclose(finished.numpy(), wanted.transpose(0, 3, 1, 2), atol=1e-5)
    assert torch.allclose(encoder.finish(encoded.float()), finished)


def test_many_chunks_have_the_moments_of_all() -> None:
    pixels = RNG.normal(1000, 2, (700, 4, 4, 3)).astype(np.float32)
    encoder = fit(Images(pixels))
    assert isinstance(encoder, ImageEncoder)
    np.testing.assert_allclose(encoder.mean, pixels.astype(np.float64).mean(axis=(0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(encoder.std, pixels.astype(np.float64).std(axis=(0, 1, 2)), rtol=1e-9)
    assert encoder.encode(Images(pixels)).dtype == torch.float32


def test_constant_images_become_zero() -> None:
    images = Images(np.full((3, 4, 4, 3), 77, np.uint8))
    encoder = fit(images)
    assert encoder.finish(encoder.encode(images)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("shape", "asked", "size"), [((40, 40), None, 40), ((90, 90), None, 64), ((90, 90), 90, 90), ((20, 30), None, 20)]
)
def test_size_of_arrays(shape: tuple[int, int], asked: int | None, size: int) -> None:
    encoder = fit(Images(RNG.integers(0, 256, (2, *shape, 3), dtype=np.uint8)), image_size=asked)
    assert encoder.shape == {"in_channels": 3, "image_size": size}


def test_arrays_are_resized_as_files_are(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 48 * 32 * 3).reshape(48, 32, 3).astype(np.uint8)
    files = ImageFiles(tmp_path, np.array([write(tmp_path, "a.png", smooth)]))
    arrays = Images(smooth[None])
    for size in (16, 32, 50):
        encoder = fit(arrays, image_size=size)
        difference = encoder.encode(arrays).int() - encoder.encode(files).int()
        assert difference.abs().max() <= 2


def test_grey_and_colour_meet() -> None:
    grey, colour = (Images(RNG.integers(0, 256, (2, 8, 8, c), dtype=np.uint8)) for c in (1, 3))
    three = fit(colour).encode(grey)
    assert torch.equal(three, torch.from_numpy(grey.pixels.transpose(0, 3, 1, 2)).expand(-1, 3, -1, -1))
    one = fit(grey).encode(colour)
    for row, pixels in enumerate(colour.pixels):
        by_pillow = np.asarray(PIL.Image.fromarray(pixels).convert("L")).astype(int)
        assert np.abs(one[row, 0].numpy().astype(int) - by_pillow).max() <= 1


def test_files(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (5, 10, 10, 3), dtype=np.uint8)
    files = ImageFiles(tmp_path, np.array([write(tmp_path, f"{i}/x.png", image) for i, image in enumerate(pixels)]))
    encoder = fit(files)
    assert encoder.state() == fit(Images(pixels)).state()
    assert torch.equal(encoder.encode(files), encoder.encode(Images(pixels)))


def test_files_of_several_sizes_and_grey_ones(tmp_path: Path) -> None:
    names = [write(tmp_path, f"{side}.png", np.full((side, 20), 9, np.uint8)) for side in (20, 30)]
    assert fit(ImageFiles(tmp_path, np.array(names))).shape == {"in_channels": 1, "image_size": 64}
    assert fit(ImageFiles(tmp_path, np.array(names[:1]))).shape == {"in_channels": 1, "image_size": 20}
    names.append(write(tmp_path, "colour.png", np.zeros((20, 20, 3), np.uint8)))
    assert fit(ImageFiles(tmp_path, np.array(names)), image_size=8).shape == {"in_channels": 3, "image_size": 8}


def test_bad_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"image 1 .*NaN"):
        fit(Images(np.array([0, np.nan], np.float32).reshape(2, 1, 1, 1)))
    with pytest.raises(OptionError, match="image_size"):
        fit(INPUTS["bytes"], image_size=0)
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png"):
        fit(ImageFiles(tmp_path, np.array(["broken.png"])))


# Texts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Don't PANIC!!", ["don't", "panic", "!", "!"]),
        ("room42 costs 3.50, x_y", ["room", "42", "costs", "3.50", ",", "x", "_", "y"]),
        ("Größe ΑΒΓ e\u0301te\u0301", ["größe", "αβγ", "été"]),
        ("東京へ", ["東", "京", "へ"]),
        ("हिन्दी।", ["हिन्दी", "।"]),
        (" \t\n", []),
        ("👍🏽 ok", ["👍", "🏽", "ok"]),
    ],
)
def test_tokens(text: str, wanted: list[str]) -> None:
    assert tokens(text) == wanted


@given(st.text())
def test_tokens_keep_every_letter(text: str) -> None:
    import unicodedata

    assert "".join(tokens(text)) == "".join(unicodedata.normalize("NFC", text.lower()).split())


def test_vocabulary_by_frequency_then_alphabet() -> None:
    encoder = fit(texts("b a a", "c b a", "b"), text_length=4)
    assert isinstance(encoder, TextEncoder)
    assert encoder.vocabulary == ("a", "b", "c")
    assert encoder.encode(texts("A c d b a", "", "?")).tolist() == [[2, 4, 1, 3], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert encoder.shape == {"vocabulary": 5, "length": 4}


def test_large_corpora_drop_what_occurs_once() -> None:
    def word(number: int) -> str:
        return "".join("abcdefghij"[int(digit)] for digit in f"{number:05}")

    once = [word(i) for i in range(19_998)]
    assert fit(texts(" ".join(once), "twice twice")).shape["vocabulary"] == 19_999 + 2
    assert fit(texts(" ".join(once), "twice twice", "more")).shape["vocabulary"] == 1 + 2
    many = " ".join(word(i) for i in range(50_002))
    encoder = fit(texts(many, many, word(50_001)))
    assert isinstance(encoder, TextEncoder)
    assert encoder.shape["vocabulary"] == 50_000 + 2
    assert encoder.vocabulary[:2] == (word(50_001), word(0))


def test_length_of_99_in_100() -> None:
    lines = ["w"] * 99 + ["w " * 40]
    lengths = [len(line.split()) for line in lines]
    assert fit(texts(*lines)).shape["length"] == int(np.ceil(np.percentile(lengths, 99)))
    assert fit(texts("w " * 1000)).shape["length"] == 256
    assert fit(texts("w " * 1000), text_length=300).shape["length"] == 300
    assert fit(texts("")).shape == {"vocabulary": 2, "length": 1}
    with pytest.raises(OptionError, match="text length"):
        fit(texts("w"), text_length=0)


# Tables

FINITE = st.floats(-1e6, 1e6, width=32)


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=FINITE))
def test_numbers_are_standardised_and_bounded(numbers: NDArray[np.float32]) -> None:
    inputs = Table(numbers, np.empty((len(numbers), 0), object), tuple(map(str, range(numbers.shape[1]))))
    encoded = fit(inputs).encode(inputs).numpy()
    assert np.isfinite(encoded).all()
    assert np.abs(encoded).max() <= 10
    for column, values in zip(encoded.T, numbers.T.astype(np.float64), strict=True):
        low, high = np.percentile(values, [25, 75])
        inner = np.abs(values - (low + high) / 2) <= 10.5 * (high - low)
        if values.min() == values.max():
            assert (column == 0).all()
        elif inner.all():
            np.testing.assert_allclose(column, np.clip((values - values.mean()) / values.std(), -10, 10), atol=1e-5)
        order = np.argsort(values)
        assert (np.diff(column[order]) >= 0).all()


def test_wild_values_do_not_squeeze_the_rest() -> None:
    values = RNG.normal(size=(500, 1))
    plain = fit(table(values)).encode(table(values)).numpy()
    values[7] = 1e30
    wild = fit(table(values)).encode(table(values)).numpy()
    assert wild[7] == 10
    np.testing.assert_allclose(np.delete(wild, 7), np.delete(plain, 7), atol=0.05)


def test_constant_columns_stay_zero_for_other_values() -> None:
    encoder = fit(table(np.full((7, 1), 0.1)))
    assert encoder.encode(table([[0.1], [5.0]])).tolist() == [[0.0], [0.0]]


def test_categories() -> None:
    encoder = fit(table([[0.0]] * 4, [["b", "x"], ["a", "x"], ["", "x"], ["b", "x"]]))
    assert encoder.shape == {"numbers": 1, "cardinalities": [4, 2]}
    encoded = encoder.encode(table([[0.0]] * 4, [["b", "x"], ["", "y"], ["z", ""], ["a", "x"]]))
    assert encoded[:, 1:].tolist() == [[3, 1], [1, 0], [0, 0], [2, 1]]
    assert encoded.dtype == torch.float32


def test_most_levels() -> None:
    words = [[f"{i:05}"] for i in range(10_001)] + [["10000"]]
    encoder = fit(table(np.zeros((len(words), 1)), words))
    assert encoder.shape["cardinalities"] == [10_001]
    assert encoder.encode(table([[0]] * 2, [["10000"], ["09999"]]))[:, 1].tolist() == [10_000, 0]


def test_columns_are_found_by_name() -> None:
    train = table(RNG.normal(size=(9, 2)), [[w, "q"] for w in "abcabcabc"], "ab", "uv")
    encoder = fit(train)
    swapped = Table(
        np.column_stack([np.ones(9), train.numbers[:, ::-1]]).astype(np.float32),
        train.categories[:, ::-1],
        ("extra", "b", "a"),
        ("v", "u"),
    )
    assert torch.equal(encoder.encode(swapped), encoder.encode(train))


def test_wrong_columns_are_named() -> None:
    encoder = fit(table([[1, 2], [3, 4]], [["x"], ["y"]], "ab", "u"))
    with pytest.raises(DataError, match=r"'b' is missing"):
        encoder.encode(table([[1]], [["x"]], "a", "u"))
    with pytest.raises(DataError, match=r"'u' is missing"):
        encoder.encode(table([[1, 2]], None, "ab"))
    with pytest.raises(DataError, match=r"'b' held numbers"):
        encoder.encode(table([[1]], [["x", "2"]], "a", "ub"))
    with pytest.raises(DataError, match=r"'b' holds NaN or infinity in row 1 "):
        encoder.encode(table([[1, 2], [1, np.inf]], [["x"], ["x"]], "ab", "u"))


@given(st.lists(st.sampled_from("abc") | st.just(""), min_size=1), st.lists(st.sampled_from("abcd") | st.just("")))
def test_unseen_values_are_those_with_the_unknown_code(train: list[str], other: list[str]) -> None:
    encoder = fit(table(np.zeros((len(train), 1)), [[word, "same"] for word in train]))
    assert isinstance(encoder, TableEncoder)
    words = np.array([[word, "same"] for word in other], object).reshape(-1, 2)
    inputs = table(np.zeros((len(other), 1)), words)
    unknown = int((encoder.encode(inputs)[:, 1] == 0).sum())
    assert encoder.unseen(inputs) == ({"u": unknown} if unknown else {})
    assert unknown == sum(word not in train for word in other)


def test_huge_numbers_are_finite() -> None:
    numbers = np.full((4, 2), np.finfo(np.float32).max) * np.array([[1], [-1], [1], [0.5]])
    inputs = table(numbers)
    assert fit(inputs).encode(inputs).abs().max() < 3


@settings(max_examples=30)
@given(st.lists(st.text(), min_size=1, max_size=6), st.lists(st.text(), min_size=1, max_size=6))
def test_any_text_can_be_encoded(train: list[str], other: list[str]) -> None:
    encoder = through_json(fit(texts(*train)))
    encoded = encoder.encode(texts(*other))
    assert encoded.min() >= 0
    assert encoded.max() < encoder.shape["vocabulary"]
    assert (encoded[:, 0] > 0).all()
    assert isinstance(encoder, TextEncoder | TableEncoder)
