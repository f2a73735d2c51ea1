"""``narl noise``: what is written, what is kept as it was, and everything that may be asked wrongly."""

from __future__ import annotations

import csv
import io
import json
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from narl import noise as generators
from narl.cli.noise import noise
from narl.cli.noise_arguments import class_map, matrix, superclasses
from narl.data.read import read
from narl.errors import DataError, NarlError, NoiseError, OptionError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(noise)

CLASSES = ("bird", "cat", "dog")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, NarlError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def told(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def refused(kind: type[NarlError], *arguments: object) -> str:
    with pytest.raises(kind) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def words(count: int = 300, seed: int = 0) -> list[str]:
    labels: NDArray[np.str_] = np.random.default_rng(seed).choice(np.array(CLASSES), count)
    found: list[str] = labels.tolist()
    return found


def table(folder: Path, labels: list[str], name: str = "data.csv", column: str = "label") -> Path:
    values = np.random.default_rng(1).random((len(labels), 2)).round(3)
    lines = [f"a,{column},b", *(f"{a},{label},{b}" for (a, b), label in zip(values, labels, strict=True))]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_labels_change_as_the_generator_says_and_the_rest_stays(tmp_path: Path) -> None:
    labels = words()
    source, out = table(tmp_path, labels), tmp_path / "noisy.csv"
    done = told(source, "--out", out, "--rate", 0.4, "--seed", 7)
    indices = np.array([CLASSES.index(label) for label in labels])
    expected = generators.symmetric(indices, 0.4, 3, seed=7)
    written = rows(out)
    assert [row["label"] for row in written] == [CLASSES[index] for index in expected]
    assert [row["true_label"] for row in written] == labels
    assert [(row["a"], row["b"]) for row in written] == [(row["a"], row["b"]) for row in rows(source)]
    changed = int((expected != indices).sum())
    assert done["changed"] == changed
    assert done["realised_rate"] == pytest.approx(changed / 300)
    assert done["realised_rate_by_class"]["cat"] == pytest.approx(np.mean(expected[indices == 1] != 1))
    assert (done["samples"], done["classes"], done["rate"], done["seed"]) == (300, [*CLASSES], 0.4, 7)
    assert (done["out"], done["label"], done["true_label"]) == (str(out), "label", "true_label")
    samples = read(out)  # narl train reads both columns without being told
    assert samples.labels.tolist() == expected.tolist()
    assert samples.true_labels is not None
    assert samples.true_labels.tolist() == indices.tolist()
    again = tmp_path / "again.csv"
    run(source, "--out", again, "--rate", 0.4, "--seed", 7)
    assert again.read_bytes() == out.read_bytes()


AWKWARD = (
    '\ufeffid;"text";  y ;z\r\n'
    '1;"a ""quoted"", one\nin two lines";"cat";=1+1\r\n'
    "\r\n"
    "2;it's;cat;  spaced \r\n"
    '3;"-";"dog; big";1e5\r\n'
    '4;ab"c;"dog; big";"x"'
)


def test_a_csv_is_kept_byte_for_byte_but_for_the_label(tmp_path: Path) -> None:
    source, out = tmp_path / "data.csv", tmp_path / "noisy.csv"
    source.write_bytes(AWKWARD.encode())
    run(source, "--out", out, "--kind", "pair", "--rate", 1, "--text", "text", "--ignore", "z")
    assert out.read_bytes().decode() == (
        '\ufeffid;"text";  y ;z;true_label\r\n'
        '1;"a ""quoted"", one\nin two lines";"dog; big";=1+1;"cat"\r\n'
        "\r\n"
        '2;it\'s;"dog; big";  spaced ;cat\r\n'
        '3;"-";"cat";1e5;"dog; big"\r\n'
        '4;ab"c;"cat";"x";"dog; big"'
    )
    run(source, "--out", out, "--rate", 0, "--text", "text", "--ignore", "z", "--overwrite")
    samples = read(out)
    assert samples.classes == ("cat", "dog; big")
    assert samples.true_labels is not None
    assert samples.labels.tolist() == samples.true_labels.tolist() == [0, 0, 1, 1]


def test_tsv_and_numbered_classes_keep_their_spelling(tmp_path: Path) -> None:
    source, out = tmp_path / "data.tsv", tmp_path / "noisy.tsv"
    source.write_text("x\tclass\n0.5\t1.0\n0.25\t2\n0.75\t10\n0.125\t1\n")
    run(source, "--out", out, "--kind", "pair", "--rate", 1)
    assert out.read_text() == "x\tclass\ttrue_label\n0.5\t2\t1.0\n0.25\t10\t2\n0.75\t1.0\t10\n0.125\t2\t1\n"


def test_jsonl_is_kept_byte_for_byte_but_for_the_label(tmp_path: Path) -> None:
    source, out = tmp_path / "data.jsonl", tmp_path / "noisy.jsonl"
    source.write_bytes(
        b'{"x": 1.50, "label": 3, "note": {"label": [1, "}"]}}\n'
        b"\n"
        b'  {"label":4,"x":1e2 , "note":{"label":"\\u00e4\xc3\xa4"} }\r\n'
        b'{"x": 7,  "label" : 3 }'
    )
    run(source, "--out", out, "--kind", "pair", "--rate", 1, "--ignore", "note")
    assert out.read_bytes() == (
        b'{"x": 1.50, "label": 4, "note": {"label": [1, "}"]}, "true_label": 3}\n'
        b"\n"
        b'  {"label":3,"x":1e2 , "note":{"label":"\\u00e4\xc3\xa4"}, "true_label": 4}\r\n'
        b'{"x": 7,  "label" : 4, "true_label": 3}'
    )
    assert [type(json.loads(line)["label"]) for line in out.read_text().splitlines() if line] == [int] * 3


@pytest.mark.parametrize("kind", ["string", "int8", "dictionary"])
def test_parquet_keeps_types_and_columns(tmp_path: Path, kind: str) -> None:
    labels = pa.array(words()) if kind != "int8" else pa.array([CLASSES.index(word) for word in words()], pa.int8())
    column = labels.dictionary_encode() if kind == "dictionary" else labels
    columns = {"x": pa.array(np.arange(300.0)), "target": column, "y z": pa.array(np.arange(300) % 7)}
    data = pa.table(columns).replace_schema_metadata({"made by": "a test"})
    source, out = tmp_path / "data.parquet", tmp_path / "noisy.parquet"
    parquet.write_table(data, source)
    done = told(source, "--out", out, "--rate", 0.5)
    found = parquet.read_table(out)
    assert found.column_names == ["x", "target", "y z", "true_label"]
    assert found.schema.metadata[b"made by"] == b"a test"
    assert (
        found.schema.field("target").type == found.schema.field("true_label").type == data.schema.field("target").type
    )
    assert found.column("true_label").to_pylist() == labels.to_pylist()
    assert found.column("x").equals(data.column("x"))
    assert found.column("y z").equals(data.column("y z"))
    moved = sum(a != b for a, b in zip(found.column("target").to_pylist(), labels.to_pylist(), strict=True))
    assert moved == done["changed"] > 100


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int64", "U4", "column"])
def test_npz_keeps_types_and_the_other_arrays(tmp_path: Path, kind: str, compressed: bool) -> None:
    named: NDArray[Any] = np.array(words())
    numbered = np.array([CLASSES.index(word) for word in named])
    y = {"U4": named, "column": numbered[:, None]}.get(kind)
    y = numbered.astype(kind) if y is None else y
    source, out = tmp_path / "data.npz", tmp_path / "noisy.npz"
    save = np.savez_compressed if compressed else np.savez
    save(source, x=np.random.default_rng(0).random((300, 4)), y=y, extra=np.array("kept"), arr=np.arange(3))
    told(source, "--out", out, "--kind", "pair", "--rate", 1)
    with np.load(source) as before, np.load(out) as after:
        assert set(after.files) == {*before.files, "y_true"}
        assert after["y"].dtype == after["y_true"].dtype == y.dtype
        assert after["y"].shape == y.shape
        assert np.array_equal(after["y_true"], y)
        following = {word: CLASSES[(index + 1) % 3] for index, word in enumerate(CLASSES)}
        expected = (numbered + 1) % 3 if kind != "U4" else [following[word] for word in words()]
        assert after["y"].ravel().tolist() == list(expected)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out) as new:
        for name in ("x.npy", "extra.npy", "arr.npy"):
            assert old.read(name) == new.read(name)
        assert old.getinfo("x.npy").compress_type == new.getinfo("x.npy").compress_type
    samples = read(out)
    assert samples.true_labels is not None
    assert (samples.labels != samples.true_labels).all()


