"""Saved indexes: a folder with a manifest, documents in SQLite, everything else in plain formats."""
