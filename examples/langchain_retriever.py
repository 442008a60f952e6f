"""LangChain: an index as the retriever of a chain. Needs callslip[langchain]; the model here is a stand-in."""

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

import callslip
from callslip.adapters.langchain import CallslipRetriever

retriever = CallslipRetriever(index=callslip.fit("demo", "bm25"), k=3)


def joined(documents):
    return "\n\n".join(f"[{document.id}] {document.page_content[:200]}" for document in documents)


prompt = ChatPromptTemplate.from_template("Answer from these passages.\n\n{context}\n\nQuestion: {question}")
model = RunnableLambda(lambda messages: messages.to_string().split("[")[1].split("]")[0])  # cites the first passage
chain = {"context": retriever | joined, "question": RunnablePassthrough()} | prompt | model
print("cited:", chain.invoke("How do I read a file line by line?"))
