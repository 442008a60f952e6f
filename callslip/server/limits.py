"""Size limits and timeouts of the server, checked before any text is tokenised."""

from __future__ import annotations

from dataclasses import dataclass

from callslip.corpus.documents import ID_CHARACTERS as ID_CHARACTERS
from callslip.settings import check_range

# Limits that are part of the API's schema.
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
"""Maximum nesting depth of JSON."""
PREFIX_TOKENS = 64


@dataclass(frozen=True)
class Limits:
    """Queue sizes, timeouts and size limits of a server."""

    queue: int = 64
    """Maximum number of queued queries; further ones get 503 with Retry-After."""
    batch: int = 16
    """Maximum number of queries in a batch."""
    deadline: float = 10.0
    """Timeout of a search in seconds, checked at every level of decoding."""
    head_seconds: float = 10.0
    """Timeout for receiving the head of a request, in seconds."""
    body_seconds: float = 10.0
    """Timeout for receiving the body, in seconds."""
    idle_seconds: float = 30.0
    """Keep-alive timeout of an idle connection, in seconds."""
    body: int = 1024 * 1024
    """Maximum size of a request body in bytes."""
    write_body: int = 16 * 1024 * 1024
    """Maximum size of a request body with documents, in bytes."""
    connections: int = 2048
    """Maximum number of open connections. Beyond it, the one that has waited longest for a request head is closed."""
    writes: int = 8
    """Maximum number of queued writes."""

    def __post_init__(self) -> None:
        check_range(self, queue=1, batch=1, deadline=0.01, head_seconds=0.01, body_seconds=0.01, connections=1)
