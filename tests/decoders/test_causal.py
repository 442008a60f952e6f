"""A decoder-only model as a code writer: against `generate` over our trie, against brute force, and in an index."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import callslip
from callslip.adapters.generation import TrieLogitsProcessor
from callslip.decoders.causal import CausalCodeWriter, is_causal, left_padded
from callslip.decoders.t5 import Tokens
from callslip.errors import BadInput, BadSetting, Unsupported
from callslip.identifiers.table import END, Identifiers
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search

EOS = 1


def random_model(kind, size):
    torch.manual_seed(0)
    if kind == "gpt2":
        shape = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=size, eos_token_id=EOS, bos_token_id=EOS, **shape))
    else:
        config = Qwen3Config(
            vocab_size=size, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=6, eos_token_id=EOS, pad_token_id=0, bos_token_id=EOS,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def save_small(folder, words, kind="qwen3"):
    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    random_model(kind, len(vocabulary)).save_pretrained(folder)
    return folder


def table_of(short):
    codes = np.random.default_rng(0).integers(0, 4, (30, 3))
    if short:
        codes[::5, 2] = END
    return Identifiers([f"d{n}" for n in range(30)], codes)


QUERIES = Tokens.padded([[5, 6, 7, 8], [9], [10, 11]], EOS)


def brute(writer, queries, codes):
    """Scores of all codes, each by teacher forcing alone: [queries, codes]."""
    found = []
    for row, mask in zip(queries.ids, queries.mask, strict=True):
        one = Tokens(row[mask.bool()][None], mask[mask.bool()][None])
        scores = []
        for code in codes:
            logits = writer(one, torch.tensor(code)[None])
            total, ended = 0.0, False
            for level, token in enumerate(code):
                if not ended:
                    total += float(logits[level].log_softmax(-1)[0, writer.widths[level] if token < 0 else token])
                ended = ended or token < 0
            scores.append(total)
        found.append(scores)
    return np.array(found)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
@pytest.mark.parametrize("short", [False, True])
def test_search_finds_the_best_codes(kind, short):
    """Batches with padding, cached keys and values, several beams of one parent: as if each code were scored alone."""
    table = table_of(short)
    writer = CausalCodeWriter(random_model(kind, 20 + sum(table.widths)), table.widths, with_end=short).eval()
    distinct = np.unique(table.codes, axis=0).tolist()
    with torch.no_grad():
        scores = brute(writer, QUERIES, distinct)
        whole = beam_search(writer, QUERIES, table.trie(), len(distinct))
        exact = [exact_search(writer, QUERIES[n : n + 1], table.trie(), 5) for n in range(3)]
        for beams in (whole, exact):
            for wanted, found in zip(scores, beams, strict=True):
                order = np.argsort(-wanted)[: len(found.scores)]
                np.testing.assert_allclose(found.scores, wanted[order], atol=1e-4)
                assert [tuple(code) for code in found.codes.tolist()] == [tuple(distinct[n]) for n in order]


def test_the_same_lists_as_generate():
    """`generate` with our logits processor, renormalised over the allowed tokens."""
    table = table_of(False)
    model = random_model("qwen3", 20 + sum(table.widths))
    writer = CausalCodeWriter(model, table.widths).eval()
    prompt = QUERIES.ids[:1]
    ids = [writer.get_buffer(f"ids_{level}").numpy() for level in range(3)]
    processor = TrieLogitsProcessor(table.trie(), ids, eos=EOS, prompt=prompt.shape[1])
    theirs = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), num_beams=6, num_return_sequences=6, max_new_tokens=3,
        logits_processor=[processor], renormalize_logits=True, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    codes = [[int(id - level[0]) for id, level in zip(row, ids)] for row in theirs.sequences[:, 4:].tolist()]
    (ours,) = beam_search(writer, QUERIES[:1], table.trie(), 6, renormalise=True)
    assert ours.codes.tolist() == codes
    np.testing.assert_allclose(ours.scores, theirs.sequences_scores.numpy(), atol=1e-4)


def test_padding_goes_to_the_left():
    ids, mask = left_padded(QUERIES)
    assert ids.tolist() == [[5, 6, 7, 8], [1, 1, 1, 9], [1, 1, 10, 11]]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]


def test_an_index_learns_with_it_and_opens_again(small_corpus, tmp_path):
    words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
    folder = save_small(tmp_path / "model", [*words, "which", "has", "the", "where", "with"])
    assert is_causal(folder) and not is_causal(tmp_path)
    settings = {"seq2seq": str(folder), "encoder": "scratch", "width": 4, "epochs": 12, "learning_rate": 5e-3,
                "batch_size": 32, "ranking": "bucket"}  # fmt: skip
    index = callslip.fit(small_corpus, "dsi-semantic", tmp_path / "index", settings=settings)
    losses = [record["generation"] for record in index.log.records]
    assert losses[-1] < 0.7 * losses[0]
    query = next(iter(small_corpus.queries.values()))
    wanted = [(hit.doc_id, hit.code) for hit in index.search(query, 5)]
    assert wanted == [(hit.doc_id, hit.code) for hit in callslip.load(tmp_path / "index").search(query, 5)]
    allowed = callslip.Filter(where={"topic": "music"})
    assert {hit.doc_id.partition("/")[0] for hit in index.search(query, 5, allowed)} == {"music"}


@pytest.mark.parametrize("method", ["asi++", "glen", "nci", "tied-atomic"])
def test_methods_that_need_more_than_codes_refuse_it(small_corpus, tmp_path, method):
    settings = {"seq2seq": str(save_small(tmp_path / "model", ["a"])), "encoder": "scratch"}
    with pytest.raises(Unsupported, match=r"decoder-only|cannot write codes"):
        callslip.fit(small_corpus, method, settings=settings)


def test_mistakes_are_named(small_corpus, tmp_path):
    folder = save_small(tmp_path / "model", ["a"])
    with pytest.raises(BadSetting, match="codebooks"):
        callslip.fit(
            small_corpus,
            "dsi-semantic",
            settings={"seq2seq": str(folder), "encoder": "scratch", "seq2seq_codes": "codebooks"},
        )
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="cannot load"):
        CausalCodeWriter.from_pretrained(folder, [2])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        CausalCodeWriter.from_pretrained(folder, [2])
    with pytest.raises(BadSetting, match="do not fit"):
        CausalCodeWriter(random_model("qwen3", 5), [9])
