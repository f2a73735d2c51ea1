"""Whether adjusters travel: what transferred losses are worth over cross entropy and over their fixed forms."""

from __future__ import annotations

from collections.abc import Sequence

from narl.bench import protocols, verdicts
from narl.bench.tables import Table
from narl.bench.verdicts import Pair, Row

# Share of wrong labels where nobody chose it.
_RATES = {"aggregate": 0.09, "random1": 0.18, "worst": 0.40, "weak": 0.46}
_MUCH = 0.2


def reached(rows: Sequence[Row]) -> Table:
    """What transferred losses are to reach, and whether they do.

    Args:
        rows: of :func:`narl.bench.comparison.rows`, of the table ``transfer``.

    Returns:
        A line each; a dash where nothing of it has been run.

    Example:
        >>> print(reached([]).rows[0])
        ('ahead of the fixed form', '80 % of the cells', '–', '–')
    """
    fixed, tuned = (
        [pair for pair in verdicts.pairs(rows, how) if pair[0]["method"] in protocols.TRANSFERRED]
        for how in ("", "tuned")
    )
    ce = _against_ce(rows)
    noisy = [pair for pair in ce if _rate(pair[0]) >= _MUCH]
    clean = [pair for pair in ce if _rate(pair[0]) == 0]
    forty = [pair for pair in fixed if _is(pair, "TinyImageNet-32", "symmetric", 0.4, "T-JS")]
    sixty = [pair for pair in fixed if _is(pair, "TinyImageNet-32", "symmetric", 0.6)]
    worst = [
        row["last5_mean"]
        for row in rows
        if row["seeds"] and (row["dataset"], row["noise"]) == ("CIFAR-10N", "worst") and row["method"][:2] == "T-"
    ]
    lines = (
        _ahead("ahead of the fixed form", 80, fixed),
        _ahead("ahead of the fixed form, tuned on clean samples", None, tuned),
        _ahead("ahead of CE, where 20 % or more are wrong", 90, noisy),
        _least("worst against CE on right labels", -1.0, [verdicts.difference(pair) for pair in clean]),
        _least("TinyImageNet-32, symmetric 0.4: T-JS over JS", 4.0, [verdicts.difference(pair) for pair in forty]),
        _all_ahead("TinyImageNet-32, symmetric 0.6: all four over their fixed forms", sixty),
        _least("CIFAR-10N worst, the best of the four", 83.5, [max(worst)] if worst else [], sign=""),
    )
    note = "T-* with adjusters that have seen neither the data nor a clean sample of it."
    return Table("What transferred losses are to reach", ("", "wanted", "found", "reached"), lines, (note,))


def _against_ce(rows: Sequence[Row]) -> list[Pair]:
    """Transferred methods with cross entropy on the same task, model and schedule."""
    places = ("dataset", "noise", "rate", "schedule", "model")
    ce = {tuple(row[name] for name in places): row for row in rows if row["method"] == "CE" and row["seeds"]}
    transferred = [row for row in rows if row["method"] in protocols.TRANSFERRED and row["seeds"]]
    return [(row, ce[key]) for row in transferred if (key := tuple(row[name] for name in places)) in ce]


def _rate(row: Row) -> float:
    rate = row["rate"]
    return _RATES.get(row["noise"], 0.0) if rate is None else float(rate)


def _is(pair: Pair, dataset: str, noise: str, rate: float, method: str | None = None) -> bool:
    row = pair[0]
    return (row["dataset"], row["noise"], row["rate"]) == (dataset, noise, rate) and method in (None, row["method"])


def _ahead(words: str, wanted: int | None, found: Sequence[Pair]) -> tuple[str, ...]:
    asked = "–" if wanted is None else f"{wanted} % of the cells"
    if not found:
        return words, asked, "–", "–"
    ahead = sum(verdicts.difference(pair) > 0 for pair in found)
    said = f"{100 * ahead / len(found):.0f} % ({ahead} of {len(found)})"
    return words, asked, said, "–" if wanted is None else _yes(100 * ahead >= wanted * len(found))


def _all_ahead(words: str, found: Sequence[Pair]) -> tuple[str, ...]:
    if not found:
        return words, "all ahead", "–", "–"
    gains = [verdicts.difference(pair) for pair in found]
    missing = len(set(protocols.TRANSFERRED) - {pair[0]["method"] for pair in found})
    said = f"{sum(gain > 0 for gain in gains)} of {len(gains)} ahead, least {min(gains):+.1f}"
    if missing and min(gains) > 0:
        return words, "all ahead", f"{said}; {missing} not run", "–"
    return words, "all ahead", said, _yes(min(gains) > 0)


def _least(words: str, wanted: float, found: Sequence[float], sign: str = "+") -> tuple[str, ...]:
    asked = f"{wanted:{sign}.1f}"
    if not found:
        return words, asked, "–", "–"
    value = min(found)
    return words, asked, f"{value:{sign}.1f}", _yes(value >= wanted)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
