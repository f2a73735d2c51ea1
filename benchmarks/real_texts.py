"""Real texts of known classes, and labels by keyword rules: to learn and to choose on what is to serve on texts.

    python benchmarks/real_texts.py glosses out.npz --classes 6       # narl train out.npz --labels out.npz:given_train

Three collections come with Debian, so nothing is downloaded but packages (`apt-get install wordnet-base fortunes`):

- ``glosses``: WordNet's definitions of nouns and verbs, by lexicographer's file (animal, food, motion, …);
- ``packages``: one line about every package that Debian knows of, by section (games, science, mail, …);
- ``fortunes``: sayings and jokes, by subject.

Rules are made as somebody would make them who looks at some texts of each class and notes the words that tell them
apart. So most wrong labels follow from the words, and texts without such a word go to one class, anywhere, or out.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from narl import noise
from narl.data.samples import Texts
from narl.data.text_encoding import TextEncoder, tokens

WORDNET, FORTUNES = Path("/usr/share/wordnet"), Path("/usr/share/games/fortunes")
LEAST, MOST_WORDS, TESTED = 300, 40, 1000
CLASSES = (2, 3, 4, 5, 6, 8, 10, 12, 15)
RIGHT = (0.4, 0.8)  # how many labels rules get right
TRIES = 300
OTHER_NOISE = ("right", "symmetric 0.2", "symmetric 0.4", "symmetric 0.6", "pair 0.2", "pair 0.4")
Collection = Mapping[str, Sequence[str]]
Labels = NDArray[np.int64]


def glosses(folder: Path = WORDNET) -> Collection:
    """WordNet's definitions without their examples, by lexicographer's file."""
    found: dict[str, set[str]] = defaultdict(set)
    for part in ("noun", "verb"):
        for line in _there(folder / f"data.{part}", "wordnet-base").read_text("utf-8").splitlines():
            head, _, gloss = line.partition(" | ")
            if gloss and not line.startswith("  "):
                found[f"{part} {head.split()[1]}"].add(re.split(r';? "', gloss)[0].strip(" ;"))
    return _large(found)


def packages() -> Collection:
    """The line about every package that Debian's package manager knows, by section."""
    found: dict[str, set[str]] = defaultdict(set)
    if shutil.which("apt-cache") is None:
        raise SystemExit("there is no apt-cache: Debian or one of its kind has the lines about packages")
    told = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for block in told.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description|Description-en): (.*)$", block, re.MULTILINE))
        line = fields.get("Description-en", fields.get("Description", ""))
        found[fields.get("Section", "")].add(str(line))
    return _large(found)


def fortunes(folder: Path = FORTUNES) -> Collection:
    """Sayings, cut to forty words, by subject."""
    files = [path for path in sorted(_there(folder, "fortunes").iterdir()) if path.is_file() and "." not in path.name]
    found = {path.name: re.split(r"^%\n", path.read_text("utf-8", "replace"), flags=re.MULTILINE) for path in files}
    return _large({name: {" ".join(text.split()[:MOST_WORDS]) for text in texts} for name, texts in found.items()})


def _there(path: Path, package: str) -> Path:
    if not path.exists():
        raise SystemExit(f"{path} is not there: apt-get install {package}")
    return path


def _large(found: Mapping[str, set[str]]) -> Collection:
    """The classes that have enough texts of three words or more, in an order that does not change."""
    kept = {name: sorted(text for text in texts if len(text.split()) > 2) for name, texts in sorted(found.items())}
    return {name: texts for name, texts in kept.items() if len(texts) >= LEAST}


COLLECTIONS = {"glosses": glosses, "packages": packages, "fortunes": fortunes}


@functools.cache
def collection(name: str) -> Collection:
    """One of them, read once a process."""
    return COLLECTIONS[name]()


