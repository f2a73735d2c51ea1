"""Texts that are drawn, with labels by keyword rules: to choose on what is to serve on texts.

    python benchmarks/drawn_texts.py texts-6.npz --classes 6 --seed 0

Words are drawn by Zipf's law; some of a text's words are of its class's own, which other classes use now and then. The
rules know some words of each class: a text's label is the class of the first of them that it has, and where it has none
a guess, mostly the same one. So the wrong labels follow from the words, as those of real keyword rules do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORDS, OWN, KNOWN = 4000, 150, 9
ROWS, TESTED = 4500, 1500


def drawn(classes: int, seed: int, rows: int = ROWS) -> dict[str, NDArray[Any]]:
    """Texts, classes and labels by rules, as arrays of an npz that narl reads.

    Example:
        >>> found = drawn(6, 0)
        >>> len(found["text_train"]), bool(0.4 < (found["weak_train"] == found["y_train"]).mean() < 0.7)
        (4500, True)
    """
    rng = np.random.default_rng(seed)
    usual = 1 / np.arange(1, WORDS + 1)
    usual /= usual.sum()
    own = [30 + rng.choice(WORDS - 30, OWN, replace=False) for _ in range(classes)]
    sizes = 0.5 / classes + 0.5 * rng.dirichlet(np.full(classes, 4.0))
    y = rng.choice(classes, rows + TESTED, p=sizes / sizes.sum())
    texts = [_text(int(label), own, usual, rng) for label in y]
    rules = {int(word): label for label in range(classes) for word in own[label][:KNOWN]}
    guesses = 0.4 * np.eye(classes)[int(np.argmax(sizes))] + 0.6 / classes
    weak = np.array([next((rules[word] for word in text if word in rules), -1) for text in texts])
    weak = np.where(weak < 0, rng.choice(classes, len(weak), p=guesses), weak)
    written = np.array([" ".join(f"w{word}" for word in text) for text in texts])
    return {
        "text_train": written[:rows],
        "y_train": y[:rows],
        "weak_train": weak[:rows],
        "text_test": written[rows:],
        "y_test": y[rows:],
    }


def _text(label: int, own: list[NDArray[Any]], usual: NDArray[Any], rng: np.random.Generator) -> list[int]:
    """Some ten words; of those of a class's own the first ones are the more frequent."""
    found = []
    for _ in range(int(rng.integers(6, 15))):
        if rng.random() < 0.32:
            of = label if rng.random() < 0.85 else int(rng.integers(len(own)))
            found.append(int(own[of][int(OWN * rng.random() ** 2)]))
        else:
            found.append(int(rng.choice(WORDS, p=usual)))
    return found


def main() -> None:
    """Draw, and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    made = drawn(given.classes, given.seed)
    np.savez(given.out, **made)  # type: ignore[arg-type]
    print(f"rules are right for {100 * (made['weak_train'] == made['y_train']).mean():.1f} %")


if __name__ == "__main__":
    main()
