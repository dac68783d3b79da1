"""Which Chromium to drive, and why there is none."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_hermes.tools.toolbox import ToolSettings

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser(executable: str | None) -> str | None:
    """The path of the browser: `executable` if given, else the first of `NAMES` on PATH; None leaves it to Playwright.

    Raises FileNotFoundError when there is none at all.
    """
    if executable:
        found = shutil.which(executable)
        if found is None:
            raise FileNotFoundError(f"env.browser_executable: {executable} is no program that can be run")
        return found
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if _playwrights_own():
        return None
    raise FileNotFoundError(
        "no Chromium: install one (apt-get install chromium), name one in env.browser_executable, or let Playwright "
        "fetch its own (playwright install chromium)"
    )


def why_unavailable(settings: ToolSettings) -> str | None:
    """What is missing for browser tools, with how to install it; None if they work."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install 'pytest-hermes[browser]'"
    try:
        find_browser(settings.browser_executable)
    except FileNotFoundError as error:
        return str(error)
    return None


def _playwrights_own() -> bool:
    """Has `playwright install chromium` been run? Its place is documented under "Managing browser binaries"."""
    place = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    return any(Path(place).glob("chromium*"))
