"""The page in a real browser: Debian's Chromium, driven by Playwright, without the internet."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from server.conftest import ALL, HOSTILE, QUICK, running
from small_log import small_log

import callslip
from callslip.corpus.documents import Corpus, Document
from callslip.methods import make

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
        page.set_default_timeout(60_000)  # for a machine with other work; what passes never waits so long
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
        page.wait_for_function(
            "() => new URLSearchParams(location.hash.split('?')[1]).get('prefix') ==="
            " document.querySelector('#view-codes').dataset.prefix"
        )
    assert page.locator(".documents li").count() >= 1
    page.locator(".documents .foot a").first.click()  # why is it (not) found?
    page.wait_for_selector(".explained")
    page.click("nav a[data-view=health]")
    page.wait_for_selector(".plots svg")
    assert page.locator(".plots figure").count() >= 3
    assert page.inner_text(".badge") in ("healthy", "usable", "ill")


def test_the_explanation_follows_the_query(one, visit):
    page = visit(one)
    ask(page, "the flute with music4")
    page.locator(".hit button").first.click()
    page.wait_for_selector(".explained")
    doc_id = page.locator(".hit").first.get_attribute("data-id")
    for query in ("which apple has the mark fruit0", "nickel"):
        page.fill("#query", query)
        page.wait_for_function("query => document.querySelector('.explained')?.dataset.query === query", arg=query)
        asked = {"query": query, "doc_id": doc_id, "k": 10}
        told = one.client().post("/v1/explain", json=asked).json()
        assert page.inner_text(".explained .verdict") == told["verdict"]
    page.keyboard.press("Escape")
    page.wait_for_selector(".welcome")
    assert page.locator(".explained").count() == 0
    assert page.input_value("#why-id") == ""


def test_whole_words_are_marked(one, visit):
    page = visit(one)
    marks = """async ([query, text]) => {
        const { marked, patternOf } = await import("/dom.js");
        return marked(text, patternOf(query)).filter((part) => part.tagName === "MARK").map((part) => part.textContent);
    }"""
    for query, text, expected in (
        ("cat", "A category of cats concatenates a Cat.", ["cats", "Cat"]),
        ("apples", "apple, apply, Apples and pineapples", ["apple", "Apples"]),
        ("running the studies", "He runs: she ran a study while running.", ["runs", "study", "running"]),
        ("the", "the theme", []),
        ("flûte", "La flûte et les flûtes", ["flûte", "flûtes"]),
        ("図書館", "東京図書館です", ["図書館"]),
    ):
        assert page.evaluate(marks, [query, text]) == expected, query


def test_a_document_with_its_metadata_and_neighbours(one, visit):
    page = visit(one)
    ask(page, "the flute with music4")
    doc_id = page.locator(".hit").first.get_attribute("data-id")
    page.locator(".hit h3 a").first.click()
    page.wait_for_selector(".whole")
    with one.client() as client:
        told = client.get(f"/v1/documents/{doc_id}").json()
        near = client.get("/v1/neighbours", params={"doc_id": doc_id}).json()["neighbours"]
    assert page.inner_text(".whole") == told["text"]
    assert page.inner_text("h1") == told["title"]
    assert page.locator(".whole mark").count() > 0
    assert page.inner_text(".metadata").split() == ["topic", "music", "even", str(told["metadata"]["even"]).lower()]
    shown = page.eval_on_selector_all(".documents li", "all => all.map(one => one.dataset.id)")
    assert shown == [other["doc_id"] for other in near]
    page.locator(".documents h3 a").first.click()
    page.wait_for_function("title => document.querySelector('h1')?.textContent === title", arg=near[0]["title"])
    page.go_back()
    page.wait_for_function("title => document.querySelector('h1')?.textContent === title", arg=told["title"])
    page.click(".took a")
    page.wait_for_selector(".hit")
    page.goto(f"{one.url}/#/document?id=nobody")
    page.wait_for_selector("#view-document .problem")
    page.goto(f"{one.url}/#/document?id={quote(HOSTILE.doc_id)}")
    page.wait_for_selector(".whole")
    assert page.inner_text(".whole") == HOSTILE.text
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    visit.wrong[:] = [text for text in visit.wrong if "404" not in text]  # nobody is no document


def test_examples_to_begin_with_and_scores_to_read(one, visit):
    page = visit(one)
    page.wait_for_selector(".tries a")
    examples = one.client().get("/v1/examples").json()["queries"]
    assert page.locator(".tries a").all_inner_texts() == examples
    page.locator(".tries a").first.click()
    answered(page, examples[0])
    parts = [int(text.strip("< %")) for text in page.locator(".hit .score").all_inner_texts()]
    assert parts[0] == 100
    assert parts == sorted(parts, reverse=True)
    best = one.client().post("/v1/search", json={"query": examples[0]}).json()["results"][0]["hits"][0]["score"]
    assert f"score {best:.4f}" in page.locator(".hit .score").first.get_attribute("title")


def topics(page):
    return set(page.eval_on_selector_all(".hit", "all => all.map(one => one.dataset.id.split('/')[0])"))


def found_only(page, *names):
    """Wait until the hits are of these topics alone."""
    page.wait_for_function(
        "names => { const hits = [...document.querySelectorAll('.hit')];"
        " const found = new Set(hits.map((one) => one.dataset.id.split('/')[0]));"
        " return found.size === names.length && names.every((name) => found.has(name)); }",
        arg=list(names),
    )


def test_facets_filter_the_hits(one, visit):
    page = visit(one)
    page.wait_for_selector("#facets summary")
    ask(page, "which apple has the mark fruit0")
    assert page.locator("#active").is_hidden()
    page.click("#facets summary")
    metal = page.locator("button.value", has_text="metal")
    assert "10" in metal.inner_text()
    metal.click()
    found_only(page, "metal")
    page.locator("#facets button.value", has_text="river").click()  # values of one field are alternatives
    found_only(page, "metal", "river")
    page.fill("#query", "which nickel has the mark metal0")  # search as you type keeps the filter
    answered(page, "which nickel has the mark metal0")
    assert topics(page) <= {"metal", "river"}
    assert page.locator("#active button.value").all_inner_texts() == ["topic: metal×", "topic: river×"]
    linked = page.url
    page.goto("about:blank")
    page.goto(linked)  # the URL holds query and filter
    answered(page, "which nickel has the mark metal0")
    assert topics(page) <= {"metal", "river"}
    assert page.locator("#facets button.value").first.is_hidden()  # what is chosen is in sight all the same
    page.get_by_role("button", name="Remove the filter topic: river").click()
    found_only(page, "metal")
    page.go_back()  # a filter is a step, and so is a query before which one was chosen
    page.wait_for_selector("#active button >> nth=1")
    page.reload()
    page.wait_for_selector("#active button >> nth=1")
    page.get_by_role("button", name="Clear all").click()
    page.wait_for_selector(".hit[data-id^=fruit], .hit[data-id^=music]")
    assert page.locator("#active").is_hidden()
    assert "where" not in page.url
    visit.wrong[:] = [text for text in visit.wrong if text != "about:blank"]


def test_the_url_holds_query_hits_beam_and_explanation(one, visit):
    page = visit(one)
    ask(page, "nickel")
    page.keyboard.press("Enter")  # this query is worth a step back
    page.select_option("#k", "5")
    page.select_option("#beam", "20")
    page.wait_for_function("() => document.querySelectorAll('.hit').length === 5")
    ask(page, "the flute with music4")
    page.locator(".hit button").first.click()
    page.wait_for_selector(".explained")
    doc_id = page.locator(".explained").get_attribute("data-id")
    page.reload()
    page.wait_for_selector(".explained")
    assert page.locator(".explained").get_attribute("data-id") == doc_id
    assert page.input_value("#query") == "the flute with music4"
    assert (page.input_value("#k"), page.input_value("#beam")) == ("5", "20")
    page.go_back()
    answered(page, "nickel")
    assert page.locator(".explained").count() == 0
    page.go_forward()
    answered(page, "the flute with music4")
    page.click("nav a[data-view=codes]")
    page.wait_for_selector("g.node")
    page.click("nav a[data-view=search]")  # as it was left
    assert page.input_value("#query") == "the flute with music4"
    page.click(".brand")
    page.wait_for_selector(".welcome")
    assert page.input_value("#query") == ""


def test_not_sure(one, visit):
    """How `unsure` is shown; when the server sets it is tested with the server's own answers."""
    page = visit(one)

    def doubting(route):
        answer = route.fetch()
        told = answer.json()
        told["results"][0]["unsure"] = "nickel" not in route.request.post_data
        route.fulfill(response=answer, json=told)

    page.route("**/v1/search", doubting)
    ask(page, "the flute with music4")
    assert "Nothing in this index seems to answer this" in page.inner_text(".unsure")
    assert "seems to answer" in page.inner_text("#status")
    above, first = (page.locator(which).first.bounding_box()["y"] for which in (".unsure", ".hit"))
    assert above < first
    ask(page, "nickel")
    assert page.locator(".unsure").count() == 0
    page.unroute("**/v1/search")
    ask(page, "nickel again")  # the field is absent from answers of older servers
    assert page.locator(".unsure").count() == 0


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    corpus = small_log()
    documents = [*corpus.documents, Document("zither", "", HOSTILE.title)]
    corpus = Corpus(documents, corpus.queries, corpus.judgements, name="small-log")
    path = tmp_path_factory.mktemp("log") / "shop"
    make("item-knn").fit(corpus).save(path)
    with running([path]) as server:
        yield server


