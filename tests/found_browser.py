"""Where the Chromium is that pages are tested in."""

from __future__ import annotations

import os
import shutil

import pytest


def chromium() -> str:
    """Its path; without one, a test that needs it fails, unless such tests are to be left out."""
    if os.environ.get("NARL_NO_BROWSER") == "1":
        pytest.skip("NARL_NO_BROWSER=1 leaves out what is seen in a browser")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail(
            "no Chromium was found: install one (apt-get install chromium), give its path in CHROMIUM, or leave these "
            "tests out with NARL_NO_BROWSER=1"
        )
    return path
