"""Headless Chromium for tests that look at pages as people do."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver

INSTALL = "apt-get install chromium chromium-driver"
REQUIRED = "FEDHQL_TESTS_REQUIRE_BROWSER"  # set in CI: then a missing browser is a failure


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Start a browser and end it; skip the test, or fail it, where there is none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        missing = f"no chromium or chromedriver on the path ({INSTALL})"
        if REQUIRED in os.environ:
            pytest.fail(f"{missing}, and {REQUIRED} is set")
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    for option in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ):
        options.add_argument(option)
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()
