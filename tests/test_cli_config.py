"""Configuration files: what they set, what goes before them, and everything that may be wrong with one."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from narl.cli.config import MOST_BYTES, ConfigFile, read_config
from narl.cli.config_formats import parse
from narl.errors import ConfigError


class Kind(str, Enum):
    plain = "plain"
    adjusted = "adjusted"


KNOWN: dict[str, Any] = {
    "data": str | None,
    "epochs": int,
    "learning-rate": float,
    "kind": Kind,
    "out": Path,
    "tag": list[str],
    "shuffle": bool,
    "json": bool,
}
FULL = {
    "data": "train.csv",
    "epochs": 7,
    "learning-rate": 0.001,
    "kind": "adjusted",
    "out": "runs/a b",
    "tag": ["x", 'ä, "y"\n'],
    "shuffle": False,
    "json": True,
}
TOML = """
data = "train.csv"
epochs = 7
learning_rate = 1e-3  # a comment
kind = "adjusted"
out = "runs/a b"
tag = ["x", "ä, \\"y\\"\\n"]
shuffle = false
json = true
"""
YAML = """
data: train.csv
epochs: 7
learning-rate: 1e-3  # a comment
kind: adjusted
out: runs/a b
tag:
  - x
  - "ä, \\"y\\"\\n"
