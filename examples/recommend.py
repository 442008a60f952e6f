"""Recommend the next item: a log of users and items is a corpus, and a query is the history of a user."""

import random
from pathlib import Path

import callslip
from callslip.corpus import Query

rng = random.Random(0)
courses = {"bread": ["flour", "yeast", "tin", "knife", "butter"], "tea": ["pot", "leaves", "cup", "kettle", "honey"]}
with Path("log.csv").open("w", encoding="utf-8") as log:
    log.write("user,item,time\n")
    for user in range(60):
        items = courses[rng.choice(list(courses))]
        start = rng.randrange(5)
        for time in range(5):
            log.write(f"user{user},{items[(start + time) % 5]},{time}\n")

corpus = callslip.load_corpus("log.csv")
index = callslip.fit(corpus, method="item-knn", out="shop")
for hit in index.search(Query("me", "", history=("flour", "yeast")), k=3, explain=True):
    print(hit.rank, hit.doc_id, round(hit.score, 3), hit.why)

report = callslip.evaluate(index, corpus, measures="R@3", exclude_history=True)
print("Recall@3 of the last item:", round(report.measures["R@3"].mean, 2))
again = callslip.load("shop")
print("for user7:", again.search(again.users.query("user7"), k=2).doc_ids)