def picked(page):
    return page.eval_on_selector_all("#picked li", "all => all.map(one => one.dataset.id)")


def recommended(page, server, items, **asked):
    """Wait for the hits that the API gives for these items."""
    body = {"history": items, "k": 10, "explain": True} | asked
    hits = server.client().post("/v1/search", json=body).json()["results"][0]["hits"]
    page.wait_for_function(
        "ids => [...document.querySelectorAll('.hit')].map((one) => one.dataset.id).join() === ids",
        arg=",".join(hit["doc_id"] for hit in hits),
    )
    assert picked(page) == items
    return hits


def test_pick_items_and_see_what_comes_next(log, visit):
    page = visit(log)
    page.wait_for_selector("#view-recommend .welcome")  # the first view of an index that reads histories
    assert page.locator("nav a[data-view=search]").is_hidden()
    page.fill("#item", "soap 2")
    page.wait_for_selector("#item-list [role=option]")
    listed = log.client().get("/v1/documents", params={"contains": "soap 2", "limit": 8}).json()["documents"]
    shown = page.eval_on_selector_all("#item-list [role=option]", "all => all.map(one => one.dataset.id)")
    assert shown == [one["doc_id"] for one in listed]
    assert page.get_attribute("#item", "aria-activedescendant") == "choice-0"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    recommended(page, log, ["soap-2"])
    page.locator("#item").press_sequentially("soap-3")
    page.keyboard.press("Enter")  # at once, before the list is there
    hits = recommended(page, log, ["soap-2", "soap-3"])
    because = sorted(hits[0]["why"]["because"].items(), key=lambda one: -one[1])
    assert page.locator(".hit .because").first.inner_text() == "Because of " + " and ".join(
        item.replace("-", " ") for item, _ in because
    )
    page.get_by_role("button", name="Why this?").first.click()
    page.wait_for_selector(".explained .items")
    assert "rank 1" in page.inner_text(".explained .verdict")
    assert page.locator(".explained .items small").all_inner_texts() == [item for item, _ in because]
    shares = [int(text.strip("< %")) for text in page.locator(".explained .items .p").all_inner_texts()]
    assert sum(shares) in (99, 100, 101) and shares == sorted(shares, reverse=True)
    page.check("#keep")
    kept = recommended(page, log, ["soap-2", "soap-3"], keep_history=True)
    assert {"soap-2", "soap-3"} & {hit["doc_id"] for hit in kept}
    page.reload()
    page.wait_for_selector(".hit")
    assert page.is_checked("#keep")
    recommended(page, log, ["soap-2", "soap-3"], keep_history=True)
    assert page.locator("#picked .name").all_inner_texts() == ["soap 2", "soap 3"]
    page.uncheck("#keep")
    recommended(page, log, ["soap-2", "soap-3"])
    page.get_by_role("button", name="Remove soap 2").click()
    hits = recommended(page, log, ["soap-3"])
    page.get_by_role("button", name=f"Add to the history: {hits[0]['title']}").click()
    recommended(page, log, ["soap-3", hits[0]["doc_id"]])
    page.go_back()
    recommended(page, log, ["soap-3"])
    page.fill("#next-why-id", "soap-3")
    page.click("#next-why-form button")
    page.wait_for_selector(".explained .verdict.bad")
    assert "in the history" in page.inner_text(".explained .verdict")
    page.locator("#next-facets summary").click()
    page.locator("#next-facets button.value", has_text="true").click()
    recommended(page, log, ["soap-3"], filter={"where": {"even": [True]}})


