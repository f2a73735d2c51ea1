"""What people answered, in one SQLite file that only ever grows: an answer that was confirmed is on the disk.

Nothing is changed or removed. An answer is a row of ``answers``; to take it back is a row of ``undone``; what stands is
the last answer of a labeller about a sample that was not taken back. So tabs, labellers and processes never overwrite
each other, and everything that happened can be looked at later.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, final

from narl.errors import AnswersError

FILE: Final = "review.sqlite"
VERDICTS: Final = ("keep", "relabel", "unsure", "skip")
DECIDED: Final = ("keep", "relabel")
"""The answers that say which label is right."""

FORMAT: Final = 1
_APPLICATION: Final = 0x6E61726C  # "narl": the file says whose it is
_PATIENCE: Final = 10.0  # seconds to wait for another process that writes

_SCHEMA = """
CREATE TABLE answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    labeller TEXT NOT NULL,
    tab TEXT NOT NULL,
    sample TEXT NOT NULL,
    given TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('keep', 'relabel', 'unsure', 'skip')),
    label TEXT,
    at TEXT NOT NULL,
    CHECK ((label IS NULL) = (verdict IN ('unsure', 'skip')))
);
CREATE INDEX about ON answers (sample, labeller, number);
CREATE INDEX latest ON answers (labeller, number);
CREATE TABLE undone (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    answer INTEGER NOT NULL UNIQUE REFERENCES answers (number),
    at TEXT NOT NULL
);
CREATE VIEW standing AS
    SELECT max(number) AS number, labeller, sample, given, verdict, label, at FROM answers
    WHERE number NOT IN (SELECT answer FROM undone) GROUP BY labeller, sample;
