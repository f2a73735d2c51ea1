"""Clean sets and hold-outs: what is taken, what stays, and that no copy stays behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narl.data.clean import draw_clean, limit, read_id_file, split, take_ids
from narl.data.overlap import shared
from narl.data.samples import Samples, Texts
from narl.errors import DataError, OptionError


def make(contents: list[str], labels: list[int], true: list[int] | None = None, num_classes: int = 0) -> Samples:
    count = num_classes or max(labels) + 1
    return Samples(
        Texts(np.array(contents, dtype=object)),
        np.array(labels, np.int64),
        tuple(f"class{y}" for y in range(count)),
        np.array([f"id{i:03}" for i in range(len(contents))]),
        None if true is None else np.array(true, np.int64),
    )


def distinct(labels: list[int], true: list[int] | None = None) -> Samples:
    return make([f"text {i}" for i in range(len(labels))], labels, true)


LABELS = np.random.default_rng(0).integers(0, 4, 200).tolist()


# (content, label) of every sample: few contents, so that there are copies, also under different labels
SAMPLES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=40)


@pytest.mark.parametrize("count", [4, 5, 7, 40, 41])
def test_drawn_sets_are_balanced(count: int) -> None:
    train = distinct(LABELS)
    rest, clean = draw_clean(train, count, seed=3)
    assert len(clean) == count
    assert clean.class_counts.max() - clean.class_counts.min() == (count % 4 > 0)
    assert sorted([*rest.ids, *clean.ids]) == train.ids.tolist()
    assert rest.ids.tolist() == sorted(rest.ids)
    extra = np.argsort(-train.class_counts, kind="stable")[: count % 4]
    assert set(np.flatnonzero(clean.class_counts > count // 4)) == (set(extra) if count % 4 else set())


def test_seed_alone_decides() -> None:
    train = distinct(LABELS)
    first = draw_clean(train, 20, seed=1)[1].ids.tolist()
    np.random.default_rng(5).random(3)
    assert draw_clean(train, 20, seed=1)[1].ids.tolist() == first
    assert draw_clean(train, 20, seed=2)[1].ids.tolist() != first
    assert split(train, 0.1, seed=1)[1].ids.tolist() == split(train, 0.1, seed=1)[1].ids.tolist()
    assert split(train, 0.1, seed=1)[1].ids.tolist() != split(train, 0.1, seed=2)[1].ids.tolist()
    assert limit(train, 20, seed=1).ids.tolist() == limit(train, 20, seed=1).ids.tolist()
    assert limit(train, 20, seed=1).ids.tolist() != limit(train, 20, seed=2).ids.tolist()
    with pytest.raises(OptionError, match="seed"):
        limit(train, 20, seed=-1)


def test_every_sample_can_be_drawn() -> None:
    train = distinct([0] * 5 + [1] * 5)
    drawn = [draw_clean(train, 2, seed=seed)[1].ids.tolist() for seed in range(100)]
    assert {sample for ids in drawn for sample in ids} == set(train.ids.tolist())


def test_true_labels_are_the_clean_ones() -> None:
    true = [0, 1] * 20
    train = distinct([0] * 40, true)
    train = Samples(train.inputs, train.labels, ("a", "b"), train.ids, train.true_labels)
    rest, clean = draw_clean(train, 10, seed=0)
    assert clean.class_counts.tolist() == [5, 5]
    assert [true[int(sample[2:])] for sample in clean.ids] == clean.labels.tolist()
    assert rest.labels.tolist() == [0] * 30
    assert take_ids(train, ["id001"])[1].labels.tolist() == [1]


@given(SAMPLES, st.integers(3, 12), st.integers(0, 5))
def test_no_copy_stays_behind(content: list[tuple[int, int]], count: int, seed: int) -> None:
    train = make([f"{c}" for c, _ in content], [y for _, y in content], num_classes=3)
    try:
        rest, clean = draw_clean(train, count, seed=seed)
    except DataError:
        # Refused only where some class has fewer contents than its share, or nothing would be left to train on. A
        # content under several labels counts for one of them.
        sets = [{c for c, label in content if label == y} for y in range(3)]
        alone = [len(own - set().union(*(s for s in sets if s is not own))) for own in sets]
        assert min(alone) < -(-count // 3) or len(set().union(*sets)) <= count
        return
    assert len(clean) == count
    assert shared(rest.inputs, clean.inputs) == []
    assert len(set(clean.inputs.digests())) == count
    left = set(train.ids.tolist()) - set(rest.ids.tolist())
    drawn = set(clean.inputs.digests())
    digests = train.inputs.digests()
    assert left == {sample for sample, digest in zip(train.ids.tolist(), digests, strict=True) if digest in drawn}


def test_samples_without_copies_are_drawn_first() -> None:
    train = make(["a", "a", "b", "b", "c", "d", "x", "y", "z"], [0, 0, 0, 0, 0, 0, 1, 1, 1])
    for seed in range(20):
        rest, clean = draw_clean(train, 4, seed=seed)
        assert clean.ids[:2].tolist() == ["id004", "id005"]
        assert len(rest) == 5


def test_too_few_samples() -> None:
    train = distinct([0] * 10 + [1] * 2)
    with pytest.raises(DataError, match=r"'class1' has 2 different samples.* need 3"):
        draw_clean(train, 6, seed=0)
    with pytest.raises(DataError, match=r"'class1' has 1 sample, but .* in a file: --clean ids\.txt$"):
        draw_clean(distinct([0] * 10 + [1]), 4, seed=0)
    assert draw_clean(train, 5, seed=0)[1].class_counts.tolist() == [3, 2]
    with pytest.raises(OptionError, match="1 clean sample is too few for 2 classes"):
        draw_clean(train, 1, seed=0)
    with pytest.raises(DataError, match="none is left"):
        draw_clean(distinct([0, 1]), 2, seed=0)


def test_named_samples_are_taken() -> None:
    train = make(["a", "b", "c", "b"], [0, 1, 1, 0])
    rest, clean = take_ids(train, ["id002", "id001"], ["class0", "class1"])
    assert clean.ids.tolist() == ["id002", "id001"]
    assert clean.labels.tolist() == [0, 1]
    assert rest.ids.tolist() == ["id000"]  # id003 is a copy of id001
    assert take_ids(train, ["id002", "id001"])[1].labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("ids", "labels", "message"),
    [
        (["id000", "id0O1", "zebra"], None, r"2 of 3 clean ids .* first 'id0O1': did you mean 'id00\d'"),
        (["zzz"], None, r"1 of 1 clean ids .* ids look like 'id000'"),
        (["id001", "id000", "id001"], None, r"'id001' is listed 2 times"),
        ([], None, "empty"),
        (["id000"], ["klass0"], r"'id000' has the unknown class 'klass0': did you mean 'class0'"),
        (["id000"], ["class0", "class1"], "1 clean ids but 2 labels"),
        ([f"id{i:03}" for i in range(6)], None, "none is left"),
    ],
)
def test_wrong_lists(ids: list[str], labels: list[str] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        take_ids(distinct([0, 1, 0, 1, 0, 1]), ids, labels)


@given(SAMPLES, st.floats(0.01, 0.99), st.integers(0, 5))
def test_split(content: list[tuple[int, int]], share: float, seed: int) -> None:
    samples = make([f"{c}" for c, _ in content], [y for _, y in content], num_classes=3)
    sets = [{c for c, label in content if label == y} for y in range(3)]
    try:
        rest, held = split(samples, share, seed=seed)
    except DataError:
        assert all(len(own - set().union(*(s for s in sets if s is not own))) < 2 for own in sets)
        return
    assert sorted([*rest.ids, *held.ids]) == samples.ids.tolist()
    assert rest.ids.tolist() == sorted(rest.ids)
    assert held.ids.tolist() == sorted(held.ids)
    assert shared(rest.inputs, held.inputs) == []
    assert len(rest) > 0
    for y in range(3):
        if len(sets[y] - set().union(*(s for s in sets if s is not sets[y]))) >= 2:
            assert rest.class_counts[y] > 0
            assert held.class_counts[y] > 0


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.floats(0.01, 0.99))
def test_split_without_copies_is_proportional(labels: list[int], share: float) -> None:
    samples = distinct(labels)
    try:
        rest, held = split(samples, share, seed=0)
    except DataError:
        assert max(samples.class_counts) < 2
        return
    for total, out, left in zip(samples.class_counts, held.class_counts, rest.class_counts, strict=True):
        if total >= 2:
            assert abs(out - np.clip(share * total, 1, total - 1)) <= 0.5 + 1e-9
            assert left >= 1
        else:
            assert out == 0


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_share_out_of_range(share: float) -> None:
    with pytest.raises(OptionError, match="share"):
        split(distinct([0, 1, 0, 1]), share, seed=0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_limit(labels: list[int], count: int, seed: int) -> None:
    samples = distinct(labels)
    part = limit(samples, count, seed=seed)
    assert len(part) == min(count, len(samples))
    assert part.ids.tolist() == sorted(part.ids)
    assert set(part.ids) <= set(samples.ids)
    present = samples.class_counts > 0
    if count >= present.sum():
        assert (part.class_counts[present] >= 1).all()
    exact = samples.class_counts * min(1, count / len(samples))
    if (exact[present] >= 1).all():
        assert (np.abs(part.class_counts - exact) < 1).all()


def test_limit_below_one() -> None:
    with pytest.raises(OptionError, match="limited to 0"):
        limit(distinct([0]), 0, seed=0)


# Lists of ids in files


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.txt", "x\n y z \n\n", (["x", "y z"], None)),
        ("a.txt", "\ufeffx\r\ny", (["x", "y"], None)),
        ("a.csv", "label,id\ncat,1\n\n'd',\"2,3\"\n", (["1", "2,3"], ["cat", "'d'"])),
        ("a.CSV", "id\n1\n", (["1"], None)),
        ("a.tsv", "id\tnote\tlabel\n1\t\tcat\n", (["1"], ["cat"])),
    ],
)
def test_lists(tmp_path: Path, name: str, content: str, wanted: tuple[list[str], list[str] | None]) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_id_file(path) == wanted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[]", r"ends in '\.json'"),
        ("a.txt", b"\n \n", "is empty"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"id,label\n", "is empty"),
        ("a.csv", b"ids,label\n1,2\n", r"no column 'id': did you mean 'ids'"),
        ("a.csv", b"id,label\n1,a\n2\n", "1 cells in line 3 but 2 columns"),
        ("a.csv", b"id,label\n1,\n", "no label in line 2"),
        ("a.csv", b'id\n"1\n', "cannot be read in line"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_lists(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_id_file(path)


def test_missing_list(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_id_file(tmp_path / "gone.txt")


@given(st.binary(max_size=60), st.sampled_from([".txt", ".csv", ".tsv"]))
def test_any_bytes_are_a_list_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"list{suffix}"
    path.write_bytes(b"id,label\n" + data)
    try:
        ids, labels = read_id_file(path)
    except DataError:
        return
    assert all(ids)
    assert labels is None or len(labels) == len(ids)
