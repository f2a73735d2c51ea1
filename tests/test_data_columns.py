"""Columns that a person has to decide about: what is asked, and that one answer is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from narl.data.column_looks import label_like
from narl.data.read import Columns, read, read_detected, read_inputs
from narl.data.samples import Table
from narl.errors import DataError


def write(folder: Path, header: str, row: Callable[[int], str], count: int = 40, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *map(row, range(count))]) + "\n")
    return path


def message(path: Path, columns: Columns = Columns()) -> str:  # noqa: B008 - frozen
    with pytest.raises(DataError) as caught:
        read(path, columns=columns)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["label", "gold_label", "Target", "class", "label_2", "true_class", "gold_topic", "y"])
def test_a_second_column_of_labels_is_no_input_unasked(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"x,weak_label,{name}", lambda i: f"{i},{i % 2},{(i + 1) % 2}")
    asked = message(path, Columns(label="weak_label"))
    assert asked == (
        f"column '{name}' looks like labels too: say --true-label {name}, --ignore {name}, or --numbers/--categories "
        f"{name} if it is an input"
    )
    samples, columns = read_detected(path, columns=Columns(label="weak_label", true_label=name))
    assert samples.true_labels is not None
    assert (samples.true_labels != samples.labels).all()
    assert columns.numbers == ("x",)
    assert read_detected(path, columns=Columns(label="weak_label", ignore=(name,)))[1].numbers == ("x",)
    assert read_detected(path, columns=Columns(label="weak_label", numbers=(name,)))[1].numbers == (name, "x")
    assert read_detected(path, columns=Columns(label="weak_label", categories=(name,)))[1].categories == (name,)


def test_names_that_are_not_like_labels() -> None:
    assert not any(map(label_like, ["x", "labelled", "classes_taken", "untrue_x", "golden", "yield", "category_2"]))


def test_true_labels_as_noise_calls_them_in_arrays(tmp_path: Path) -> None:
    path = write(tmp_path, "x,label,y_true", lambda i: f"{i},{i % 2},{i // 3 % 2}")
    samples, columns = read_detected(path)
    assert columns == Columns(label="label", true_label="y_true", numbers=("x",))
    assert samples.true_labels is not None
    assert samples.true_labels.tolist() == [i // 3 % 2 for i in range(40)]
    both = write(tmp_path, "x,label,y_true,true_label", lambda i: f"{i},{i % 2},{i // 3 % 2},{i % 2}", name="both.csv")
    assert message(both).startswith("column 'y_true' looks like labels too: say --ignore y_true, or")
    assert read_detected(both, columns=Columns(ignore=("y_true",)))[1].true_label == "true_label"


def test_labels_beside_texts_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, "text,label,label_name", lambda i: f"text {i},{i % 2},{'no' if i % 2 else 'yes'}")
    assert read_detected(path)[1] == Columns(label="label", text="text", ignore=("label_name",))


def test_further_files_are_not_asked_about(tmp_path: Path) -> None:
    train = write(tmp_path, "x,label", lambda i: f"{i},{i % 2}")
    columns = read_detected(train)[1]
    test = write(tmp_path, "x,label,gold_label", lambda i: f"{i},{i % 2},{i % 2}", name="test.csv")
    assert len(read(test, part="test", columns=columns, classes=("0", "1"))) == 40
    assert len(read_inputs(test, columns=columns)) == 40


def test_all_columns_are_asked_about_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "x,code,name,low,price,label,gold_label,old_label,gone",
        lambda i: f'{i},u{i},n{i},{i or "low"},"3,{i}",{i % 2},{i % 2},{i % 2},{i}.png',
    )
    asked = message(path)
    assert asked.split("; ") == [
        "columns 'gold_label', 'old_label' look like labels too: say --true-label for one of them, --ignore "
        "gold_label,old_label, or --numbers/--categories those that are inputs",
        f"column 'gone' names images, but there is no {tmp_path / '0.png'}: mend the paths, or say --ignore gone",
        "column 'price' holds numbers with commas (row 0, counted from 0, has '3,0'): commas in numbers are not read, "
        "write 3.5 and 1234, or say --categories price or --ignore price",
        "column 'low' mixes numbers and words (row 0, counted from 0, has 'low'): mend the cells, or say --categories "
        "low or --ignore low",
        "columns 'code', 'name' could be text, categories or nothing to learn from: say --text for one of them, "
        "--categories code,name or --ignore code,name",
    ]
    answer = Columns(
        true_label="gold_label", categories=("low", "code", "name"), ignore=("old_label", "price", "gone")
    )  # fmt: skip
    assert read_detected(path, columns=answer)[1].numbers == ("x",)


def test_two_labels_and_what_else_is_unclear(tmp_path: Path) -> None:
    path = write(tmp_path, "code,label,target", lambda i: f"u{i},{i % 2},{i % 2}")
    asked = message(path)
    assert "say which with --label, and what the others are with --true-label or --ignore; column 'code'" in asked
    assert asked.count(str(path)) == 1
    assert len(read(path, columns=Columns(label="label", true_label="target", categories=("code",)))) == 40


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (Columns(text="comment", numbers=("income",)), "--text comment and --numbers income"),
        (Columns(text="comment", categories=("income",)), "--text comment and --categories income"),
        (Columns(image="comment", numbers=("income",)), "--image comment and --numbers income"),
        (Columns(image="comment", text="income"), "--image comment and --text income"),
    ],
)
def test_images_texts_and_tables_are_not_mixed(tmp_path: Path, columns: Columns, named: str) -> None:
    path = write(tmp_path, "comment,income,label", lambda i: f"so be it {i},{i},{i % 2}")
    asked = message(path, columns)
    assert asked == f"{named} are both given, but images, texts and table columns are not mixed: leave one out"


def test_no_text_is_offered_beside_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "comment,income,label", lambda i: f"this is how it is {i},{i},{i % 2}")
    asked = message(path, Columns(numbers=("income",)))
    assert asked.endswith("could be categories or nothing to learn from: say --categories comment or --ignore comment")


def test_commas_in_numbers(tmp_path: Path) -> None:
    few = write(tmp_path, "x,z,label", lambda i: f'{i},"{i % 3},5",{i % 2}')
    assert message(few).startswith("column 'z' holds numbers with commas (row 0, counted from 0, has '0,5'): commas")
    assert read_detected(few, columns=Columns(categories=("z",)))[1].categories == ("z",)
    assert message(few, Columns(numbers=("z",))).endswith("(commas in numbers are not read, write 3.5 and 1234)")
    semicolons = write(tmp_path, "x;z;label", lambda i: f"{i};1.234,{i};{i % 2}", name="semicolons.csv")
    assert "numbers with commas" in message(semicolons)
    words = write(tmp_path, "x;z;label", lambda i: f"{i};red,blue;{i % 2}", name="words.csv")
    assert read_detected(words)[1].categories == ("z",)


def test_all_columns_without_numbers_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,c,label", lambda i: f"{i or ''},{i},{i - 3 or 'nan'},{i % 2}")
    asked = message(path)
    assert asked == (
        "column 'a' has no number in row 0 (counted from 0; 1 such row), likewise 'c': fill it in, or leave the "
        "columns out with --ignore a,c"
    )
    asked = message(write(tmp_path, "a,b,label", lambda i: f"z,z,{i % 2}"), Columns(numbers=("a", "b")))
    assert asked.endswith(
        "has 'z' in row 0 (counted from 0), likewise 'b': mend it, or say --categories a,b or --ignore a,b"
    )


TRAINED = Columns(label="label", numbers=("x",), categories=("c",), ignore=("left",))
PREDICTED = {
    "a word": ("x,c\n1,u\nlow,u\n", TRAINED, "has 'low' in row 1 (counted from 0): give numbers in column 'x'"),
    "a comma": ('x,c\n"3,5",u\n', TRAINED, "give numbers in column 'x' (commas in numbers are not read"),
    "nothing": ("x,c\n1,u\n,u\n", TRAINED, "no number in row 1 (counted from 0; 1 such row): fill it in"),
    "no column": ("X,c\n1,u\n", TRAINED, "has no column 'x' as the training data had: did you mean 'X'?"),
    "no text": ("text\nnan\n", Columns(text="text"), "text column 'text' is empty: fill it in"),
    "two texts": (
        "text,review\na,b\n",
        Columns(),
        "several columns to learn from ('text', 'review'): leave all but one",
    ),
    "unclear": (
        "x\n" + "".join(f"u{i}\n" for i in range(40)),
        Columns(),
        "nothing to learn from: leave the column out",
    ),
    "mixed": (
        "x\n" + "".join(f"{i or 'a'}\n" for i in range(40)),
        Columns(),
        "mend the cells, or leave the column out",
    ),
    "lost": ("f,x\n1.png,1\n", Columns(), "mend the paths, or leave the column out"),
}


@pytest.mark.parametrize(("text", "columns", "words"), PREDICTED.values(), ids=PREDICTED)
def test_what_is_said_of_samples_to_predict_names_no_flags_of_training(
    tmp_path: Path, text: str, columns: Columns, words: str
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_inputs(path, columns=columns)
    assert words in str(caught.value)
    assert "--" not in str(caught.value)


def test_nested_cells_of_samples_to_predict(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text('{"x": 1, "c": "u", "new": [1]}\n')
    with pytest.raises(DataError, match=r"column 'new' holds a list .*or leave the column out$"):
        read_inputs(path, columns=TRAINED)


def test_a_first_column_that_counts_is_kept_unless_it_is_pandas_index(tmp_path: Path) -> None:
    for name, kept in (("number", ("number", "x")), ("", ("x",)), ("Unnamed: 0", ("x",))):
        samples = read(write(tmp_path, f"{name},x,label", lambda i: f"{i},7,{i % 2}"))
        assert isinstance(samples.inputs, Table)
        assert samples.inputs.number_names == kept
        np.testing.assert_array_equal(samples.inputs.numbers[:, -1], 7)


def test_how_to_convert_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "my data.csv"
    path.write_bytes("x,label\n1,é\n".encode("latin-1"))
    new = tmp_path / "my data-utf8.csv"
    assert message(path).endswith(f"convert it: iconv -f latin1 -t utf-8 '{path}' > '{new}'")
    path.write_bytes("x,label\n1,é\n".encode("utf-16"))
    assert message(path).endswith(f"convert it: iconv -f utf-16 -t utf-8 '{path}' > '{new}'")


def test_true_labels_of_a_table_whose_labels_come_from_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "x,true_label", lambda i: f"{i},{'abc'[i % 3]}", count=6)
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{i},{'bc'[i % 2]}\n" for i in range(6)))
    samples = read(path, labels=str(tmp_path / "labels.csv"))
    assert samples.true_labels is not None
    assert [samples.classes[index] for index in samples.labels] == list("bcbcbc")
    assert [samples.classes[index] for index in samples.true_labels] == list("abcabc")
