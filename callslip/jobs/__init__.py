"""Jobs: a fit cut into shards, which any number of processes or machines encode, and an index built of their parts.

`plan` writes a folder with shards of documents and codebooks, `worker` encodes one shard, `engines` run workers, and
`build` makes the index. Resuming is a directory listing: a part is done when its JSON stands.
"""
