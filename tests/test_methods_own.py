"""Methods from outside the package: loading by path, what is refused, and the documentation's example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods_problem import batches, interrupted, run, setting_of
from narl import errors
from narl.train import methods
from narl.train.methods import Method, Setting
from narl.train.methods.fixed import FixedLoss
from narl.train.own import load_object

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
OF_ADJUSTERS = ("margin", "input", "clean_loss", "robust_start", "families", "merge_even", "snapshots")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of one's own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_documented_method_works_as_written(folder: Path) -> None:
    module, use = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "small_loss.py").write_text(module)
    asked = re.search(r"--method (\S+) --option (\w+)=(\S+)", PAGE.read_text())
    assert asked is not None
    path, option, value = asked.groups()
    spec = methods.get(path)
    assert spec.name == path
    assert spec.description == "Cross entropy of each batch's easiest samples."
    assert {name: o.default for name, o in spec.options.items()} == {"forget": 0.2}

    def make() -> tuple[Setting, Method]:
        setting = setting_of(clean=False, total=7)
        return setting, spec.build(setting, **{option: float(value)})

    interrupted(make, 3, 7)
    reports = run(make()[1], batches(7))
    assert reports[0].hyperparameters["kept"].min() == 1
    assert 0.5 < reports[-1].hyperparameters["kept"].mean() < 1

    names: dict[str, Any] = {}
    exec(use, names)
    try:
        assert names["method"].name == "SmallLoss"
        assert "SmallLoss" in methods.names()
        assert names["report"].margins.shape == (16,)
    finally:
        methods.unregister("SmallLoss")


def test_the_documented_options_are_those_that_there_are() -> None:
    table = PAGE.read_text().split("## Options")[1]
    shown: dict[str, dict[str, tuple[str, str]]] = {}
    current = ""
    for method, option, default, description in re.findall(r"^\|(.*?)\| `(\w+)` \| (.*?) \| (.*?) \|$", table, re.M):
        current = method.strip("` ") or current
        shown.setdefault(current, {})[option] = default, description
    for method in ("GCE", "JS", "PolySoft", "SL", "Forward", "MW-Net", "A-*", "T-*"):
        spec = methods.get(method.replace("*", "GCE"))
        there = {
            name: (str(option.default).lower(), option.description)
            for name, option in spec.options.items()
            if method != "A-*" or name in (*OF_ADJUSTERS, "hidden", "adjuster_weight_decay")
        }
        assert shown[method] == there
    as_for = set(methods.get("A-GCE").options) - set(OF_ADJUSTERS)
    assert as_for == set(methods.get("MW-Net").options) - {"normalise"}


def test_the_documented_methods_are_those_that_there_are() -> None:
    table = PAGE.read_text().split("## Options")[0]
    assert set(re.findall(r"`([A-Z][\w-]*\+?)`", "\n".join(re.findall(r"^\| `.*?\|", table, re.M)))) == set(
        methods.names()
    )


def test_every_form_of_an_own_method_can_be_named(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "ways.py").write_text(
        "from narl.train import methods\n"
        "from narl.train.methods.fixed import FixedLoss\n"
        "def by_function(setting, *, q=0.5):\n"
        "    '''A function.'''\n"
        "    return FixedLoss(setting, 'gce', q=q)\n"
        "def of_another_kind(setting):\n"
        "    return 5\n"
        "by_function.needs_clean = True\n"
        "spec = methods.MethodSpec('Mine', by_function, options={'q': methods.Option(0.4, 'how robust', high=0.6)})\n"
    )
    method = methods.build("mine.ways:by_function", setting_of(), q=1)
    assert isinstance(method, FixedLoss)
    assert method.hyperparameters == {"q": 1.0}
    assert method.name == "mine.ways:by_function"
    with pytest.raises(errors.CleanBatchError, match="there is no clean set"):
        methods.build("mine.ways:by_function", setting_of(clean=False))
    assert methods.get("mine.ways:spec").options["q"].default == 0.4
    with pytest.raises(errors.OptionError, match=r"q = 0\.7 is outside \[-∞, 0\.6\]"):
        methods.build("mine.ways:spec", setting_of(), q=0.7)
    with pytest.raises(errors.OptionError, match="of_another_kind made a int"):
        methods.build("mine.ways:of_another_kind", setting_of())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("X = 5", "is a int, no method"),
        ("class X: pass", "is a class, no method"),
        ("from narl.train.methods import LossMethod as X", "is abstract: write its values"),
        ("def X(): pass", "takes no setting"),
        ("def X(setting, strength): pass", "strength has none"),
        ("def X(setting=None): pass", "setting has one"),
        ("import narl.no_such_thing", "needs 'narl.no_such_thing', which is missing"),
        ("1 / 0", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("raise SystemExit", r"cannot be imported \(SystemExit\)"),
        ("X = (", r"cannot be imported \(SyntaxError: "),
    ],
)
def test_what_is_no_method_is_refused_with_the_reason(folder: Path, source: str, words: str) -> None:
    (folder / "wrong_ones.py").write_text(source)
    with pytest.raises(errors.OptionError, match=words):
        methods.get("wrong_ones:X")


def test_what_is_not_there_is_named(folder: Path) -> None:
    (folder / "some_methods.py").write_text("class MyMethod: pass")
    with pytest.raises(errors.UnknownNameError, match="has no 'MyMetod': did you mean 'MyMethod'"):
        load_object("some_methods:MyMetod")
    with pytest.raises(errors.OptionError, match="there is no module 'no_such_module'"):
        load_object("no_such_module:X")
    with pytest.raises(errors.OptionError, match=r"there is no module 'some_methods\.deeper'"):
        load_object("some_methods.deeper:X")


@given(st.text(alphabet="ab:. -1", max_size=8).filter(lambda text: not re.fullmatch(r"[ab][ab1.]*:[ab][ab1]*", text)))
def test_anything_else_is_no_path(text: str) -> None:
    with pytest.raises(errors.OptionError, match="names no Python object"):
        load_object(text)


def test_the_current_directory_is_found_from_a_script_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("value = 7")
    (tmp_path / "late.py").write_text("def f():\n    import neighbour\n    return neighbour.value")
    script = tmp_path / "bin" / "script.py"
    script.parent.mkdir()
    script.write_text("from narl.train.own import load_object; print(load_object('late:f')())")
    assert subprocess.check_output([sys.executable, script], cwd=tmp_path, text=True).strip() == "7"