def counted(name: str) -> str:
    """How many texts and classes a collection has, and a digest of it: that of packages is another one every month."""
    found = collection(name)
    digest = hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{name} ({sum(map(len, found.values())):,} texts in {len(found)} classes, {digest})"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Texts of some classes; the first ``rows`` are trained on, with the labels ``given``, the others tested on."""

    noise: str
    texts: NDArray[np.object_]
    true: Labels
    given: Labels
    rows: int
    classes: int

    def encoded(self, longest: int | None = None) -> tuple[Tensor, int]:
        """All texts as token numbers, and how many there are of those."""
        encoder = TextEncoder.fit(Texts(self.texts[: self.rows]), longest)
        return encoder.encode(Texts(self.texts)), encoder.shape["vocabulary"]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As an npz that narl reads."""
        return {
            "text_train": self.texts[: self.rows].astype(str),
            "y_train": self.true[: self.rows],
            "given_train": self.given[: self.rows],
            "text_test": self.texts[self.rows :].astype(str),
            "y_test": self.true[self.rows :],
        }


def drawn(
    collection: Collection, rng: np.random.Generator, kind: str = "rules", classes: int = 6, rows: int = 3000
) -> Drawn:
    """Texts of classes of unlike sizes, with right labels, labels by rules, or others.

    Args:
        collection: texts by class.
        rng: chooses classes, their sizes, texts and labels.
        kind: ``"rules"``, ``"right"``, or a noise and its rate such as ``"pair 0.4"``.
        classes: how many.
        rows: to train on, about: classes that have not so many texts and texts without a label make them fewer. A
            thousand more are tested on, of few texts a quarter, so that then a little more are trained on.

    Example:
        >>> some = {name: [f"{name} {i} said" for i in range(300)] for name in ("who", "where", "when")}
        >>> made = drawn(some, np.random.default_rng(0), "right", classes=2, rows=400)
        >>> made.classes, bool((made.given == made.true).all())
        (2, True)
    """
    if classes > len(collection):
        raise SystemExit(f"{classes} classes are too many: the collection has {len(collection)}")
    for _ in range(TRIES):
        names = rng.choice(sorted(collection), classes, replace=False)
        shares = 0.3 / classes + 0.7 * rng.dirichlet(np.full(classes, 3.0))
        wanted = np.maximum((rows + TESTED) * shares, 20).astype(int)
        found = [
            (text, label)
            for label, (name, size) in enumerate(zip(names, wanted, strict=True))
            for text in rng.choice(np.array(collection[name], object), min(size, len(collection[name])), replace=False)
        ]
        order = rng.permutation(len(found))
        texts = np.array([found[place][0] for place in order], object)
        true = np.array([found[place][1] for place in order], np.int64)
        training = max(len(found) - TESTED, 3 * len(found) // 4)
        given = labelled(kind, texts, true, training, classes, rng)
        kept = np.concatenate([np.flatnonzero(given[:training] >= 0), np.arange(training, len(found))])
        left = len(kept) - len(found) + training
        counts, right = np.bincount(given[kept][:left], minlength=classes), (given == true)[kept][:left].mean()
        if counts.min() > 0 and (kind != "rules" or RIGHT[0] < right < RIGHT[1]):
            return Drawn(kind, texts[kept], true[kept], given[kept], left, classes)
    raise SystemExit(f"labels by {kind} were not as they are to be in {TRIES} draws: have fewer classes or more texts")


def labelled(
    kind: str, texts: NDArray[np.object_], true: Labels, training: int, classes: int, rng: np.random.Generator
) -> Labels:
    """The labels that texts are given, -1 where they get none."""
    name, _, rate = kind.partition(" ")
    if name == "rules":
        return by_rules([tokens(text) for text in texts], true, training, classes, rng)
    if name == "right":
        return true
    make = {"symmetric": noise.symmetric, "pair": noise.pair}[name]
    return np.asarray(make(true, float(rate), classes, seed=int(rng.integers(10**6))), np.int64)


def by_rules(
    texts: Sequence[Sequence[str]], true: Labels, training: int, classes: int, rng: np.random.Generator
) -> Labels:
    """Labels by words that tell classes apart in a few texts that are looked at.

    The more texts of a class have a word, and the fewer others, the likelier it is noted, with some chance. A text gets
    the class of its first such word, or of most of them. Without any it gets the largest class, any class, or, in a
    third of the draws, no label.
    """
    looked_at = rng.choice(training, min(training, classes * int(rng.integers(20, 60))), replace=False)
    having = [Counter[str]() for _ in range(classes)]
    for place in looked_at:
        having[true[place]].update(set(texts[place]))
    everywhere = sum(having, Counter[str]())
    rules: dict[str, int] = {}
    known = int(rng.integers(4, 16))
    for label, own in enumerate(having):
        words = sorted(word for word, count in own.items() if count > 1)
        telling = [(own[word] + 0.2) / (everywhere[word] + 1) * np.log1p(own[word]) for word in words]
        telling *= np.exp(0.3 * rng.standard_normal(len(words)))
        for place in np.argsort(-np.array(telling))[:known]:
            rules.setdefault(words[place], label)
    by_majority, to_the_largest, left_out = rng.random() < 0.5, rng.random(), rng.random() < 1 / 3
    largest = int(np.bincount(true[looked_at], minlength=classes).argmax())
    given = np.full(len(texts), -1)
    for place, text in enumerate(texts):
        hits = [rules[word] for word in text if word in rules]
        if hits:
            votes = np.bincount(hits, minlength=classes)
            given[place] = rng.choice(np.flatnonzero(votes == votes.max())) if by_majority else hits[0]
        elif not left_out:
            given[place] = largest if rng.random() < to_the_largest else rng.integers(classes)
    return given


def main() -> None:
    """Draw, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=tuple(COLLECTIONS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--labels", default="rules", help='"rules", "right", or a noise and its rate: "pair 0.4"')
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    made = drawn(collection(asked.collection), rng, asked.labels, asked.classes, asked.rows)
    np.savez(asked.out, **made.arrays())  # type: ignore[arg-type]
    right = (made.given == made.true)[: made.rows].mean()
    print(
        f"{made.rows} texts, labels are right for {100 * right:.1f} %; classes {np.bincount(made.given[: made.rows])}"
    )


if __name__ == "__main__":
    main()
