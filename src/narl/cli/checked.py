"""``--clean RUN``: what people have checked in a run, as the clean set of the next one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from narl.errors import OptionError


@contextmanager
def clean_set(clean: str, data: str, *, trial: bool) -> Iterator[str]:
    """``--clean`` as training reads it: a run's folder becomes the list of samples that its labellers agree on.

    Args:
        clean: as it was given.
        data: what is trained on.
        trial: whether nothing may be left behind.

    Yields:
        The list's path for a run's folder; anything else as it is.

    Raises:
        OptionError: the run was trained on other data.
        AnswersError: nothing has been checked, or the list cannot be written.
    """
    if clean == "none" or not Path(clean, "config.json").is_file():
        yield clean
        return
    from tempfile import TemporaryDirectory

    from narl.audit.review.agreement import read_agreed, write_list
    from narl.train.run_folder import RunFolder

    run = RunFolder.open(clean)
    with run.understood() as config:
        then = str(config["settings"]["data"])
    now = str(Path(data).resolve()) if Path(data).exists() else data
    if now != then:
        raise OptionError(
            f"--clean {clean} has answers about samples of {then}, not of {data}: train on the same, or, if ids mean "
            f"the same in both, give a list: narl review {clean} --export checked.csv --agreed"
        )
    found = read_agreed(run.path)
    with TemporaryDirectory() as passing:
        listed = write_list(found, run.path, Path(passing) if trial else run.path)
        if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            print(f"narl: {clean}: {found.describe()}", file=sys.stderr)
        yield str(listed)
