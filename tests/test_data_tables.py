"""Tables: what the columns are taken for, and errors that say what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from narl.data.read import Columns, detect_columns, has_part, read, read_detected, read_inputs
from narl.data.samples import ImageFiles, Samples, Table, Texts
from narl.errors import DataError, MissingExtraError, NarlWarning


def write(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def table(samples: Samples) -> Table:
    assert isinstance(samples.inputs, Table)
    return samples.inputs


SHOP = "price,colour,wet,label\n1.5,red,true,yes\n2,blue,false,no\n-3e1,red,true,yes\n"


def test_numbers_categories_and_labels_are_told_apart(tmp_path: Path) -> None:
    samples, columns = read_detected(write(tmp_path, SHOP))
    assert columns == Columns(label="label", numbers=("price",), categories=("colour", "wet"))
    assert samples.classes == ("no", "yes")
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.ids.tolist() == ["0", "1", "2"]
    assert samples.true_labels is None
    assert table(samples).numbers.dtype == np.float64
    np.testing.assert_array_equal(table(samples).numbers, [[1.5], [2], [-30]])
    assert table(samples).categories.tolist() == [["red", "true"], ["blue", "false"], ["red", "true"]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_line_ends_and_a_byte_order_mark(tmp_path: Path, delimiter: str, end: str) -> None:
    text = SHOP.replace(",", delimiter).replace("\n", end)
    samples = read(write(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert samples.classes == ("no", "yes")
    assert table(samples).number_names == ("price",)


def test_jsonl_and_parquet_give_what_csv_gives(tmp_path: Path) -> None:
    import pandas

    rows = [
        {"price": 1.5, "colour": "red", "wet": True, "label": "yes"},
        {"price": 2, "colour": "blue", "wet": False, "label": "no"},
        {"price": -30, "colour": "red", "wet": True, "label": "yes"},
    ]
    write(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n", "data.jsonl")
    pandas.DataFrame(rows).to_parquet(tmp_path / "data.parquet")
    pandas.DataFrame(rows).to_csv(tmp_path / "index.csv")
    expected, columns = read_detected(write(tmp_path, SHOP))
    for name in ("data.jsonl", "data.parquet"):
        samples, same = read_detected(tmp_path / name)
        assert same == columns
        assert samples.classes == expected.classes
        np.testing.assert_array_equal(samples.labels, expected.labels)
        np.testing.assert_array_equal(table(samples).numbers, table(expected).numbers)
        assert table(samples).categories.tolist() == table(expected).categories.tolist()
    assert table(read(tmp_path / "index.csv")).number_names == ("price",), "the index is no feature"


def test_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'narl\[tables\]'"):
        read(write(tmp_path, b"PAR1", "data.parquet"))


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read(write(tmp_path, b"PAR1 and no more", "data.parquet"))


def test_texts_by_name_and_by_looks(tmp_path: Path) -> None:
    named = write(tmp_path, "text,label,source\nhello there,0,a\nbye,1,b\n")
    samples, columns = read_detected(named)
    assert columns == Columns(label="label", text="text", ignore=("source",))
    assert isinstance(samples.inputs, Texts)
    assert samples.inputs.texts.tolist() == ["hello there", "bye"]
    looks = write(tmp_path, "what,sort\nwho wrote this old book,0\nwhere is the red house,1\n", "looks.csv")
    assert detect_columns(looks) == Columns(label="sort", text="what")
    assert read(looks).classes == ("0", "1")


def test_images_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    for name in ("a.png", "b.PNG"):
        Image.new("RGB", (4, 4)).save(tmp_path / "img" / name)
    path = write(tmp_path, "file,text,class\nimg/a.png,x,cat\nimg/b.PNG,y,dog\n")
    with pytest.raises(DataError, match="--image or --text"):
        read(path)
    samples, columns = read_detected(path, columns=Columns(image="file"))
    assert columns == Columns(label="class", image="file", ignore=("text",))
    assert isinstance(samples.inputs, ImageFiles)
    assert samples.inputs.path(1) == tmp_path / "img" / "b.PNG"
    assert detect_columns(path, Columns(ignore=("text",))).image == "file"
    lost = write(tmp_path, "file,class\nimg/a.png,cat\nimg/lost.png,dog\n", "lost.csv")
    with pytest.raises(DataError, match=r"no image .*lost\.png \(row 1 of"):
        read(lost)
    with pytest.raises(DataError, match="names images, but there is no"):
        read(write(tmp_path, "file,class,n\ngone.png,cat,1\ngone2.png,dog,2\n", "gone.csv"))
    with pytest.warns(NarlWarning, match=r"1 of 4 images .* left out: 'img/lost.png'"):
        kept = read(
            write(tmp_path, "file,class\nimg/a.png,cat\nimg/lost.png,dog\nimg/b.PNG,dog\nimg/a.png,dog\n", "few.csv"),
            skip_unreadable=True,
        )
    assert kept.ids.tolist() == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["3.0", "1.0", "2"], ("1", "2", "3")),
        (["02", "01", "10"], ("01", "02", "10")),
        (["true", "false", "true"], ("false", "true")),
        (["b10", "b9", "a"], ("a", "b9", "b10")),
        (["None", "NA", "x"], ("NA", "None", "x")),
    ],
)
def test_classes_and_their_order(tmp_path: Path, labels: list[str], classes: tuple[str, ...]) -> None:
    samples = read(write(tmp_path, "x,label\n" + "".join(f"{row},{label}\n" for row, label in enumerate(labels))))
    assert samples.classes == classes
    assert [float(samples.classes[index]) if classes[0] in ("1", "-1") else index for index in samples.labels] == [
        float(label) if classes[0] in ("1", "-1") else classes.index(label) for label in labels
    ]


def test_labels_survive_verbatim(tmp_path: Path) -> None:
    names = ['a, "b"', "line\nbreak", "<b>&amp;</b>", " padded ", "日本語"]
    rows = "".join('{},"{}"\n'.format(row, name.replace('"', '""')) for row, name in enumerate(names))
    samples = read(write(tmp_path, "x,label\n" + rows))
    assert [samples.classes[index] for index in samples.labels] == names


def test_true_labels_and_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "id,x,label,true_label\nb,1,cat,dog\na,2,dog,dog\nc,3,cat,eel\n")
    samples = read(path)
    assert samples.ids.tolist() == ["b", "a", "c"]
    assert samples.classes == ("cat", "dog", "eel")
    assert samples.true_labels is not None
    assert samples.true_labels.tolist() == [1, 1, 2]
    assert samples.labels.tolist() == [0, 1, 0]
    renamed = read(path, columns=Columns(label="true_label", true_label="label", id="x"))
    assert renamed.ids.tolist() == ["1", "2", "3"]
    assert renamed.labels.tolist() == [1, 1, 2]
    repeated = write(tmp_path, "id,x,label\na,1,cat\na,2,dog\n", "repeated.csv")
    samples, columns = read_detected(repeated)
    assert samples.ids.tolist() == ["0", "1"]
    assert columns.id is None
    assert columns.ignore == ("id",)


def test_missing_categories_are_a_level_and_empty_columns_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "x,c,nothing,label,\n1,red,,a,\n2,NA,,b,\n3,,,a,\n")
    samples, columns = read_detected(path)
    assert table(samples).categories.tolist() == [["red"], [""], [""]]
    assert columns.ignore == ("nothing", "column 5")


def test_what_was_detected_holds_for_further_files(tmp_path: Path) -> None:
    columns = detect_columns(write(tmp_path, "id,a,b,label\nx,1,red,u\ny,2,blue,v\n"))
    later = write(tmp_path, "b,new thing,a\n7,?,5\n8,!,6\n", "later.csv")
    found = read_inputs(later, columns=columns)
    assert isinstance(found.inputs, Table)
    assert found.inputs.categories.tolist() == [["7"], ["8"]], "categories, although they look like numbers here"
    assert found.inputs.numbers.tolist() == [[5], [6]]
    assert found.ids.tolist() == ["0", "1"]
    with pytest.raises(DataError, match="no column 'b'"):
        read_inputs(write(tmp_path, "a\n1\n", "less.csv"), columns=columns)
    test = read(write(tmp_path, "a,b,label\n1,red,v\n", "test.csv"), columns=columns, part="test", classes=("u", "v"))
    assert test.labels.tolist() == [1]
    with pytest.raises(DataError, match=r"class 'w', which the training set does not have \('u', 'v'\)"):
        read(write(tmp_path, "a,b,label\n1,red,w\n", "w.csv"), columns=columns, part="test", classes=("u", "v"))


def test_a_test_file_may_have_a_class_called_by_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, "x,label\n1,3\n2,A\n")
    assert read(path, part="test", classes=("3", "A", "B")).labels.tolist() == [0, 1]


def test_labels_are_not_looked_at_for_prediction(tmp_path: Path) -> None:
    found = read_inputs(write(tmp_path, "x,label\n1,\n2,\n"))
    assert isinstance(found.inputs, Table)
    assert found.inputs.number_names == ("x",)


def test_a_folder_of_tables_has_parts(tmp_path: Path) -> None:
    write(tmp_path, '{"text": "one", "label": 0}\n{"text": "two", "label": 1}\n', "train.jsonl")
    write(tmp_path, '{"text": "three", "label": 1}\n', "dev.jsonl")
    assert has_part(tmp_path, "test")
    assert len(read(tmp_path)) == 2
    assert len(read(tmp_path, part="test", classes=("0", "1"))) == 1
    assert not has_part(tmp_path / "train.jsonl", "test")
    assert has_part(tmp_path / "train.jsonl", "train")


def test_a_column_that_becomes_words_late_keeps_what_was_written(tmp_path: Path) -> None:
    cells = [f"{number % 7:02d}" for number in range(20_000)]
    cells[19_000] = "six"
    rows = "".join(f"{cell},{row % 2},{row}\n" for row, cell in enumerate(cells))
    samples = read(write(tmp_path, "code,label,n\n" + rows))
    assert table(samples).categories[:, 0].tolist() == cells
    np.testing.assert_array_equal(table(samples).numbers[:, 0], np.arange(20_000))


def test_keys_may_come_late_in_jsonl(tmp_path: Path) -> None:
    rows = [{"x": row, "label": row % 2} for row in range(9000)] + [{"x": 1, "label": 0, "c": "late"}]
    samples = read(write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "data.jsonl"))
    assert table(samples).categories[-2:].tolist() == [[""], ["late"]]


ERRORS = {
    "label column misspelled": (
        "x,label\n1,a\n2,b\n",
        Columns(label="lable"),
        "no column 'lable' .*did you mean 'label'",
    ),
    "no label column": ("x,z\n1,2\n3,4\n", Columns(), r"no column called label: .*--label \(columns: 'x', 'z'\)"),
    "two label columns": ("x,label,target\n1,a,b\n2,b,a\n", Columns(), "2 columns that could be the label .*--label"),
    "empty label column": ("x,label\n1,\n2,\n", Columns(), "label column 'label' is empty"),
    "some labels missing": ("x,label\n1,a\n2,\n3,b\n", Columns(), r"no label in 1 of 3 rows \(counted from 0: 1\)"),
    "NaN for a label": ("x,label\n1,a\n2,NaN\n3,b\n", Columns(), r"no label in 1 of 3 rows \(counted from 0: 1\)"),
    "mixed labels": (
        "x,label\n1,3\n2,cat\n3,4\n",
        Columns(),
        "mixes numbers and words .*row 0 has '3', row 1 has 'cat'",
    ),
    "continuous labels": ("x,label\n1,3.5\n2,2\n", Columns(), "not classes .*row 0 has '3.5'"),
    "one class": ("x,label\n1,a\n2,a\n", Columns(), "one class only .'a'."),
    "ragged": ("x,label\n1,a\n2,b,c\n", Columns(), "line 3: 3 columns where the header has 2"),
    "ragged after quotes": ('x,label\n1,"a\nb"\n2\n', Columns(), "line 4: 1 column where the header has 2"),
    "missing number": ("x,label\n1,a\n,b\n", Columns(), "column 'x' has no number in row 1 .*--ignore x"),
    "infinite number": ("x,label\n1,a\ninf,b\n", Columns(), "column 'x' has an infinite .*row 1"),
    "too large number": ("x,label\n1,a\n1e300,b\n", Columns(), "column 'x' has an infinite or too large"),
    "number asked for": ("x,label\n1,a\nz,b\n", Columns(numbers=("x",)), "number column 'x' has 'z' in row 1"),
    "unclosed quote": ('x,label\n1,"a\n2,b\n', Columns(), "unexpected end of data: close every quote"),
    "huge field": ("x,label\n1," + "a" * 200_000 + "\n", Columns(), "more than 131,072 characters"),
    "NUL": ("x,label\n1,a\n\0,b\n", Columns(), "line 3: a NUL character"),
    "UTF-16": ("x,label\n1,a\n".encode("utf-16"), Columns(), "looks like UTF-16"),
    "Latin-1": ("x,label\n1,é\n".encode("latin-1"), Columns(), "not UTF-8 .byte 0xe9."),
    "no header": ("1,2\n3,4\n", Columns(), "starts with numbers .*names the columns"),
    "two columns alike": ("x,x,label\n1,2,a\n", Columns(), "two columns called 'x'"),
    "header only": ("x,label\n", Columns(), "no rows"),
    "nothing": ("", Columns(), "is empty"),
    "nothing to learn from": ("label\na\nb\n", Columns(), "no column to learn from"),
    "a text column of NaNs": ("text,label\nnan,a\nnan,b\n", Columns(text="text"), "text column 'text' is empty"),
    "an unasked text column of NaNs": ("text,label\n,a\n,b\n", Columns(), "no column to learn from; 'text' is empty"),
    "empty id": ("k,x,label\n,1,a\nb,2,b\n", Columns(id="k"), "id column 'k' is empty in row 0"),
    "repeated id": ("k,x,label\nb,1,a\nb,2,b\n", Columns(id="k"), "id column 'k' has 'b' in rows 0 and 1"),
    "long id": ("k,x,label\n" + "b" * 2000 + ",1,a\nb,2,b\n", Columns(id="k"), "an entry of 2000 characters"),
    "named twice": ("x,label\n1,a\n2,b\n", Columns(text="x", ignore=("x",)), "named by --text and --ignore"),
    "ignored column misspelled": ("x,label\n1,a\n2,b\n", Columns(ignore=("z",)), "no column 'z' .--ignore."),
    "empty true label": ("x,label,true_label\n1,a,\n2,b,a\n", Columns(), "'true_label' has no label in 1 of 2 rows"),
    "a column of unique words": (
        "x,code,label\n" + "".join(f"{n},u{n},{'ab'[n % 2]}\n" for n in range(40)),
        Columns(),
        "column 'code' .*--text code, --categories code or --ignore code",
    ),
    "a column of numbers and some words": (
        "x,label\n" + "".join(f"{n if n else 'low'},{'ab'[n % 2]}\n" for n in range(40)),
        Columns(),
        "column 'x' mixes numbers and words .row 0.*'low'",
    ),
}


def test_a_sample_where_the_names_should_be(tmp_path: Path) -> None:
    rows = "1.5,2,a\n2.5,1,b\n3.5,4,a\n"
    with pytest.warns(NarlWarning, match="'1.5', '2', 'a'.*put a line of names before it"):
        read(write(tmp_path, rows), columns=Columns(label="a"))
    read(write(tmp_path, "0,1,label\n" + rows))  # columns that pandas has numbered


def test_words_for_nothing_may_be_classes(tmp_path: Path) -> None:
    assert read(write(tmp_path, "x,label\n1,none\n2,some\n")).classes == ("none", "some")


@pytest.mark.parametrize(("text", "columns", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_tables(tmp_path: Path, text: str | bytes, columns: Columns, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(write(tmp_path, text), columns=columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"x": 1, "label": ', "line 2: no JSON"),
        ("[1, 2]", "line 2: a JSON list, not an object"),
        ('{"x": [1, 2], "label": "a"}', "column 'x' holds a list in row 1 .*--ignore x"),
        ('{"x": {"y": 1}, "label": "a"}', "column 'x' holds a dict in row 1"),
        ('{"x": 1, "label": "\\ud800"}', "line 2: no JSON"),
        ('{"x": NaN, "label": "a"}', "column 'x' has no number in row 1"),
        ('{"x": Infinity, "label": "a"}', "column 'x' has an infinite"),
        ('{"x": 1}', "no label in 1 of 2 rows"),
        ("[" * 100_000, "line 2: no JSON"),
        ('{"x": ' + "9" * 5000 + "}", "line 2: no JSON"),
    ],
)
def test_bad_jsonl(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, f'{{"x": 0, "label": "b"}}\n{line}\n', "data.jsonl"))


def test_some_empty_texts_are_kept_with_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, "text,label\nhello,a\nnan,b\n,a\n")
    with pytest.warns(NarlWarning, match=r"empty in 2 of 3 rows \(counted from 0: 1, 2\)"):
        samples = read(path)
    assert isinstance(samples.inputs, Texts)
    assert samples.inputs.texts.tolist() == ["hello", "", ""]


def test_nested_columns_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, '{"x": 0, "y": "b", "z": [1]}\n{"x": 0, "y": "c", "z": [1]}\n', "data.jsonl")
    assert read(path, columns=Columns(ignore=("z",))).classes == ("b", "c")
