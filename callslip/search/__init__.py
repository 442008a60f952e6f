"""Search: what a hit is, filters, beam search over the code trie, exact scoring."""