def test_npz_with_two_parts_changes_the_training_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source, out = tmp_path / "data.npz", tmp_path / "noisy.npz"
    arrays = {"x_train": rng.random((50, 3)), "y_train": np.arange(50) % 5}
    np.savez(source, x_test=rng.random((20, 3)), y_test=np.arange(20) % 5, **arrays)  # type: ignore[arg-type]
    done = told(source, "--out", out, "--kind", "pair", "--rate", 1)
    assert (done["label"], done["true_label"]) == ("y_train", "y_true_train")
    with np.load(out) as found:
        assert found["y_train"].tolist() == [(index + 1) % 5 for index in range(50)]
        assert found["y_true_train"].tolist() == [index % 5 for index in range(50)]
        assert found["y_test"].tolist() == [index % 5 for index in range(20)]
    assert read(out, part="test").true_labels is None
    assert read(out).true_labels is not None


def images(folder: Path, count: int = 12) -> Path:
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    return folder / "photos"


@pytest.mark.parametrize("kind", ["symmetric", "instance"])
def test_a_folder_gives_a_table_that_train_takes(tmp_path: Path, kind: str) -> None:
    source, out = images(tmp_path), tmp_path / "labels.csv"
    done = told(source, "--out", out, "--kind", kind, "--rate", 0.5)
    assert [*rows(out)[0]] == ["id", "label", "true_label"]
    plain, noisy = read(source), read(source, labels=str(out))
    assert [row["id"] for row in rows(out)] == plain.ids.tolist()
    assert noisy.true_labels is not None
    assert noisy.true_labels.tolist() == plain.labels.tolist()
    assert int((noisy.labels != plain.labels).sum()) == done["changed"] > 5


