"""A real browser for the tests: headless Chromium, driven by Selenium through chromedriver."""

import contextlib
import json
import shutil
import time

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextlib.contextmanager
def chromium(profile, *, width=1280, height=900):
    """A fresh browser with its own profile folder; the test is skipped where none is installed."""
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=Service(executable_path=driver))
    try:
        yield browser
    finally:
        browser.quit()


def resize(browser, width, height=900):
    """Set the size of the viewport itself: a window cannot be narrower than the browser's own buttons."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(browser, scheme):
    """Emulate the system's wish for a light or dark page, and one for no motion: scrolling is then done at once."""
    wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def console(browser):
    """What the page complained about since the last call."""
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requested(browser):
    """The addresses that the page asked for since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]


def wait_until(browser, condition, *arguments, seconds=20):
    """Wait for a JavaScript expression of ``arguments`` to be true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := browser.execute_script(f"return {condition}", *arguments)):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {seconds} s: {condition}")
        time.sleep(0.02)
    return value


def screenshot(browser, path):
    """The whole page, however long, as PNG."""
    height = browser.execute_script("return document.documentElement.scrollHeight")
    width = browser.execute_script("return document.documentElement.clientWidth")
    resize(browser, width, height)
    wait_until(browser, "[...document.querySelectorAll('.chart')].every(c => !c.offsetParent || c.dataset.drawn)")
    time.sleep(0.3)  # the charts fit themselves to the new size
    browser.save_screenshot(str(path))
