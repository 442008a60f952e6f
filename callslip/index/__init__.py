"""Indexes: what every method has in common, from the rows of its documents to the model that writes their codes."""
