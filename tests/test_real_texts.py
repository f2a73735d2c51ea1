"""Real texts to learn and choose on: how collections are read, and that labels by rules are what they should be."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from narl.data.text_encoding import tokens

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("real_texts")
    monkeypatch.setattr(module, "LEAST", 2)
    monkeypatch.setattr(module, "TESTED", 60)
    yield module
    module.collection.cache_clear()
    sys.modules.pop("real_texts")


def collection(size: int = 400) -> dict[str, list[str]]:
    """Every class has words of its own, which others use now and then."""
    rng = np.random.default_rng(0)
    usual = [f"so{letter}{other}" for letter in ascii_lowercase for other in "aeiou"]
    own = {name: [name + letter for letter in ascii_lowercase[:12]] for name in ("who", "where", "when", "why")}
    found = {}
    for name in own:
        of = [name if rng.random() < 0.85 else str(rng.choice(list(own))) for _ in range(size)]
        found[name] = [
            " ".join([rng.choice(own[other]), *rng.choice(usual, 5), f"t{row}"]) for row, other in enumerate(of)
        ]
    return found


def test_definitions_are_read_without_their_examples(study: ModuleType, tmp_path: Path) -> None:
    lines = [
        "  1 a licence, which is no definition | of anything at all",
        '00001740 05 n 01 dog 0 000 | an animal that barks; "the dog barked"',
        "00001741 05 n 01 cat 0 000 | an animal that purrs  ",
        "00001742 05 n 01 asp 0 000 | a snake",
        "00001743 06 n 01 cup 0 000 | something to drink from",
    ]
    for part in ("noun", "verb"):
        Path(tmp_path, f"data.{part}").write_text("\n".join(lines) + "\n", "utf-8")
    found = study.glosses(tmp_path)
    assert found["noun 05"] == ["an animal that barks", "an animal that purrs"]
    assert set(found) == {"noun 05", "verb 05"}


def test_packages_are_read_from_what_the_package_manager_says(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [
        f"Package: p{number}\nSection: {section}\nDescription-en: a {section} thing {number}\n longer words"
        for number, section in enumerate(["games", "games", "mail"])
    ]
    told = subprocess.CompletedProcess([], 0, "\n\n".join(blocks) + "\n")
    monkeypatch.setattr(study.subprocess, "run", lambda *_, **__: told)
    assert study.packages() == {"games": ["a games thing 0", "a games thing 1"]}


def test_fortunes_are_parted_and_cut(study: ModuleType, tmp_path: Path) -> None:
    Path(tmp_path, "work").write_text("one two\nthree\n%\n" + "word " * 50 + "\n%\ntoo short\n", "utf-8")
    Path(tmp_path, "work.dat").write_bytes(b"\0")
    assert study.fortunes(tmp_path) == {"work": ["one two three", " ".join(["word"] * 40)]}


def test_what_is_missing_says_how_to_get_it(study: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="apt-get install wordnet-base"):
        study.glosses(tmp_path)


class Chance:
    """Stands in for a generator: says what it is told to, and looks at the first texts."""

    def __init__(self, *said: float) -> None:
        self.said = list(said)

    def choice(self, given: Any, size: int | None = None, **_: object) -> Any:
        return np.arange(given)[:size] if size is not None else np.atleast_1d(given)[0]

    def integers(self, *_: int) -> int:
        return 4

    def standard_normal(self, size: int) -> Any:
        return np.zeros(size)

    def random(self) -> float:
        return self.said.pop(0)


@pytest.mark.parametrize(
    ("majority", "left_out", "expected"),
    [(True, False, [0, 1, 1, 0]), (False, False, [0, 1, 0, 0]), (True, True, [0, 1, 1, -1])],
)
def test_rules_go_by_words_that_few_texts_have_shown(
    study: ModuleType, majority: bool, left_out: bool, expected: list[int]
) -> None:
    """Two classes with a word each; then a text with one of the first and two of the second, and one without any."""
    looked_at = [["cat", "x"], ["dog", "y"], ["cat", "z"], ["dog", "v"], ["cat", "u"], ["dog", "w"], ["cat"], ["dog"]]
    asked = [["cat", "q"], ["dog"], ["cat", "dog", "dog"], ["none", "of", "them"]]
    true = np.array([0, 1] * 4 + [0] * 4)
    chance = Chance(0.0 if majority else 1.0, 1.0, 0.0 if left_out else 1.0, *[0.0] * 9)
    given = study.by_rules([*looked_at, *asked], true, 8, 2, chance)
    assert given[8:].tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_labels_by_rules_follow_from_words(study: ModuleType, seed: int) -> None:
    made = study.drawn(collection(), np.random.default_rng(seed), "rules", classes=4, rows=600)
    # There are words all of whose texts have one label, and most of them are words of a class.
    having: dict[str, list[int]] = {}
    for text, label in zip(made.texts, made.given, strict=True):
        for word in set(tokens(text)):
            having.setdefault(word, []).append(int(label))
    sure = [word for word, labels in having.items() if len(labels) > 10 and len(set(labels)) == 1]
    assert sum(word.startswith("wh") for word in sure) > max(3, len(sure) / 2)


def test_what_cannot_be_drawn_is_said(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(SystemExit, match="9 classes are too many: the collection has 4"):
        study.drawn(collection(), rng, classes=9)
    monkeypatch.setattr(study, "by_rules", lambda texts, *_: np.zeros(len(texts), np.int64))
    with pytest.raises(SystemExit, match="labels by rules were not as they are to be"):
        study.drawn(collection(20), rng, classes=2, rows=20)


@pytest.mark.parametrize(("kind", "wrong"), [("right", 0.0), ("symmetric 0.4", 0.4), ("pair 0.2", 0.2)])
def test_other_labels_are_wrong_as_often_as_they_should_be(study: ModuleType, kind: str, wrong: float) -> None:
    made = study.drawn(collection(), np.random.default_rng(1), kind, classes=3, rows=500)
    assert (made.given != made.true).mean() == pytest.approx(wrong, abs=0.06)
    assert 490 <= made.rows <= 505
    x, vocabulary = made.encoded(6)
    assert x.shape == (len(made.texts), 6)
    assert int(x.max()) < vocabulary


def test_the_same_generator_draws_the_same(study: ModuleType) -> None:
    first, second = (
        study.drawn(collection(), np.random.default_rng(5), rows=300, classes=3).arrays() for _ in range(2)
    )
    assert all((first[name] == second[name]).all() for name in first)
    assert set(first) == {"text_train", "y_train", "given_train", "text_test", "y_test"}
