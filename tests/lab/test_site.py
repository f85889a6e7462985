"""The documentation site in a real browser: no errors, no fetching, readable on a phone, usable by everyone.

``make docs`` builds the site; CI does so before the tests. Without a site these tests are skipped, and say so.
"""

from pathlib import Path

import pytest
from axe_core_python.selenium import Axe
from browser import chromium, console, prefer, requested, resize

SITE = Path(__file__).parents[2] / "out" / "site"
EVERY = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if "_static" not in page.parts)
LOOKED_AT = ["index.html", "derivation.html", "gallery/index.html", "gallery/pinn.html"]

pytestmark = pytest.mark.skipif(not EVERY, reason="there is no site in out/site; make docs builds it")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(180)  # axe takes 30 seconds and more for the longest tables on a busy machine
        yield driver


def visit(browser, page, width=1280, scheme="light"):
    prefer(browser, scheme)
    resize(browser, width)
    browser.get((SITE / page).as_uri())


def test_every_page_on_a_phone(browser):
    """One test for all pages: a browser is expensive to start, and a page is not."""
    wide, noisy, unnamed, fetched = {}, {}, {}, set()
    for page in EVERY:
        visit(browser, page, width=390)
        width = browser.execute_script("return document.documentElement.scrollWidth")
        if width > 390:
            wide[page] = width
        if complaints := console(browser):
            noisy[page] = complaints
        pictures = browser.execute_script(
            "return [...document.querySelectorAll('article img')].filter(i => !i.alt.trim() || !i.naturalWidth)"
            ".map(i => i.src)"
        )
        if pictures:
            unnamed[page] = pictures
        fetched |= {address for address in requested(browser) if address.startswith(("http", "ws"))}
    assert wide == {}
    assert noisy == {}
    assert unnamed == {}
    assert fetched == set()


@pytest.mark.parametrize(
    ("pages", "scheme"),
    [
        (LOOKED_AT, "light"),
        (LOOKED_AT[:2], "dark"),
        pytest.param(EVERY, "light", marks=pytest.mark.soak),
        pytest.param(EVERY, "dark", marks=pytest.mark.soak),
    ],
    ids=["light", "dark", "every-light", "every-dark"],
)
def test_accessibility_rules_of_axe(browser, pages, scheme):
    found = {}
    for page in pages:
        visit(browser, page, scheme=scheme)
        violations = Axe().run(browser)["violations"]
        if violations:
            found[page] = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in violations]
    assert found == {}


def test_pictures_follow_the_dark_scheme(browser):
    filters = []
    for scheme in ("light", "dark"):
        visit(browser, "derivation.html", scheme=scheme)
        filters.append(browser.execute_script("return getComputedStyle(document.querySelector('article img')).filter"))
    assert filters[0] == "none"
    assert filters[1].startswith("invert(0.9")
