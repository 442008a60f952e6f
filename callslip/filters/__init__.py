"""Filters, which restrict the documents a search may return, and their masks."""
