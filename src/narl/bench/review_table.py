"""What a simulated reviewer's answers are worth: finished runs as rows, one a data set, order and count; tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from narl.bench import reviewing
from narl.bench.runs import Run
from narl.bench.tables import Table, model_title
from narl.bench.verdicts import over_seeds

Row = dict[str, Any]


def rows(found: Iterable[Run]) -> list[Row]:
    """A row for every data set, order and number of answers.

    Args:
        found: finished runs.

    Returns:
        ``data``, ``method``, ``order`` (None with no answer), ``reviewed`` (how many were asked for), ``answers`` (how
        many there were on average: a few more where a class was missing), ``trained`` (how many training samples on
        average, answered ones among them), ``clean_share`` (what the answered ones are of every batch, on average; None
        where that was not said), ``accuracy`` and ``accuracy_std`` (on the test set, %, mean of the last five
        epochs over seeds), ``gain`` and ``gain_std`` (over the same number at random, of the same seed), ``seeds``,
        ``model``.

    Example:
        >>> from narl.bench.cells import Cell, Task
        >>> first = Cell(Task("TREC", "weak"), "text_cnn", "review-texts", "GCE", 1)
        >>> ours, chance, *alone = reviewing.cells_after(first, ["informative", "random"], [100])
        >>> shown = rows([Run(first, 0.6, 0.6, {}), Run(ours, 0.7, 0.7, {}), Run(chance, 0.65, 0.65, {})])
        >>> [(row["order"], row["reviewed"], row["accuracy"], row["gain"]) for row in shown]
        [(None, 0, 60.0, None), ('informative', 100, 70.0, 5.0), ('random', 100, 65.0, None)]
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in found:
        groups.setdefault(_key(run), []).append(run)
    return [_row(own, groups) for _, own in sorted(groups.items(), key=lambda item: _place(item[0]))]


def _key(run: Run) -> tuple[Any, ...]:
    cell = run.cell
    return cell.task, cell.model, cell.schedule, reviewing.is_alone(cell), cell.review


def _place(key: tuple[Any, ...]) -> tuple[Any, ...]:
    task, model, schedule, alone, review = key
    known = [one for protocol in reviewing.ALL for one in protocol.tasks]
    order = -1 if review is None else reviewing.ORDERS.index(review[0]) if review[0] in reviewing.ORDERS else 99
    place = known.index(task) if task in known else len(known)
    return place, task, model, schedule, alone, order, review or ("", 0)


def _row(found: Sequence[Run], groups: dict[tuple[Any, ...], list[Run]]) -> Row:
    cell = found[0].cell
    order, count = cell.review or (None, 0)
    mean, std = over_seeds([run.last5 for run in found])
    chance = groups.get((*_key(found[0])[:-1], (reviewing.RANDOM, count)), [])
    at_random = {run.cell.seed: run.last5 for run in chance} if order not in (None, reviewing.RANDOM) else {}
    gains = [run.last5 - at_random[run.cell.seed] for run in found if run.cell.seed in at_random]
    gain, gain_std = over_seeds(gains)
    answered = [
        run.settings.get("train_samples" if reviewing.is_alone(cell) else "clean_samples", count) for run in found
    ]
    return {
        "data": str(cell.task),
        "order": order,
        "reviewed": count,
        "answers": round(statistics.mean(answered), 1),
        "trained": round(statistics.mean(run.settings.get("train_samples", 0) for run in found), 1),
        "clean_share": _share(found),
        "accuracy": mean,
        "accuracy_std": std,
        "gain": gain,
        "gain_std": gain_std,
        "seeds": len(found),
        "method": cell.method,
        "model": cell.model,
        "schedule": cell.schedule,
        "environment": found[0].environment,
    }


def _share(found: Sequence[Run]) -> float | None:
    shares = [run.settings["clean_share"] for run in found if "clean_share" in run.settings]
    return round(statistics.mean(shares), 3) if shares else None


def tables(found: Sequence[Row]) -> list[Table]:
    """A table a data set: orders are rows, numbers of answers are columns.

    Args:
        found: what :func:`rows` gave.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row["data"], row["model"], row["schedule"]), []).append(row)
    return [_table(*group, own) for group, own in groups.items()]


def _table(data: str, model: str, schedule: str, found: Sequence[Row]) -> Table:
    counts = sorted({row["reviewed"] for row in found})
    ways = list(dict.fromkeys((row["method"], row["order"]) for row in found if row["order"] is not None))
    cells = {(row["method"], row["order"], row["reviewed"]): row for row in found}
    none = cells.get((reviewing.FIRST, None, 0))
    lines = []
    for method, order in ways or [(reviewing.FIRST, None)]:
        own = [cells.get((method, order, count)) if count or method == reviewing.ALONE else none for count in counts]
        lines.append((_way(method, order), *(_shown(row, "accuracy") for row in own)))
    for method, order in ways:
        if any(row["gain"] is not None for row in found if (row["method"], row["order"]) == (method, order)):
            own = [cells.get((method, order, count)) for count in counts]
            lines.append((f"{_way(method, order)} − random", *(_shown(row, "gain", "+") for row in own)))
    seeds = [row["seeds"] for row in found]
    counted = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    spread = " of one seed" if counted == "1" else f" ± standard deviation over {counted} seeds"
    apart = reviewing.is_apart(schedule)
    note = (
        f"Test accuracy, %, mean of the last five epochs{spread}, and differences of "
        f"the same seed. 0: {reviewing.FIRST} without a clean set; else {reviewing.NEXT}, which learns from the "
        f"answers and is {'not' if apart else 'also'} trained on them. {reviewing.MISTAKES:.0%} of the answers err."
    )
    shares = {row["clean_share"] for row in found} - {None}
    if shares:
        note += f" They are {min(shares):.0%} to {max(shares):.0%} of every batch."
    if any(method == reviewing.ALONE for method, _ in ways):
        note += f" Alone: {reviewing.ALONE} on the answered samples and nothing else."
    title = f"Answers of a simulated reviewer{', not trained on' if apart else ''}: {data}, {model_title(model)}"
    return Table(title, ("asked about", *(f"{count:,} answers" for count in counts)), tuple(lines), (note,))


def _way(method: str, order: str | None) -> str:
    return (order or "–") + (", alone" if method == reviewing.ALONE else "")


def _shown(row: Row | None, name: str, sign: str = "") -> str:
    if row is None or row[name] is None:
        return "–"
    spread = "" if row[f"{name}_std"] is None else f"±{row[f'{name}_std']:.1f}"
    return f"{row[name]:{sign}.1f}{spread}"