def test_histories_of_the_log_to_begin_with(log, visit):
    page = visit(log)
    page.wait_for_selector(".tries a")
    histories = log.client().get("/v1/examples").json()["histories"]
    assert histories
    assert page.locator(".tries a").all_inner_texts() == [" › ".join(i["title"] for i in items) for items in histories]
    page.locator(".tries a").first.click()
    recommended(page, log, [one["doc_id"] for one in histories[0]])
    page.goto(f"{log.url}/#/search?q=history:%20soap-1,%20soap-2")  # a link from before there was this view
    recommended(page, log, ["soap-1", "soap-2"])
    page.goto(f"{log.url}/#/recommend?item=soap-1&item=nobody")
    page.wait_for_selector(".hit")
    page.wait_for_function("() => /not in the index/.test(document.querySelector('#picked').textContent)")
    page.locator(".hit h3 a").first.click()
    page.wait_for_selector("#view-document h1")
    page.get_by_role("link", name="What comes next?").click()
    page.wait_for_function("() => document.querySelectorAll('#picked li').length === 1")
    page.wait_for_selector(".hit")
    page.fill("#item", "zither")
    page.wait_for_selector("#item-list [role=option]")
    assert HOSTILE.title in page.inner_text("#item-list")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('#picked li').length === 2")
    assert HOSTILE.title in page.inner_text("#picked")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    visit.wrong[:] = [text for text in visit.wrong if "404" not in text]  # nobody is no item


