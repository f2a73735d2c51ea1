"""What mkdocs does beyond its plugins: pages from elsewhere in the repository, links, formulas and pictures."""

from __future__ import annotations

import html
import re
from typing import Any

import site_links
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

PICTURES = site_links.ROOT / "docs" / "pictures"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*(.*?)\s*</\1>', re.DOTALL)
SHIM = "https://unpkg.com/iframe-worker/shim"
PICTURE = re.compile(r'<img [^>]*src="(?:\.\./)*pictures/(\w+)\.svg"[^>]*>')


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that stand elsewhere, and the files that pages link to."""
    for page, source in site_links.ELSEWHERE.items():
        files.append(File.generated(config, page, content=(site_links.ROOT / source).read_text()))
    linked = {
        path
        for file in files.documentation_pages()
        for path in site_links.on_the_site(file.src_uri, file.content_string)[1]
    }
    for path in sorted(linked):
        place = site_links.place_of(path)
        files.append(File.generated(config, place, abs_src_path=str(site_links.ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links lead to where things are on the site."""
    return site_links.on_the_site(page.file.src_uri, markdown)[0]


def on_page_content(content: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers draw by themselves, and pictures into the page, where they can move."""
    return PICTURE.sub(_inside, FORMULA.sub(_formula, content))


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Take our own form of the one script that the theme would fetch from elsewhere."""
    return output.replace(SHIM, "../" * page.file.dest_uri.count("/") + "worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for pages without a source, such as that for a page which is not there."""
    return output_content.replace(SHIM, "worker.js")


def _formula(match: re.Match[str]) -> str:
    text = html.unescape(match.group(2))
    shown = "block" if text.startswith("\\[") else "inline"
    return str(convert(text[2:-2].strip(), display=shown))


def _inside(match: re.Match[str]) -> str:
    return (PICTURES / f"{match.group(1)}.svg").read_text().strip().replace("\n", "")
