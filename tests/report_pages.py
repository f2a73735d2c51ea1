"""Reports to try: verdicts made up, and what a browser finds in a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import NoiseEstimate, Verdicts

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "</script><!--<script>",
    "\"'`&amp;&lt;</td></bdi>{{7*7}}${7*7}<b>bold</b>",
    '<a href="javascript:alert(1)">link</a>',
    "<i>&lt;a</i>",  # short enough for an axis, and plotly knows the tag
    "<a href=x>y</a>",
    "\u202eright to left\u202c עברית العربية",
    "🦊👩\u200d💻🏳️\u200d🌈\u2028\u2029",
    "x" * 10_000,
    "line\nbreak\x00\x1b[31m",
    "name\udcff",
)


def made_up(
    count: int,
    classes: tuple[str, ...] = ("cat", "dog", "fox"),
    *,
    rate: float = 0.2,
    calibrated: bool = False,
    ids: NDArray[np.str_] | None = None,
    seed: int = 0,
) -> tuple[Verdicts, NDArray[np.int64]]:
    """Verdicts, mostly right, and the true labels."""
    rng = np.random.default_rng(seed)
    c = len(classes)
    true = rng.integers(0, c, count)
    given = np.where(rng.random(count) < rate, (true + rng.integers(1, c, count)) % c, true)
    mistaken = given != true
    score = np.where(mistaken, rng.beta(1.5, 5, count), rng.beta(5, 1.5, count))
    wrong = score < 0.5
    suggested = np.where(wrong, np.where(mistaken, true, (given + 1) % c), given)
    matrix = np.full((c, c), rate / (c - 1))
    np.fill_diagonal(matrix, 1 - rate)
    verdicts = Verdicts(
        ids=np.array([f"sample-{number}" for number in range(count)]) if ids is None else ids,
        given=given,
        suggested=suggested,
        confidence=rng.random(count),
        score=score,
        wrong=wrong,
        probability=1 - score if calibrated else None,
        margin=8 * score - 4,
        family=np.zeros(count, dtype=np.int64),
        class_names=classes,
        noise=NoiseEstimate(rate, rate - 0.02, rate + 0.02, matrix, 0.9 * matrix, np.minimum(1.0, 1.1 * matrix)),
    )
    return verdicts, true


def data_in(page: Path) -> Any:
    """What a page was given to show."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])
