"""transformers: let any decoder-only model write codes of an index with `generate`, and nothing else.

The model here has random weights, so the codes are random; that they are codes of documents is not.
"""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import callslip
from callslip.adapters.generation import TrieLogitsProcessor, live_nodes, token_ids

demo = callslip.load_corpus("demo")
table = callslip.codes(demo, "dsi-random", settings={"encoder": "scratch"}).identifiers
words, pad, eos = 100, 0, 1
torch.manual_seed(0)
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=words + sum(table.widths), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, eos_token_id=eos, pad_token_id=pad,
    )
).eval()  # fmt: skip

prompt = torch.randint(2, words, (1, 6))
ids = token_ids(table.widths, first=words)
processor = TrieLogitsProcessor(table.trie(), ids, eos=eos, prompt=prompt.shape[1])
options = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": table.length, "do_sample": False}
odd = np.arange(len(demo)) % 2 == 1
for title, live in (("all documents", None), ("every other document", live_nodes(table, odd))):
    processor.live = live
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), logits_processor=[processor], **options)
    print(title)
    for row in written[:, prompt.shape[1] :].tolist():
        code = [int(id - level[0]) for id, level in zip(row, ids)]
        print("  ", code, [table.doc_ids[at] for at in range(*table.bucket(code).indices(len(table)))][:3])
