"""Writes the page: one file with its data, its script and plotly's, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narl.audit.runs import note_of_unjudged
from narl.audit.samples import read_samples, rows_of
from narl.audit.verdicts import Verdicts
from narl.data.samples import Rows, Samples
from narl.errors import MissingExtraError, NarlError, OptionError
from narl.train.run_folder import RunFolder
from narl.train.writing import cannot_write, replacing, to_json

if TYPE_CHECKING:
    from markupsafe import Markup

FILE = "report.html"


def check_installed() -> None:
    """Refuse to begin without the packages that make the page.

    Raises:
        MissingExtraError: they are not installed.
    """
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"a report needs the packages plotly and jinja2 ({error}): pip install 'narl[report]'"
        ) from error


def write_report(verdicts: Verdicts, path: str | PathLike[str], *, run: str | PathLike[str] | None = None) -> Path:
    """Write the page of an audit.

    Args:
        verdicts: what was found.
        path: the file to write; one that is there is replaced.
        run: the folder of the run they are from; None for predictions made elsewhere: then the page shows no samples'
            contents, no curves and no settings.

    Returns:
        The file.

    Raises:
        MissingExtraError: without the packages of the ``report`` extra.
        RunFolderError: the folder is no run, or the file cannot be written.
    """
    from narl.audit.report.data import page_data

    check_installed()
    if not len(verdicts):
        raise OptionError("an audit of no samples has nothing to report: audit a run that was trained")
    if run is None:
        return _write(Path(path), render(page_data(verdicts, title="predictions")))
    folder = RunFolder.open(run)
    notes = [note for note in (note_of_unjudged(folder),) if note is not None]
    samples = rows = None
    try:
        samples, rows = _read(folder, verdicts)
    except (NarlError, OSError) as error:  # the verdicts are worth showing without
        notes.append(f"The samples themselves are not shown: {error}")
    title = str(Path(run))
    return _write(
        Path(path),
        render(page_data(verdicts, title=title, samples=samples, rows=rows, folder=folder, notes=tuple(notes))),
    )


def render(data: dict[str, Any]) -> str:
    """The page for some data.

    Args:
        data: what :func:`narl.audit.report.data.page_data` gives.

    Returns:
        HTML, whole.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    parts = resources.files("narl.audit.report")
    template = parts.joinpath("page.html").read_text(encoding="utf-8")
    scripts = [*(parts.joinpath(name).read_text(encoding="utf-8") for name in ("charts.js", "page.js")), get_plotlyjs()]
    style = parts.joinpath("page.css").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            "style-src 'unsafe-inline'",  # plotly makes style sheets of its own, other ones in every version
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(
        title=data["title"],
        policy=policy,
        style=_ours(style),
        scripts=[_ours(script) for script in scripts],
        data=_ours(embedded(data)),
    )


def embedded(data: dict[str, Any]) -> str:
    r"""Plain values as JSON that can stand in a page: no letter of it can end the element it stands in.

    Example:
        >>> embedded({"name": "</script>&"})
        '{"name": "\\u003c/script\\u003e\\u0026"}'
    """
    text = to_json(data).decode("ascii")  # other letters are escaped by JSON already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _ours(text: str) -> Markup:
    """A text that goes into the page as it is: it is ours, or escaped already."""
    import markupsafe

    return markupsafe.Markup(text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(folder: RunFolder, verdicts: Verdicts) -> tuple[Samples, Rows]:
    samples = read_samples(folder)
    return samples, rows_of(verdicts.ids, samples, str(folder.config["settings"]["data"]))


def _write(path: Path, page: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    with replacing(path) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    return path
