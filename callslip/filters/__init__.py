"""Filters: which documents a search may return, and the masks that they become."""
