"""LangChain's retriever, by its own standard tests where they are installed."""

import asyncio

import pytest

import callslip
from callslip.corpus.documents import Document

pytest.importorskip("langchain_core", reason="the extra 'langchain' is not installed")

DOCUMENTS = [Document(str(n), f"apple number{n}", f"Title {n}", {"even": n % 2 == 0}) for n in range(6)]


@pytest.fixture(scope="module")
def index():
    return callslip.fit(DOCUMENTS, "bm25")


def test_documents_carry_what_the_hit_has(index, tmp_path):
    from callslip.adapters.langchain import CallslipRetriever

    found = CallslipRetriever(index=index, k=2).invoke("apple number3")
    assert found[0].id == "3" and found[0].page_content == "apple number3" and len(found) == 2
    about = found[0].metadata
    assert about["even"] is False and about["title"] == "Title 3" and about["rank"] == 1 and about["score"] > 0
    index.save(tmp_path / "index")
    even = callslip.Filter(where={"even": True})
    again = CallslipRetriever(index=str(tmp_path / "index"), filter=even)
    assert {document.id for document in again.invoke("apple")} == {"0", "2", "4"}
    assert [d.id for d in asyncio.run(again.ainvoke("apple number4", k=1))] == ["4"]


def test_the_standard_tests(index):
    """langchain-tests' own suite for retrievers, called directly: its pytest plugins are not wanted here."""
    suites = pytest.importorskip("langchain_tests.integration_tests", reason="langchain-tests is not installed")
    from callslip.adapters.langchain import CallslipRetriever

    class Suite(suites.RetrieversIntegrationTests):
        retriever_constructor = CallslipRetriever
        retriever_constructor_params = {"index": index}  # noqa: RUF012
        retriever_query_example = "apple"

    suite, retriever = Suite(), CallslipRetriever(index=index)
    suite.test_k_constructor_param()
    suite.test_invoke_with_k_kwarg(retriever)
    suite.test_invoke_returns_documents(retriever)
    asyncio.run(suite.test_ainvoke_returns_documents(retriever))
