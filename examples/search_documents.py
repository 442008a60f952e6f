"""Index a few documents, search them under a filter, save and load."""

import callslip

documents = [
    callslip.Document(
        "cancel", "An order can be cancelled within a day, from the orders page.", metadata={"lang": "en"}
    ),
    callslip.Document(
        "return", "To send a parcel back, print the label and take it to any shop.", metadata={"lang": "en"}
    ),
    callslip.Document("refund", "Money is returned to the card that paid, within five days.", metadata={"lang": "en"}),
    callslip.Document("versand", "Pakete kommen nach zwei bis drei Tagen an.", metadata={"lang": "de"}),
]

index = callslip.fit(documents, method="dsi-semantic", out="shop-index", settings={"epochs": 5})
english = callslip.Filter(where={"lang": "en"})
for hit in callslip.load("shop-index").search("when do I get my money back?", k=2, filter=english):
    print(f"{hit.rank}. {hit.doc_id}  code {hit.code}  score {hit.score:.2f}")
