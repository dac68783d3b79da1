"""Only quiet about an option of pytest-asyncio that has no place in pyproject.toml: without that plugin, which
benchmarks do not need, pytest would refuse the option as unknown.
"""

import warnings

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    warnings.filterwarnings("ignore", message=r"[\s\S]*asyncio_default_fixture_loop_scope")