def test_texts_and_logs_on_one_server(words_folder, tmp_path, visit):
    make("tied-log", {"encoder": "scratch", "factors": 16, "length": 24}).fit(small_log()).save(tmp_path / "shop")
    with running([words_folder, tmp_path / "shop"]) as server:
        page = visit(server)
        ask(page, "nickel")  # searches the index of texts alone, which has no codes
        assert page.locator(".problem").count() == 0
        page.goto(f"{server.url}/#/codes?index=words")
        page.wait_for_selector("#view-codes .welcome")
        page.goto(f"{server.url}/#/search?q=nickel")
        page.wait_for_selector("#view-search .hit")
        page.fill("#query", "history: soap-2, soap-3")
        page.keyboard.press("Enter")
        page.wait_for_selector("#view-recommend .hit")
        assert picked(page) == ["soap-2", "soap-3"]
        page.locator(".hit .acts button", has_text="Why this?").first.click()
        page.wait_for_selector(".explained .items")
        assert "from codes" in page.inner_text(".explained")
        page.click("nav a[data-view=health]")
        page.wait_for_selector(".tiles")
        page.click("nav a[data-view=recommend]")
        page.wait_for_selector("#view-recommend .hit")
        visit.wrong[:] = [text for text in visit.wrong if "400" not in text]  # while the history was typed