def test_cifar_gives_a_table_that_train_takes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for name in (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"):
        batch = {b"data": rng.integers(0, 256, (20, 3072), dtype=np.uint8), b"labels": [*range(10)] * 2}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [name.encode() for name in names]}, protocol=2))
    out = tmp_path / "labels.csv"
    done = told(tmp_path, "--out", out, "--kind", "asymmetric", "--map", "cifar10", "--rate", 1)
    moves = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog"}
    assert all(row["label"] == moves.get(row["true_label"], row["true_label"]) for row in rows(out))
    assert done["realised_rate"] == 0.4
    samples = read(tmp_path, labels=str(out))
    assert samples.true_labels is not None
    assert float((samples.labels != samples.true_labels).mean()) == 0.4


def test_every_kind(tmp_path: Path) -> None:
    labels = words(3000)
    source, out = table(tmp_path, labels), tmp_path / "noisy.csv"

    def counts(*arguments: object) -> dict[tuple[str, str], int]:
        run(source, "--out", out, "--overwrite", *arguments)
        pairs = [(row["true_label"], row["label"]) for row in rows(out)]
        return {pair: pairs.count(pair) for pair in set(pairs) if pair[0] != pair[1]}

    assert set(counts("--kind", "asymmetric", "--map", "cat:dog, dog:bird", "--rate", 0.5)) == {
        ("cat", "dog"),
        ("dog", "bird"),
    }
    (tmp_path / "map.json").write_text('{"cat": "dog"}')
    assert set(counts("--kind", "asymmetric", "--map", tmp_path / "map.json", "--rate", 0.5)) == {("cat", "dog")}
    groups = tmp_path / "groups.json"
    for text in ('{"pets": ["cat", "dog"], "wild": ["bird"]}', '{"cat": "pets", "dog": "pets", "bird": 1}'):
        groups.write_text(text)
        found = counts("--kind", "hierarchical", "--superclasses", groups, "--rate", 0.5)
        assert set(found) == {("cat", "dog"), ("dog", "cat")}
    for name, text in (
        ("m.csv", "1,0,0\n0,0.5,0.5\n\n0,0,1\n"),
        ("m.json", "[[1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]]"),
        ("m.json", '{"cat": {"cat": 0.5, "dog": 0.5}, "dog": {"dog": 1}, "bird": {"bird": 1}}'),
    ):
        (tmp_path / name).write_text(text)
        found = counts("--kind", "matrix", "--matrix", tmp_path / name)
        assert set(found) == {("cat", "dog")}
        assert found["cat", "dog"] == pytest.approx(labels.count("cat") / 2, rel=0.15)
    np.save(tmp_path / "m.npy", np.eye(3))
    assert counts("--kind", "matrix", "--matrix", tmp_path / "m.npy") == {}
    all_classes = sum(counts("--rate", 1, "--over-all-classes").values())
    assert all_classes == pytest.approx(2000, rel=0.05)
    numbers = np.array([[float(row["a"]), float(row["b"])] for row in rows(source)], dtype=np.float32)
    indices = np.array([CLASSES.index(label) for label in labels])
    assert sum(counts("--kind", "instance", "--rate", 0.3, "--seed", 3).values()) == int(
        (generators.instance(indices, 0.3, numbers, 3, seed=3) != indices).sum()
    )