shuffle: false
json: true
"""
app = typer.Typer(pretty_exceptions_enable=False)
SEEN: dict[str, Any] = {}


@app.callback()
def root() -> None: ...


@app.command()
def fit(
    data: Annotated[str | None, typer.Argument()] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o")],
    epochs: Annotated[int, typer.Option(min=1)] = 5,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", min=0.0)] = 0.1,
    ignore: Annotated[list[str] | None, typer.Option()] = None,
    kind: Kind = Kind.plain,
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle/--no-shuffle")] = True,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    config: ConfigFile = None,
) -> None:
    SEEN.update(locals())


def run(*arguments: str) -> dict[str, Any]:
    SEEN.clear()
    CliRunner().invoke(app, ["fit", *arguments], catch_exceptions=False, standalone_mode=False)
    return dict(SEEN)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(("name", "text"), [("c.toml", TOML), ("c.YAML", YAML), ("c.yml", YAML), ("c.json", None)])
def test_every_format_says_the_same(tmp_path: Path, name: str, text: str | None) -> None:
    path = written(tmp_path, name, json.dumps(FULL) if text is None else text)
    assert read_config(path, KNOWN) == FULL
    seen = run("--config", str(path))
    assert seen["kind"] is Kind.adjusted
    assert (seen["data"], seen["out"], seen["tags"]) == ("train.csv", Path("runs/a b"), FULL["tag"])
    assert (seen["epochs"], seen["learning_rate"], seen["shuffle"], seen["as_json"]) == (7, 0.001, False, True)


def test_flags_go_before_the_file_and_the_file_before_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yaml", "data: a.csv\nepochs: 7\nshuffle: false\nout: there\ntag: [a, b]")
    plain = run("--config", str(path))
    assert (plain["data"], plain["epochs"], plain["learning_rate"], plain["shuffle"]) == ("a.csv", 7, 0.1, False)
    for arguments in (["--config", str(path), "b.csv"], ["b.csv", "--config", str(path)]):
        seen = run(*arguments, "--epochs", "9", "--shuffle", "--tag", "c")
        assert (seen["data"], seen["epochs"], seen["shuffle"], seen["tags"]) == ("b.csv", 9, True, ["c"])
        assert seen["out"] == Path("there")  # relative to the current folder, as a flag's path is
        assert seen["config"] == path


def test_every_spelling_of_a_flag_is_a_key(tmp_path: Path) -> None:
    path = written(tmp_path, "c.yaml", "lr: 0.5\no: there")
    seen = run("--config", str(path))
    assert (seen["learning_rate"], seen["out"]) == (0.5, Path("there"))
    with pytest.raises(ConfigError, match="learning-rate is set twice"):
        run("--config", str(written(tmp_path, "twice.yaml", "lr: 0.5\nlearning_rate: 0.5\nout: o")))
    with pytest.raises(ConfigError, match="nothing is called 'no-shuffle'"):
        run("--config", str(written(tmp_path, "no.yaml", "no-shuffle: true\nout: o")))


def test_names_of_columns_may_be_a_list(tmp_path: Path) -> None:
    known = {"ignore": list[str] | None, "numbers": list[str], "data": str}
    for name, text in (("c.yaml", "ignore: [hue, ash]\nnumbers: [1]"), ("c.toml", "ignore=['hue','ash']\nnumbers='1'")):
        assert read_config(written(tmp_path, name, text), known) == {"ignore": ["hue", "ash"], "numbers": ["1"]}
    assert run("--out", "o", "--config", str(written(tmp_path, "d.yaml", "ignore: [a, b c]")))["ignore"] == ["a", "b c"]
    assert read_config(written(tmp_path, "c.yaml", "ignore: []"), known) == {"ignore": []}
    for text, words in (
        ("data: [a, b]", "data is ['a', 'b'], but it takes one value"),
        ("ignore: ['a,b', c]", "names of columns are told apart by commas"),
        ("ignore: [a, true]", "an entry of ignore is true, but a text is needed"),
        ("ignore: [a, null]", "an entry of ignore is null"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_config(written(tmp_path, "c.yaml", text), known)
        assert words in str(caught.value)


def test_epochs_may_be_a_list(tmp_path: Path) -> None:
    known = {"milestones": str | None}
    for name, text, expected in (
        ("a.yaml", "milestones: [80, 120.5]", "80.0,120.5"),
        ("b.toml", "milestones = [80]", "80.0"),
        ("c.json", '{"milestones": 40.5}', "40.5"),
        ("d.yaml", "milestones: 80,120", "80,120"),
        ("e.yaml", "milestones: []", ""),
    ):
        assert read_config(written(tmp_path, name, text), known) == {"milestones": expected}
    for text in ("milestones: [80, true]", "milestones: [80, '120']", "milestones: [.inf]"):
        with pytest.raises(ConfigError, match="an entry of milestones"):
            read_config(written(tmp_path, "c.yaml", text), known)


@pytest.mark.parametrize("text", ["", " \n\t\n", "# only words\n", "---\n", "\ufeff"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert read_config(written(tmp_path, "c.yaml", text), KNOWN) == {}
    if not text.startswith("-"):
        assert read_config(written(tmp_path, "c.toml", text), KNOWN) == {}
    assert run("--out", "o", "--config", str(tmp_path / "c.yaml"))["epochs"] == 5


def test_yaml_values_are_what_they_look_like(tmp_path: Path) -> None:
    def value(text: str) -> Any:
        return dict(parse(f"k: {text}".encode(), Path("c.yaml")))["k"]

    for text in ("no", "on", "12:30", "010", "0x1f", "1_000", "2020-01-01", "none", ".inf", "+5", "'5'", "1e", "."):
        assert value(text) == text.strip("'"), text
    assert (value("5"), value("-5"), value("0")) == (5, -5, 0)
    assert (value("1e-3"), value(".5"), value("-2.50"), value("1.")) == (0.001, 0.5, -2.5, 1.0)
    assert (value("true"), value("False"), value("~"), value("")) == (True, False, None, None)
    # a whole number is as good as a text, where a text is needed: --clean 100
    assert read_config(written(tmp_path, "c.yaml", "data: 100\ntag: 5"), KNOWN) == {"data": "100", "tag": ["5"]}
    assert read_config(written(tmp_path, "c.yaml", "learning_rate: 1"), KNOWN) == {"learning-rate": 1.0}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "epoch: 3", "nothing is called 'epoch': did you mean 'epochs'?"),
        ("c.toml", "learning_rat = 3", "did you mean 'learning-rate'?"),
        ("c.json", '{"Epochs": 3}', "did you mean 'epochs'?"),
        ("c.yaml", "config: other.yaml", "nothing is called 'config'"),
        ("c.yaml", "help: true", "nothing is called 'help'"),
        ("c.yaml", "epochs: '3'", "epochs is '3', but a whole number is needed"),
        ("c.yaml", "epochs: two", "epochs must be a whole number, got 'two'"),
        ("c.toml", "epochs = 3.0", "epochs must be a whole number, got 3.0"),
        ("c.json", '{"epochs": true}', "epochs must be a whole number, got true"),
        ("c.yaml", "epochs: [3]", "epochs is [3], but it takes one value"),
        ("c.yaml", "epochs:", "epochs is null, but a setting needs a value"),
        ("c.json", '{"tag": [null]}', "tag is null, but a setting needs a value"),
        ("c.json", '{"tag": [["a"]]}', "tag is ['a'], but it takes one value"),
        ("c.json", '{"tag": [{"a": 1}]}', "it takes one value"),
        ("c.yaml", "learning-rate: fast", "learning-rate must be a number, got 'fast'"),
        ("c.yaml", "learning-rate: 1e999", "a finite number is needed"),
        ("c.toml", "learning-rate = nan", "a finite number is needed"),
        ("c.json", '{"learning-rate": NaN}', "holds NaN"),
        ("c.json", '{"learning-rate": 1' + "0" * 400 + "}", "a finite number is needed"),
        ("c.yaml", "shuffle: yes", "shuffle is 'yes', but it is a switch: write true or false"),
        ("c.json", '{"shuffle": 1}', "it is a switch"),
        ("c.yaml", "kind: adjust", "did you mean 'adjusted'?"),
        ("c.yaml", "kind: true", "that is no choice"),
        ("c.yaml", "out: true", "out is true, but a text is needed: put it in quotes"),
        ("c.yaml", "out: 1.10", "put it in quotes"),
        ("c.toml", "out = 2020-01-01", "put it in quotes"),
        ("c.json", '{"out": "a\\u0000b"}', "a character that no text has"),
        ("c.json", '{"out": "a\\ud800b"}', "a character that no text has"),
        ("c.toml", "[train]\nepochs = 3", "'train' is a table, but settings are not nested"),
        ("c.yaml", "train:\n  epochs: 3", "line 2: settings are not nested"),
        ("c.json", '{"train": {"epochs": 3}}', "'train' is a table, but settings are not nested"),
        ("c.yaml", "epochs: 3\nepochs: 4", "epochs is set twice"),
        ("c.yaml", "learning-rate: 3\nlearning_rate: 4", "learning-rate is set twice"),
        ("c.json", '{"epochs": 3, "epochs": 4}', "epochs is set twice"),
        ("c.toml", "epochs = 3\nepochs = 4", "(at "),
        ("c.toml", "epochs = \nout = 1", "(at line 1, column 10)"),
        ("c.yaml", "epochs: 3\nout: 'a\n", "line 3 column 1 is not written as .yaml should be"),
        ("c.json", '{"epochs": 3,\n "out" 4}', "line 2 column 8 is not written as .json should be"),
        ("c.json", "[1, 2]", "settings have names"),
        ("c.json", '"text"', "settings have names"),
        ("c.yaml", "- 1", "settings have names"),
        ("c.yaml", "just words", "settings have names"),
        ("c.yaml", "a: 1\n---\nb: 2", "line 2: "),
        ("c.yaml", "out: !!python/object/apply:os.system [ls]", "has the tag 'tag:yaml.org,2002:python/object/apply"),
        ("c.yaml", "!!map {out: a}", "has the tag"),
        ("c.yaml", "data: &x a\nout: *x", "line 2: refers to another place with '*'"),
        ("c.yaml", "? [a]\n: 3", "a list in a list, or as a name"),
        ("c.yaml", "out: a\x07b", "is not written as .yaml should be"),
        ("c.yaml", b"out: \xff\xfe", "is not text in UTF-8 (byte 5)"),
        ("c.json", "[" * 100_000, "nested too deeply"),
        ("c.toml", "a = " + "[" * 100_000, "c.toml"),
        ("c.yaml", "a: " + "[" * 100_000, "a list in a list"),
        ("c.toml", "a" + ".a" * 100_000 + " = 1", "nested too deeply"),
        ("c.yaml", "a: 1" + "0" * 5000, "c.yaml"),
        ("c.json", '{"epochs": 1' + "0" * 5000 + "}", "c.json"),
        ("c.toml", "epochs = 1" + "0" * 5000, "c.toml"),
        ("c.yaml", "#" * (MOST_BYTES + 1), "is larger than 1 MB"),
        ("c.txt", "epochs: 3", "let the name end in .toml, .yaml, .yml, .json"),
    ],
)
def test_mistakes_are_named_in_one_line(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path, KNOWN)
    told = str(caught.value)
    assert message in told
    assert str(path) in told
    assert told.isprintable(), "one line"
    assert len(told) < len(str(path)) + 400


def test_files_that_are_not_there(tmp_path: Path) -> None:
    written(tmp_path, "training.yaml", "")
    written(tmp_path, "trainin.txt", "")
    with pytest.raises(ConfigError, match=r"does not exist: did you mean .*training\.yaml\?"):
        read_config(tmp_path / "trainig.yaml", KNOWN)
    with pytest.raises(ConfigError, match="does not exist: check the path"):
        read_config(tmp_path / "zzz.yaml", KNOWN)
    with pytest.raises(ConfigError, match="nor can its folder"):
        read_config(tmp_path / "no" / "such.yaml", KNOWN)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        read_config(tmp_path / "folder.yaml", KNOWN)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / ("x" * 500 + ".yaml"), KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [("epochs: 0", "epochs is 0: "), ("learning-rate: -1", "learning-rate is -1.0: "), ("nope: 1", "'nope'")],
)
def test_what_a_flag_would_refuse_is_refused_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, "c.yaml", text)
    with pytest.raises(ConfigError) as caught:
        run("--out", "o", "--config", str(path))
    assert f"{path}: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_billion_laughs_are_not_heard(tmp_path: Path) -> None:
    lines = ["a: &a [lol, lol]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    with pytest.raises(ConfigError, match="refers to another place"):
        read_config(written(tmp_path, "c.yaml", "\n".join(lines)), dict.fromkeys("abcdefghi", list[str]))


likely = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(
        st.sampled_from(
            ["epochs", "tag", "kind", "data", "true", "null", "nan", "1e5", "1_0", "&a", "*a", "!!str", "---"]
        )
        | st.sampled_from(":=[]{}\"',-!|>%#?. \n\t\\03"),
        max_size=30,
    ).map(lambda parts: "".join(parts).encode()),
)


@given(content=likely, suffix=st.sampled_from([".toml", ".yaml", ".json"]))
@settings(max_examples=600, deadline=None)
def test_any_bytes_give_settings_or_a_refusal(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), f"c{suffix}", content)
        found: dict[str, Any] = {}
        refusal = ""
        try:
            found = read_config(path, KNOWN)
        except ConfigError as error:
            refusal = str(error)
        assert refusal.isprintable()  # one line, whatever the file holds
        assert set(found) <= set(KNOWN)
        for key, value in found.items():
            wanted = {"epochs": int, "learning-rate": float, "shuffle": bool, "json": bool, "tag": list}.get(key, str)
            assert type(value) is wanted


@given(
    found=st.fixed_dictionaries(
        {},
        optional={
            "data": st.text(max_size=20).filter(lambda text: "\0" not in text),
            "epochs": st.integers(),
            "learning-rate": st.floats(allow_nan=False, allow_infinity=False),
            "kind": st.sampled_from(["plain", "adjusted"]),
            "tag": st.lists(st.text(max_size=5).filter(lambda text: "\0" not in text), max_size=3),
            "shuffle": st.booleans(),
        },
    )
)
@settings(max_examples=100, deadline=None)
def test_what_was_written_is_read(found: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), "c.json", json.dumps(found))
        assert read_config(path, KNOWN) == found
        # JSON's quoting is also YAML's, but for characters beyond 16 bits, which JSON writes as two
        if all(ord(letter) < 0x10000 for letter in json.dumps(found, ensure_ascii=False)):
            lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in found.items())
            assert read_config(written(Path(folder), "c.yaml", lines), KNOWN) == found


def test_reading_flags_imports_no_parser_before_it_is_needed() -> None:
    import subprocess

    check = "import narl.cli.config, sys; print([name for name in ('yaml', 'tomllib', 'torch') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True).strip() == "[]"