def test_every_branch_has_a_label(one, visit):
    """Also the small ones; the words are those of `callslip inspect`, see test_api.py."""
    page = visit(one, "/#/codes")
    page.wait_for_selector("g.node")
    told = one.client().get("/v1/codes", params={"depth": 2}).json()["children"]
    assert page.locator("g.node .label").count() == len(told)
    assert page.locator("g.node .words").all_text_contents() == [", ".join(child["words"]) for child in told]
    assert min(child["documents"] for child in told) * 10 < max(child["documents"] for child in told)
    bars = [page.locator("g.node > rect:first-of-type").nth(n).bounding_box() for n in range(len(told))]
    assert all(bar["height"] >= 20 for bar in bars)
    boxes = [page.locator("g.node .words").nth(n).bounding_box() for n in range(len(told))]
    assert all(one["y"] + one["height"] <= two["y"] + 2 for one, two in itertools.pairwise(boxes))


def test_small_branches_are_drawn_on_demand(tmp_path, visit):
    documents = [Document(f"d{n}", f"word{n} thing{n}", f"Title {n}") for n in range(90)]
    callslip.fit(documents, "dsi-atomic", tmp_path / "flat", settings={"epochs": 0, "encoder": "scratch"}).close()
    with running([tmp_path / "flat"]) as server:
        page = visit(server, "/#/codes")
        page.wait_for_selector("g.node")
        assert page.locator("g.node").count() == 64
        assert "26 smaller branches" in page.inner_text("#view-codes .hint")
        page.click("#view-codes .hint a")
        page.wait_for_selector("g.node >> nth=89")
        assert all(text.strip() for text in page.locator("g.node .words").all_text_contents())


def test_an_emptied_index_and_a_document_that_is_deleted_while_it_is_read(folder, tmp_path, small_corpus, visit):
    make("bm25+dsi-semantic", {f"dsi-semantic.{k}": v for k, v in (QUICK | {"epochs": 1}).items()}).fit(
        small_corpus
    ).save(tmp_path / "both")
    with running([folder, tmp_path / "both"]) as server, server.client(ALL) as client:
        page = visit(server)
        ask(page, "nickel")
        assert page.locator(".column").count() == 2
        page.locator(".column").nth(1).locator(".hit button").first.click()  # a hybrid explains itself, too
        page.wait_for_selector(".explained")
        assert "rank in bm25" in page.inner_text(".explained")
        page.locator(".column").nth(0).locator(".hit h3 a").first.click()
        page.wait_for_selector(".whole")
        doc_id = page.inner_text("#view-document .id")
        assert client.delete(f"/v1/documents/{doc_id}").status_code == 200
        page.get_by_role("link", name="Why (not) found?").click()
        page.wait_for_selector("#view-search .problem")
        assert "unknown document" in page.inner_text("#view-search .problem")
        page.go_back()
        page.wait_for_selector("#view-document .problem")
        page.click("#view-document .took a")
        page.wait_for_selector(".hit")
        for name in ("small", "both"):
            listed = client.get("/v1/documents", params={"index": name, "limit": 100}).json()["documents"]
            body = {"index": name, "doc_ids": [one["doc_id"] for one in listed]}
            assert client.post("/v1/documents/delete", json=body).status_code == 200
        visit.wrong[:] = [text for text in visit.wrong if "404" not in text]  # the deleted document
        for view, wait in (("search", ".welcome"), ("codes", ".welcome"), ("health", ".tiles")):
            page.goto(f"{server.url}/#/{view}")
            page.reload()
            page.wait_for_selector(f"#view-{view} {wait}")
        assert "no documents" in page.inner_text("#view-health")
        page.goto(f"{server.url}/#/search?q=nickel")
        page.wait_for_selector(".nothing")
        assert "no documents" in page.inner_text(".nothing >> nth=0")


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