def test_dry_run_says_everything_and_writes_nothing(tmp_path: Path) -> None:
    source, out = table(tmp_path, words()), tmp_path / "noisy.csv"
    before = sorted(tmp_path.iterdir())
    trial = told(source, "--out", out, "--rate", 0.4, "--dry-run")
    assert sorted(tmp_path.iterdir()) == before
    printed = run(source, "--out", out, "--rate", 0.4, "--dry-run")
    assert "would be wrong (40.0% asked, " in printed
    assert f"would be written to {out}" in printed
    assert sorted(tmp_path.iterdir()) == before
    assert {**told(source, "--out", out, "--rate", 0.4), "out": None} == trial
    printed = run(source, "--out", out, "--rate", 0.4, "--overwrite")
    assert "300 samples of 3 classes: 'bird', 'cat', 'dog'" in printed
    assert f"written to {out}: new labels in label, true ones in true_label" in printed


def test_a_configuration_file_serves_as_well(tmp_path: Path) -> None:
    source, out = table(tmp_path, words()), tmp_path / "noisy.csv"
    config = tmp_path / "noise.yaml"
    config.write_text(f"source: {source}\nout: {out}\nrate: 0.4\nkind: asymmetric\nmap: 'cat:dog'\njson: true\n")
    done = json.loads(run("--config", config, "--rate", "1"))
    assert (done["kind"], done["rate"], done["changed"]) == ("asymmetric", 1.0, words().count("cat"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "how many labels shall be wrong?"),
        (["--kind", "asymmetric", "--rate", "0.4"], "or cifar10 for that data set's own"),
        (["--kind", "hierarchical", "--rate", "0.4"], "--superclasses FILE.json"),
        (["--kind", "matrix"], "give --matrix FILE"),
        (["--kind", "matrix", "--matrix", "m.csv", "--rate", "0.4"], "--rate has no meaning for matrix noise"),
        (["--rate", "0.4", "--map", "cat:dog"], "--map has no meaning for symmetric noise"),
        (["--kind", "pair", "--rate", "0.4", "--matrix", "m.csv"], "--matrix has no meaning for pair noise"),
        (["--kind", "pair", "--rate", "0.4", "--over-all-classes"], "--over-all-classes has no meaning"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, arguments: list[str], message: str) -> None:
    source = table(tmp_path, words())
    assert message in refused(OptionError, source, "--out", tmp_path / "o.csv", *arguments)
    assert not (tmp_path / "o.csv").exists()


def test_places_where_nothing_is_written(tmp_path: Path) -> None:
    source = table(tmp_path, words())
    rate = ["--rate", "0.4"]
    taken = tmp_path / "taken.csv"
    taken.write_text("precious")
    assert "replace it with --overwrite" in refused(OptionError, source, "--out", taken, *rate)
    assert taken.read_text() == "precious"
    content = source.read_bytes()
    assert "is what is read" in refused(OptionError, source, "--out", source, "--overwrite", *rate)
    (tmp_path / "link.csv").symlink_to(source)
    assert "is what is read" in refused(OptionError, source, "--out", tmp_path / "link.csv", "--overwrite", *rate)
    assert source.read_bytes() == content
    assert "does not exist" in refused(OptionError, source, "--out", tmp_path / "no" / "o.csv", *rate)
    assert "let the name end in .csv" in refused(OptionError, source, "--out", tmp_path / "o.parquet", *rate)
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in refused(OptionError, source, "--out", tmp_path / "folder.csv", "--overwrite", *rate)
    folder = images(tmp_path)
    assert "let the name end in .csv" in refused(OptionError, folder, "--out", tmp_path / "o.npz", *rate)


def test_sources_that_cannot_be_used(tmp_path: Path) -> None:
    out, rate = tmp_path / "o.csv", ["--rate", "0.4"]
    table(tmp_path, words())
    assert "did you mean" in refused(DataError, tmp_path / "dat.csv", "--out", out, *rate)
    twice = tmp_path / "noisy.csv"
    run(tmp_path / "data.csv", "--out", twice, *rate)
    assert "noise was made already" in refused(DataError, twice, "--out", out, *rate)
    assert "noise was made already" in refused(DataError, twice, "--out", out, "--ignore", "true_label", *rate)
    odd = table(tmp_path, words(), "odd.csv", column="what")
    assert told(odd, "--out", out, *rate)["label"] == "what"  # detected, as narl train detects it
    assert "no column 'wat'" in refused(DataError, odd, "--out", tmp_path / "p.csv", "--label", "wat", *rate)
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\n" + "".join(f"some words {i},{label}\n" for i, label in enumerate(words(30))))
    message = refused(OptionError, texts, "--out", tmp_path / "p.csv", "--kind", "instance", *rate)
    assert "needs images or columns of numbers" in message
    np.savez(tmp_path / "odd.npz", x=np.ones((4, 2)), answers=np.arange(4) % 2)
    assert "--label" in refused(DataError, tmp_path / "odd.npz", "--out", tmp_path / "p.npz", *rate)
    assert told(tmp_path / "odd.npz", "--out", tmp_path / "p.npz", "--label", "answers", *rate)["label"] == "answers"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat", "is no class map: write --map 'cat:dog,truck:car'"),
        ("", "is no class map"),
        ("cat:dgo", "did you mean 'dog'?"),
        ("cow:dog", "names the class 'cow'"),
        ("cat:dog,cat:bird", "has the class 'cat' twice"),
        ("cifar", "or one of: cifar10"),
        ("no-such.json", "there is no file no-such.json"),
    ],
)
def test_class_maps_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(NoiseError) as caught:
        class_map(text, CLASSES)
    assert message in str(caught.value)


