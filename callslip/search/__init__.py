"""Search: hits, beam search over the code trie, exact search, nearest neighbours and BM25."""