"""


@final
@dataclass(frozen=True)
class Answer:
    """An answer about a sample.

    Args:
        number: counts all answers, from 1.
        labeller: who answered.
        sample: the sample's id.
        given: name of the class that the sample was labelled with.
        verdict: one of :data:`VERDICTS`.
        label: name of the class that the labeller holds for right; None where he could not tell.
        at: when, in UTC.

    Example:
        >>> Answer(1, "Ada", "cat/1.jpg", "cat", "relabel", "dog", "2026-01-01T12:00:00Z").label
        'dog'
    """

    number: int
    labeller: str
    sample: str
    given: str
    verdict: str
    label: str | None
    at: str


@final
class Answers:
    """The answers in a file. One object belongs to one thread at a time.

    Args:
        path: the file; made where it is not there.
        create: whether it may be made.

    Raises:
        AnswersError: where it cannot be read or made, or is something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     answers = Answers(Path(run) / FILE)
        ...     _ = answers.add("Ada", "tab", "cat/1.jpg", given="cat", verdict="keep", label="cat")
        ...     _ = answers.add("Ada", "tab", "cat/2.jpg", given="cat", verdict="relabel", label="dog")
        ...     undone = answers.undo("Ada", "tab")
        ...     standing = answers.standing()
        ...     answers.close()
        >>> undone.sample, [answer.sample for answer in standing]
        ('cat/2.jpg', ['cat/1.jpg'])
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._seen = self._seen_undone = 0
        self._version = (-1, -1)
        if not create and not path.exists():
            raise AnswersError(f"there are no answers in {path.parent}: check some labels with narl review first")
        try:
            # The caller sees to it that one thread at a time is here.
            self._connection = sqlite3.connect(path, _PATIENCE, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise AnswersError(f"{path} cannot be opened ({error}): check the folder and its permissions") from error
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def add(self, labeller: str, tab: str, sample: str, *, given: str, verdict: str, label: str | None) -> int:
        """Write an answer; it is on the disk afterwards.

        The same answer twice, as after a reply that was lost, counts once.

        Args:
            labeller: who answers.
            tab: where, so that undo finds it.
            sample: the sample's id.
            given: name of the class that it was labelled with.
            verdict: one of :data:`VERDICTS`.
            label: name of the class that is right, for ``keep`` and ``relabel``.

        Returns:
            The answer's number.

        Raises:
            AnswersError: where it cannot be written.
        """
        row = (
            _stored(labeller),
            tab,
            _stored(sample),
            _stored(given),
            verdict,
            None if label is None else _stored(label),
        )
        with self._transaction() as connection:
            before = connection.execute(
                "SELECT number, tab, verdict, label FROM answers WHERE sample = ? AND labeller = ? AND number NOT IN "
                "(SELECT answer FROM undone) ORDER BY number DESC LIMIT 1",
                (row[2], row[0]),
            ).fetchone()
            if before is not None and before[1:] == (tab, verdict, row[5]):
                return int(before[0])
            written = connection.execute(
                "INSERT INTO answers (labeller, tab, sample, given, verdict, label, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, _now()),
            )
            return int(written.lastrowid or 0)

    def undo(self, labeller: str, tab: str) -> Answer | None:
        """Take a labeller's last answer back: of this tab, or of any if this one has none.

        Returns:
            The answer that counts no longer; None where there was none.

        Raises:
            AnswersError: where it cannot be written.
        """
        with self._transaction() as connection:
            for own in ("AND tab = ?", "AND ? IS NOT NULL"):
                found = connection.execute(
                    "SELECT number, labeller, sample, given, verdict, label, at FROM answers WHERE labeller = ? "
                    f"{own} AND number NOT IN (SELECT answer FROM undone) ORDER BY number DESC LIMIT 1",
                    (_stored(labeller), tab),
                ).fetchone()
                if found is not None:
                    connection.execute("INSERT INTO undone (answer, at) VALUES (?, ?)", (found[0], _now()))
                    return _answer(found)
        return None

    def standing(self) -> list[Answer]:
        """What stands, in the order it was answered."""
        with self._read() as connection:
            rows = connection.execute(
                "SELECT number, labeller, sample, given, verdict, label, at FROM standing ORDER BY number"
            )
            return [_answer(row) for row in rows]

    def news(self) -> list[tuple[str, str, Answer | None]]:
        """What has changed since the last call, by whichever process.

        Returns:
            Labeller, sample and what stands about it now, for each pair that was answered or undone.
        """
        with self._read() as connection:
            # The version changes by other connections' writes only; ours are asked for by the numbers.
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            total = connection.total_changes
            if (version, total) == self._version:
                return []
            connection.execute("BEGIN")  # one state of the file for all that is read
            try:
                changed = connection.execute(
                    "SELECT labeller, sample FROM answers WHERE number > ? UNION SELECT labeller, sample FROM undone "
                    "JOIN answers ON answers.number = undone.answer WHERE undone.number > ?",
                    (self._seen, self._seen_undone),
                ).fetchall()
                last = connection.execute(
                    "SELECT (SELECT coalesce(max(number), 0) FROM answers), "
                    "(SELECT coalesce(max(number), 0) FROM undone)"
                ).fetchone()
                found = [(*pair, self._stands(*pair)) for pair in changed]
            finally:
                connection.execute("COMMIT")
            self._seen, self._seen_undone = last
            self._version = (version, total)
        return [(_loaded(labeller), _loaded(sample), answer) for labeller, sample, answer in found]

    def _stands(self, labeller: str | bytes, sample: str | bytes) -> Answer | None:
        found = self._connection.execute(
            "SELECT number, labeller, sample, given, verdict, label, at FROM answers WHERE sample = ? AND labeller = ? "
            "AND number NOT IN (SELECT answer FROM undone) ORDER BY number DESC LIMIT 1",
            (sample, labeller),
        ).fetchone()
        return None if found is None else _answer(found)

    def _set_up(self) -> None:
        with self._read() as connection:
            connection.execute("BEGIN")  # one state for all three: another process may be making the file
            application, form, tables = (
                connection.execute(question).fetchone()[0]
                for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
            connection.execute("COMMIT")
            if tables and application != _APPLICATION:
                raise AnswersError(f"{self.path} is a database of something else: move it away")
            if tables and form != FORMAT:
                raise AnswersError(f"{self.path} has format {form}, this narl reads {FORMAT}: upgrade narl")
            self._write_ahead(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        if not tables:
            with self._transaction() as connection:
                if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:  # nobody was faster
                    for statement in _SCHEMA.split(";\n")[:-1]:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {FORMAT}")

    @staticmethod
    def _write_ahead(connection: sqlite3.Connection) -> None:
        """Let nobody who reads wait for who writes, where the file system can do that (a network's may not)."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # Of several who begin at the same moment SQLite sends all but one away here, without any patience.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it on the disk, or nothing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise AnswersError(
                f"nothing could be written to {self.path} ({error}): see to room on the disk and permissions, then "
                "answer again"
            ) from error

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.Error as error:
            raise AnswersError(f"{self.path} cannot be read ({error}): restore it, or move it away") from error


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stored(text: str) -> str | bytes:
    """A text as the file holds it: names of files need not be UTF-8, and are then kept as their bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _loaded(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def _answer(row: tuple[Any, ...]) -> Answer:
    number, labeller, sample, given, verdict, label, at = row
    right = None if label is None else _loaded(label)
    return Answer(number, _loaded(labeller), _loaded(sample), _loaded(given), verdict, right, at)
