"""The page in a real browser: Debian's Chromium, driven by Playwright, without the internet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from server.conftest import HOSTILE, running

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra `test`)")

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
SHOTS = os.environ.get("CALLSLIP_SCREENSHOTS")
"""A folder for pictures of what the tests see; none are taken without it."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # Chromium has no sandbox for root; the pages it opens here are ours.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def one(fitted_folder, tmp_path_factory):
    with running([Path(shutil.copytree(fitted_folder, tmp_path_factory.mktemp("page") / "small"))]) as server:
        yield server


@pytest.fixture
def visit(browser, request):
    """Open a page; whatever goes wrong on it, and whatever it would fetch from elsewhere, fails the test."""
    contexts, wrong = [], []

    def open_page(server, path="/", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(server.url) else wrong.append(asked.url))
        page.goto(server.url + path)
        return page

    open_page.wrong = wrong
    yield open_page
    for number, context in enumerate(contexts):
        if SHOTS:
            name = request.node.name.replace("[", "-").strip("]")
            context.pages[0].screenshot(path=f"{SHOTS}/{name}-{number}.png")
        context.close()
    assert wrong == []


def ask(page, query):
    page.fill("#query", query)
    answered(page, query)


def answered(page, query):
    page.wait_for_function("query => document.querySelector('#results').dataset.query === query", arg=query)
    page.wait_for_selector(".hit")


def test_search_as_you_type_explain_and_walk_to_a_document(one, visit):
    page = visit(one)
    page.wait_for_selector(".welcome")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("the flute with music4", delay=5)
    answered(page, "the flute with music4")
    expected = (
        one.client().post("/v1/search", json={"query": "the flute with music4", "k": 10}).json()["results"][0]["hits"]
    )
    shown = page.eval_on_selector_all(".hit", "all => all.map(one => one.dataset.id)")
    assert shown == [hit["doc_id"] for hit in expected]
    assert page.locator(".hit mark").count() > 0
    assert page.locator(".hit").first.locator(".token").count() == len(expected[0]["code"])
    assert page.locator(".hit").first.locator(".sure").count() == len(expected[0]["code"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # why this?
    page.wait_for_selector(".explained")
    assert "rank 1" in page.inner_text(".explained .verdict")
    page.select_option("#k", "5")
    asked = {"query": "the flute with music4", "k": 5}
    with one.client() as client:
        lost = next(
            doc_id
            for doc_id in (f"{topic}/{number}" for topic in ("river", "metal", "fruit") for number in range(10))
            if not client.post("/v1/explain", json=asked | {"doc_id": doc_id}).json()["found"]
        )
    page.fill("#why-id", lost)
    page.click("#why-form button")
    page.wait_for_selector(".explained .verdict.bad")
    page.click("nav a[data-view=codes]")
    page.wait_for_selector("g.node")
    assert page.locator("g.node text.words").count() > 0
    while page.locator("g.node").count():  # down to a bucket, by keyboard
        before = page.url
        page.locator("g.node").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("before => location.href !== before", arg=before)
        page.wait_for_selector("g.node, .bucket > h2")
        page.wait_for_timeout(150)
    assert page.locator(".documents li").count() >= 1
    page.locator(".documents a").first.click()  # why is it (not) found?
    page.wait_for_selector(".explained")
    page.click("nav a[data-view=health]")
    page.wait_for_selector(".plots svg")
    assert page.locator(".plots figure").count() >= 3
    assert page.inner_text(".badge") in ("healthy", "usable", "ill")


def test_a_document_with_a_script_is_shown_and_never_run(one, visit):
    page = visit(one)
    page.select_option("#k", "50")
    page.select_option("#beam", "100")
    ask(page, "the zither script plays")
    hit = page.locator(f".hit[data-id='{HOSTILE.doc_id}']")
    assert "<script>window.hacked = 1</script>" in hit.inner_text()
    assert "onerror=" in hit.inner_text()
    hit.locator("button").click()
    page.wait_for_selector(".explained")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    page.goto(f"{one.url}/#/search?q=%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E&why=%3Cscript%3E")
    page.wait_for_selector(".problem")
    assert page.evaluate("window.hacked") is None
    visit.wrong[:] = [text for text in visit.wrong if "404" not in text]  # there is no document of that name


def test_the_policy_forbids_scripts_in_the_page(one, visit):
    """The second wall: even markup that got in would not run."""
    page = visit(one)
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 2';"
        " document.body.append(s); }"
    )
    assert page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in visit.wrong)
    visit.wrong.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(one, visit, scheme):
    page = visit(one, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    ask(page, "which apple has the mark fruit0")
    page.locator(".hit button").first.tap()
    page.wait_for_selector(".hit .explained")  # in the hit: there is no room beside the list
    for view in ("search", "codes", "health"):
        page.locator(f"nav a[data-view={view}]").tap()
        page.wait_for_selector({"search": ".hit", "codes": "g.node", "health": ".plots svg"}[view])
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) > 3 * 128
    assert light == (scheme == "light")


def test_two_indexes_side_by_side(served, visit):
    page = visit(served)
    ask(page, "nickel")
    assert page.locator(".column").count() == 2
    assert page.locator(".column").nth(1).locator(".code.none").count() > 0
    page.goto(f"{served.url}/#/codes?index=words")
    page.wait_for_selector("#view-codes .welcome")
    assert "no codes" in page.inner_text("#view-codes")


def test_a_key_is_asked_for_and_kept_in_the_tab(folder, visit):
    from server.conftest import SEARCH

    with running([folder], anonymous=(), host="0.0.0.0") as server:
        page = visit(server)
        page.wait_for_selector("dialog[open]")
        page.fill("#key", SEARCH)
        page.keyboard.press("Enter")
        page.wait_for_selector(".welcome")
        ask(page, "nickel")
        assert page.context.cookies() == []
        visit.wrong[:] = [text for text in visit.wrong if "401" not in text]  # the browser reports the first answer


def test_failures_are_told(one, visit):
    page = visit(one)
    page.route("**/v1/search", lambda route: route.abort())
    page.fill("#query", "nickel")
    page.wait_for_selector(".problem")
    assert "does not respond" in page.inner_text(".problem")
    page.unroute("**/v1/search")
    page.fill("#query", "nickel again")
    page.wait_for_selector(".hit")
    page.fill("#query", "history: fruit/1, fruit/2")  # this index reads none, and says so
    page.wait_for_selector(".problem")
    assert "history" in page.inner_text(".problem")
    page.keyboard.press("Escape")
    page.wait_for_selector(".welcome")
    visit.wrong[:] = [text for text in visit.wrong if "ERR_FAILED" not in text and "400" not in text]
