"""What a server takes at most, and how long it waits: checked before any text is tokenised."""

from __future__ import annotations

from dataclasses import dataclass

from callslip.corpus.documents import ID_CHARACTERS as ID_CHARACTERS
from callslip.settings import check_range

# Caps that stand in the API's schema, so that clients can read them there.
QUERY_CHARACTERS = 2048
HISTORY_ITEMS = 256
K = 100
BEAM = 128
BATCH = 64
TITLE_CHARACTERS = 4096
TEXT_CHARACTERS = 1_000_000
DOCUMENTS = 256
FILTER_FIELDS = 16
FILTER_VALUES = 256
FILTER_IDS = 4096
METADATA_FIELDS = 64
DEPTH = 32
"""How deep JSON may be nested."""
PREFIX_TOKENS = 64


@dataclass(frozen=True)
class Limits:
    """Queues, deadlines and sizes of one server."""

    queue: int = 64
    """Queries that may wait for the model. One more is answered 503, with Retry-After."""
    batch: int = 16
    """Queries that the model answers at once, when so many wait."""
    deadline: float = 10.0
    """Seconds until a search is given up, also in the middle of writing a code."""
    head_seconds: float = 10.0
    """Seconds that a client has to send the head of a request."""
    body_seconds: float = 10.0
    """Seconds that a client has to send the body."""
    idle_seconds: float = 30.0
    """Seconds that a connection may rest between two requests."""
    body: int = 1024 * 1024
    """Bytes of a request's body."""
    write_body: int = 16 * 1024 * 1024
    """Bytes of the body of a request that adds documents."""
    connections: int = 2048
    """Open connections. When there are more, the one that has waited longest for its head is closed."""
    writes: int = 8
    """Changes of documents that may wait for one another."""

    def __post_init__(self) -> None:
        check_range(self, queue=1, batch=1, deadline=0.01, head_seconds=0.01, body_seconds=0.01, connections=1)
