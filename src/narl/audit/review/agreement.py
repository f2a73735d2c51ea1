"""Which samples people agree on: the clean set of the next run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from narl.atomic import replacing, sync_folder
from narl.audit.review.answers import DECIDED, FILE, Answer, Answers
from narl.data.id_file import write_id_file
from narl.errors import AnswersError


@final
@dataclass(frozen=True)
class Agreement:
    """What the answers of all labellers come to.

    Args:
        labels: class name by sample id, for samples on whose label all agree who named one.
        conflicts: samples for which people named different labels.
        undecided: samples for which nobody named a label: unsure, or skipped.

    Example:
        >>> Agreement({"a": "cat"}, ("b",), ()).describe()
        '1 sample with an agreed label; 1 left out because labellers disagree'
    """

    labels: dict[str, str]
    conflicts: tuple[str, ...]
    undecided: tuple[str, ...]

    def describe(self) -> str:
        """In a line."""
        line = f"{len(self.labels):,} sample{'' if len(self.labels) == 1 else 's'} with an agreed label"
        if self.conflicts:
            line += f"; {len(self.conflicts):,} left out because labellers disagree"
        if self.undecided:
            line += f"; {len(self.undecided):,} left out because nobody named a label"
        return line


def agreed(answers: Iterable[Answer]) -> Agreement:
    """The labels that all agree on who named one.

    Who is unsure or skips a sample has no say about it.

    Args:
        answers: those that stand.

    Example:
        >>> def says(who, sample, label):
        ...     return Answer(0, who, sample, "cat", "keep" if label == "cat" else "relabel", label, "")
        >>> found = agreed([says("Ada", "1", "cat"), says("Bob", "1", "cat"), says("Ada", "2", "dog"),
        ...                 says("Bob", "2", "cat"), Answer(0, "Bob", "3", "cat", "unsure", None, "")])
        >>> found.labels, found.conflicts, found.undecided
        ({'1': 'cat'}, ('2',), ('3',))
    """
    named: dict[str, set[str]] = {}
    for answer in answers:
        labels = named.setdefault(answer.sample, set())
        if answer.verdict in DECIDED and answer.label is not None:
            labels.add(answer.label)
    return Agreement(
        {sample: next(iter(labels)) for sample, labels in named.items() if len(labels) == 1},
        tuple(sample for sample, labels in named.items() if len(labels) > 1),
        tuple(sample for sample, labels in named.items() if not labels),
    )


def read_agreed(run: Path) -> Agreement:
    """What the answers in a run's folder agree on.

    Raises:
        AnswersError: where there are none.
    """
    answers = Answers(run / FILE, create=False)
    try:
        return agreed(answers.standing())
    finally:
        answers.close()


def write_list(agreement: Agreement, run: Path, folder: Path) -> Path:
    """Write the agreed labels as a list of ids, to be read as a clean set.

    The file is called after its content: later answers make another one, so a training that began with this one can be
    resumed.

    Args:
        agreement: what is agreed on.
        run: what was reviewed, for messages.
        folder: where to.

    Returns:
        The file.

    Raises:
        AnswersError: nothing is agreed on, or the file cannot be written.
    """
    if not agreement.labels:
        raise AnswersError(
            f"{run} has no sample with an agreed label ({agreement.describe()}): check some with narl review {run}"
        )
    ids = sorted(agreement.labels)
    content = write_id_file(ids, [agreement.labels[name] for name in ids])
    path = folder / f"checked-{hashlib.blake2b(content, digest_size=6).hexdigest()}.csv"
    try:
        if not path.exists() or path.read_bytes() != content:
            # Under a name of its own: processes that train together may write it at the same time.
            with TemporaryDirectory(prefix=".checked-", dir=folder) as own:
                with replacing(Path(own) / path.name) as file:
                    file.write(content)
                os.replace(Path(own) / path.name, path)
            sync_folder(folder)
    except OSError as error:
        raise AnswersError(f"{path} cannot be written: {error.strerror or error}; make room, or allow it") from error
    return path
