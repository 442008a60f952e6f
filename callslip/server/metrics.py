"""Prometheus metrics of the server: requests, batches, queued queries, documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from callslip.server.serving import Served

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One registry per server, so that two servers in one process have separate metrics."""

    def __init__(self, served: Mapping[str, Served], queued: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        # Labels are routes and statuses, never client input, so that their number stays small.
        self.requests = Counter(
            "callslip_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "callslip_search_seconds", "Time from request to response.", buckets=SECONDS, registry=self.registry
        )
        self.batches = Histogram(
            "callslip_batch_queries",
            "Queries per batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.model_seconds = Histogram(
            "callslip_batch_seconds", "Inference time of a batch.", buckets=SECONDS, registry=self.registry
        )
        Gauge("callslip_waiting_queries", "Queries in the queue.", registry=self.registry).set_function(queued)
        documents = Gauge("callslip_documents", "Documents in the index.", ["index"], registry=self.registry)
        generation = Gauge("callslip_generation", "The generation in use.", ["index"], registry=self.registry)
        swaps = Gauge("callslip_swaps", "Generation switches since start-up.", ["index"], registry=self.registry)
        for name, one in served.items():
            documents.labels(name).set_function(partial(_documents, one))
            generation.labels(name).set_function(partial(_generation, one))
            swaps.labels(name).set_function(partial(_swaps, one))

    def batch(self, size: int, seconds: float) -> None:
        self.batches.observe(size)
        self.model_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _documents(one: Served) -> int:
    return len(one.retriever)


def _generation(one: Served) -> int:
    return one.retriever.living.generation


def _swaps(one: Served) -> int:
    return one.swaps
