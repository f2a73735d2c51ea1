"""Train on digits, audit, and photograph what a person sees: the report and the review page, into docs/pictures.

    python benchmarks/screenshots.py

Needs Chromium and playwright (``make browser`` installs both). 1,200 digits, 40 % of them in the next digit's folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from transcripts import write_digits

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
NARL = (sys.executable, "-m", "narl")


def main() -> None:
    """Write report.png and review.png."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        write_digits(folder)
        trained = ("digits", "--clean", "digits-checked", "--test", "digits-test", "--model", "convnet")
        subprocess.run([*NARL, "train", *trained, "--epochs", "20", "--out", "run"], cwd=folder, check=True)
        subprocess.run([*NARL, "audit", "run"], cwd=folder, check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 680}, color_scheme="light")
        take_report(context.new_page(), folder / "run" / "audit" / "report.html")
        take_review(context.new_page(), folder)
        browser.close()


def take_report(page: Any, path: Path) -> None:
    """The part of the report that shows samples."""
    page.goto(path.as_uri())
    page.locator("h2", has_text="Which ones?").scroll_into_view_if_needed()
    page.evaluate(
        "[...document.querySelectorAll('h2')].find((h) => h.innerText.includes('Which ones')).scrollIntoView()"
    )
    page.wait_for_timeout(2000)
    page.screenshot(path=FOLDER / "report.png")


def take_review(page: Any, folder: Path) -> None:
    """The first sample of a review."""
    command = [*NARL, "review", "run", "--no-browser", "--port", "0", "--labeller", "you"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
        page.goto(address)
        page.wait_for_selector("#work:not([hidden])")
        page.wait_for_timeout(1000)
        page.screenshot(path=FOLDER / "review.png")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
