"""k-means by scikit-learn and by faiss: CPU seconds and inertia, taken in turns, one thread each.

    OMP_NUM_THREADS=1 python benchmarks/kmeans.py [--of texts random] [--vectors 90000] [--rounds 3]

The vectors are those of windows of real texts by the `scratch` encoder, and random unit vectors. `callslip` is what a
fit runs where faiss is installed, `scikit-learn` what it runs elsewhere. Beside them is faiss by itself, from random
vectors: with its defaults (25 passes), with our passes, and with fewer vectors a cluster in the sample.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import islice

import faiss
import numpy as np
from million import windows
from sklearn.cluster import KMeans, kmeans_plusplus
from timing import machine, save

from callslip.encoders.encoder import load_encoder
from callslip.identifiers import kmeans
from callslip.identifiers.kmeans import FIRST, ROUNDS, SAMPLE, cluster_centres, nearest

DIM, SMALLER = 384, 64
STEP = 11
"""Every so many windows, so that they come from many texts."""


def vectors_of(name: str, count: int) -> np.ndarray:
    if name == "random":
        made = np.random.default_rng(0).standard_normal((count, DIM), np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)
    texts = list(islice(windows(), 0, STEP * count, STEP))
    return np.ascontiguousarray(load_encoder(f"scratch:dim={DIM}").encode(texts), np.float32)


def by_callslip(vectors: np.ndarray, k: int) -> np.ndarray:
    return cluster_centres(vectors, k, 0)


def by_scikit_learn(vectors: np.ndarray, k: int) -> np.ndarray:
    """What `cluster_centres` does without faiss, up to 100,000 vectors."""
    return KMeans(k, n_init=1, random_state=0, max_iter=100).fit(vectors).cluster_centers_.astype(np.float32)


def by_faiss(**options: int) -> Callable[[np.ndarray, int], np.ndarray]:
    def run(vectors: np.ndarray, k: int) -> np.ndarray:
        model = faiss.Kmeans(vectors.shape[1], k, seed=1, **options)  # type: ignore[attr-defined]
        model.train(vectors)
        return np.asarray(model.centroids, np.float32)

    return run


WAYS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "scikit-learn": by_scikit_learn,
    "callslip": by_callslip,
    "faiss, its defaults": by_faiss(),
    f"faiss, {ROUNDS} passes": by_faiss(niter=ROUNDS),
    f"faiss, {ROUNDS} passes over {SMALLER} vectors a cluster": by_faiss(niter=ROUNDS, max_points_per_centroid=SMALLER),
}


def inertia(vectors: np.ndarray, centres: np.ndarray) -> float:
    return float(((vectors - centres[nearest(vectors, centres)]) ** 2).sum())


def stages(vectors: np.ndarray, k: int) -> dict[str, float]:
    """CPU seconds of what `cluster_centres` does by faiss beside the passes, and scikit-learn's passes."""
    began = time.process_time()
    kmeans_plusplus(vectors[: FIRST * k], k, random_state=0)
    first = time.process_time() - began
    began = time.process_time()
    nearest(vectors, vectors[:k])
    last = time.process_time() - began
    passes = KMeans(k, n_init=1, random_state=0, max_iter=100).fit(vectors).n_iter_
    return {
        "first centroids, CPU s": round(first, 2),
        "which are empty, CPU s": round(last, 2),
        "vectors in faiss's sample": min(len(vectors), SAMPLE * k),
        "scikit-learn's passes": int(passes),
    }


def measured(vectors: np.ndarray, k: int, rounds: int) -> dict[str, object]:
    assert len(vectors) > kmeans.LARGE, "so few vectors are clustered by scikit-learn"
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    found: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in WAYS.items():
            began = time.process_time()
            centres = way(vectors, k)
            seconds[name].append(time.process_time() - began)
            found[name] = inertia(vectors, centres)
    slow, best = float(np.median(seconds["scikit-learn"])), found["scikit-learn"]
    report: dict[str, object] = {
        name: {
            "CPU s": round(float(np.median(values)), 2),
            "times less": round(slow / float(np.median(values)), 1),
            "inertia, %": round(100 * (found[name] / best - 1), 2),
        }
        for name, values in seconds.items()
    }
    return report | {"stages": stages(vectors, k)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=90_000)
    parser.add_argument("--clusters", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--of", nargs="+", default=["texts", "random"], choices=["texts", "random"])
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    shape = {"vectors": arguments.vectors, "numbers": DIM, "clusters": arguments.clusters, "rounds": arguments.rounds}
    for name in arguments.of:
        found = measured(vectors_of(name, arguments.vectors), arguments.clusters, arguments.rounds)
        print(name, found, flush=True)
        save("kmeans", {"machine": machine(), name: shape | found})


if __name__ == "__main__":
    main()
