"""Where the links of the repository's pages lead on the site.

Pages link to files as a reader of the repository finds them. Some of these are pages of the site under another name,
others (programs, folders of results) are no pages: files among them are copied into the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CARDS = "src/narl/adjuster/weights"
# Pages that stand elsewhere in the repository, by their place on the site.
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "derivation.md": "src/narl/bilevel/README.md",
    **{f"adjusters/{card.name}": f"{CARDS}/{card.name}" for card in sorted((ROOT / CARDS).glob("*.md"))},
}
LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def source_of(page: str) -> str:
    """The file in the repository that a page of the site is made of."""
    return ELSEWHERE.get(page, f"docs/{page}")


def place_of(source: str) -> str:
    """Where a file of the repository stands on the site."""
    by_source = {file: page for page, file in ELSEWHERE.items()}
    if source in by_source:
        return by_source[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return f"files/{source}"


def on_the_site(page: str, markdown: str) -> tuple[str, list[str]]:
    """A page's text with links as they are on the site, and the files to copy for them.

    Args:
        page: its place on the site, such as ``"how-to/audit.md"``.
        markdown: its text as it is in the repository.

    Returns:
        The text, and paths from the repository's root.
    """
    folder = PurePosixPath(source_of(page)).parent
    copied: list[str] = []

    def moved(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        if not link or "://" in link or link.startswith("mailto:"):
            return match.group()
        target = os.path.normpath(folder / link)
        if not (ROOT / target).is_file() and target not in map(source_of, ELSEWHERE):
            return match.group()  # mkdocs says what is wrong with it
        place = place_of(target)
        if place.startswith("files/"):
            copied.append(target)
        return before + os.path.relpath(place, PurePosixPath(page).parent) + after

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):  # code is left alone
        parts += [LINK.sub(moved, markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    parts.append(LINK.sub(moved, markdown[end:]))
    return "".join(parts), copied