def fits(page):
    """Nothing makes the page scroll sideways, nor is a table wider than its frame, nor a text cut off at the edge."""
    wide = page.evaluate(
        "() => [...document.querySelectorAll('main *')].filter((one) => one.getClientRects().length"
        " && !one.closest('.unseen, thead, svg') && one.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map((one) => one.outerHTML.slice(0, 80))"
    )
    frames = page.evaluate(
        "() => [...document.querySelectorAll('.table')].filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert (wide, frames) == ([], 0)
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("scheme", "width"), [("light", 320), ("dark", 390)])
def test_it_fits_a_phone(one, log, visit, scheme, width):
    phone = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme, "has_touch": True}
    page = visit(one, **phone)
    ask(page, "which apple has the mark fruit0")
    page.locator(".hit button").first.tap()
    page.wait_for_selector(".hit .explained")  # in the hit: there is no room beside the list
    for view in ("search", "codes", "health"):
        page.locator(f"nav a[data-view={view}]").tap()
        page.wait_for_selector({"search": ".hit", "codes": "g.node", "health": ".plots svg"}[view])
        assert fits(page), view
    assert page.locator(".table td").first.is_visible()
    page.goto(f"{one.url}/#/document?id=fruit/1")
    page.wait_for_selector(".whole")
    assert fits(page), "document"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) > 3 * 128
    assert light == (scheme == "light")
    page = visit(log, "/#/recommend?item=soap-1&item=soap-2", **phone)
    page.locator(".hit .acts button", has_text="Why this?").first.tap()
    page.wait_for_selector(".hit .explained .items")
    page.fill("#item", "soap")
    page.wait_for_selector("#item-list [role=option]")
    assert fits(page), "recommend"


def test_every_control_has_a_name_and_a_visible_focus(one, log, visit):
    names = """() => [...document.querySelectorAll('button, input, select, a, [role=button], [role=combobox]')]
        .filter((one) => one.getClientRects().length)
        .filter((one) => !(one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim()))
        .map((one) => one.outerHTML)"""
    for server, path, wait in (
        (one, "#/search?q=nickel&why=metal/1", ".explained"),
        (one, "#/codes", "g.node"),
        (one, "#/health", ".plots svg"),
        (one, "#/document?id=fruit/1", ".whole"),
        (log, "#/recommend?item=soap-1&item=soap-2&why=soap-3", ".explained"),
    ):
        page = visit(server, f"/{path}")
        page.wait_for_selector(wait)
        assert page.evaluate(names) == [], path
        seen = []
        page.evaluate("() => document.activeElement.blur()")
        for _ in range(8):  # what has the keyboard's focus looks different
            page.keyboard.press("Tab")
            seen.append(
                page.evaluate(
                    "() => { const one = document.activeElement, style = getComputedStyle(one);"
                    " if (one.tagName === 'BODY') return 'body';"
                    " if (one.tagName === 'g') return getComputedStyle(one.querySelector('rect')).strokeWidth;"
                    " return style.outlineStyle; }"
                )
            )
        assert set(seen) <= {"solid", "2.5px", "auto", "body"} and "solid" in seen, (path, seen)


def test_two_indexes_side_by_side(served, visit):
    page = visit(served)
    ask(page, "nickel")
    assert page.locator(".column").count() == 2
    assert page.locator(".column").nth(0).locator(".code").count() > 0
    assert page.locator(".column").nth(1).locator(".code").count() == 0
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