def test_files_of_classes_that_make_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "g.json"

    def message(function: Any, content: str | bytes, name: str = "g.json") -> str:
        file = path.with_name(name)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(NarlError) as caught:
            function(file if function is matrix else str(file), CLASSES)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "is not JSON" in message(class_map, "{")
    assert "is not JSON" in message(class_map, "[" * 100_000)
    assert "no JSON object" in message(class_map, "[]")
    assert "not UTF-8" in message(class_map, b"\xff")
    assert "names the class" in message(class_map, '{"cat": ["dog"]}')
    assert "no superclass for 'bird' (2 missing)" in message(superclasses, '{"cat": "pet"}')
    assert "'cat' twice" in message(superclasses, '{"a": ["cat", "cat"]}')
    assert "neither a .json file" in message(superclasses, "", "g.txt")
    assert "let the name end in" in message(matrix, "", "g.txt")
    assert "shape (1, 2)" in message(matrix, "1,2", "g.csv")
    assert "not a table of numbers" in message(matrix, "1,2\n3", "g.csv")
    assert "not a table of numbers" in message(matrix, "a,b,c\n1,0,0", "g.csv")
    assert "g.npy" in message(matrix, b"nothing", "g.npy")
    assert "give a probability" in message(matrix, '{"cat": {"dog": "half"}}')
    assert "no row for 'cat'" in message(matrix, '{"cat": 1}')
    assert "names the class 'cow'" in message(matrix, '{"cow": {"dog": 1}}')
    with pytest.raises(NoiseError, match="there is no file"):
        matrix(tmp_path / "none.csv", CLASSES)


cells = st.text(st.sampled_from('ab ,;"\n\r\té='), max_size=6)


@given(st.lists(st.tuples(cells, st.sampled_from(["cat", 'd,o"g', "b\nird"])), min_size=4, max_size=20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_the_cells_are_they_stay(content: list[tuple[str, str]], always_quoted: bool) -> None:
    content = [*content, ("x", "cat"), ("y", 'd,o"g')]
    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name, "data.csv"), Path(name, "noisy.csv")
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL if always_quoted else csv.QUOTE_MINIMAL)
        writer.writerows([("number", "note", "label"), *((row, *cells) for row, cells in enumerate(content))])
        source.write_bytes(text.getvalue().encode())
        run(source, "--out", out, "--rate", 0.5, "--ignore", "note")
        with out.open(newline="", encoding="utf-8") as file:
            header, *found = csv.reader(file)
        assert header == ["number", "note", "label", "true_label"]
        assert [(row[0], row[1], row[3]) for row in found] == [
            (str(number), *cells) for number, cells in enumerate(content)
        ]
        assert {row[2] for row in found} <= {label for _, label in content}


def test_one_changed_label_and_the_rate_within_classes(tmp_path: Path) -> None:
    source = table(tmp_path, ["cat"] * 1 + ["dog"] * 9)
    text = run(source, "--out", tmp_path / "o.csv", "--kind", "asymmetric", "--map", "cat:dog", "--rate", 1)
    assert "1 label is wrong" in text
    done = told(source, "--out", tmp_path / "p.csv", "--kind", "asymmetric", "--map", "cat:dog", "--rate", 1)
    assert done["realised_rate_by_class"] == {"cat": 1.0, "dog": 0.0}


def test_a_second_column_of_labels_is_asked_about_with_the_flags_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,label,gold_label\n" + "".join(f"{i},{i % 2},{i % 2}\n" for i in range(20)))
    message = refused(DataError, path, "--out", tmp_path / "o.csv", "--rate", 0.5)
    assert "say --ignore gold_label, or --numbers/--categories gold_label" in message
    assert "--true-label" not in message
    told(path, "--out", tmp_path / "o.csv", "--rate", 0.5, "--ignore", "gold_label")
    assert list(rows(tmp_path / "o.csv")[0]) == ["x", "label", "gold_label", "true_label"]
