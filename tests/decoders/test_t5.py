"""T5 as a code writer: kinds of codes, refusals, files. search/test_against_generate compares its scores."""

from __future__ import annotations

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from callslip.decoders.scores import DenseScores, SparseScores
from callslip.decoders.t5 import T5CodeWriter, Tokens
from callslip.errors import BadSetting, IndexCorrupt, Unsupported


def tiny(vocabulary: int = 30, **more) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4} | more
    return T5ForConditionalGeneration(
        T5Config(vocab_size=vocabulary, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **shape)
    ).eval()


QUERIES = Tokens(torch.tensor([[3, 4, 5, 1], [6, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]))


@pytest.mark.parametrize("codes", ["tokens", "codebooks", "words"])
@pytest.mark.parametrize("with_end", [False, True])
def test_cached_steps_equal_teacher_forcing(codes, with_end):
    vocabulary = [7, 3, 9, 20, 11] if codes == "words" else None
    writer = T5CodeWriter(tiny(), [4, 5, 3], codes=codes, with_end=with_end, vocabulary=vocabulary).eval()
    code = torch.tensor([[1, 4, 2], [3, 0, 1]])
    with torch.inference_mode():
        whole = [logits.log_softmax(-1) for logits in writer(QUERIES, code)]
        assert [logits.shape[1] for logits in whole] == [width + with_end for width in (4, 5, 3)]
        state, step = writer.start(QUERIES)
        for level in range(3):
            torch.testing.assert_close(step[:, 0], whole[level], atol=1e-4, rtol=1e-3)
            if level < 2:
                step = writer.advance(state, torch.zeros(2, 1, dtype=torch.long), code[:, level : level + 1])


def test_padding_changes_nothing():
    writer = T5CodeWriter(tiny(), [4, 4]).eval()
    with torch.inference_mode():
        together = writer.start(QUERIES)[1][1]
        alone = writer.start(QUERIES[1:2])[1][0]
    assert QUERIES[1:2].ids.shape == (1, 2)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_loaded_weights_are_searched():
    """Not those that an engine laid out before."""
    one, two = T5CodeWriter(tiny(), [4, 4]).eval(), T5CodeWriter(tiny(), [4, 4]).eval()
    torch.nn.init.normal_(two.t5.shared.weight)
    torch.nn.init.normal_(two.t5.decoder.block[0].layer[2].DenseReluDense.wo.weight)
    with torch.inference_mode():
        one.start(QUERIES)
        one.load_state_dict(two.state_dict())
        torch.testing.assert_close(one.start(QUERIES)[1], two.start(QUERIES)[1])


def test_gradients_reach_encoder_decoder_and_codes():
    for codes in ("tokens", "codebooks"):
        writer = T5CodeWriter(tiny(), [4, 4], codes=codes).train()
        sum(logits.logsumexp(-1).sum() for logits in writer(QUERIES, torch.tensor([[1, 2], [3, 0]]))).backward()
        missing = [name for name, parameter in writer.named_parameters() if parameter.grad is None]
        assert not [name for name in missing if "lm_head" not in name]


def test_scores_of_a_large_vocabulary_are_computed_for_the_children_alone():
    torch.manual_seed(0)
    hidden, table = torch.randn(2, 3, 8), torch.randn(50, 8)
    owner, token = torch.tensor([0, 5, 2, 2]), torch.tensor([49, 0, 7, -1])
    sparse = SparseScores(hidden, table).of(owner, token)
    dense = DenseScores(hidden @ table.t()).of(owner, token)
    torch.testing.assert_close(sparse, dense)
    everything = torch.arange(6).repeat_interleave(50), torch.arange(50).repeat(6)
    torch.testing.assert_close(
        SparseScores(hidden, table).of(*everything), DenseScores(hidden @ table.t()).of(*everything)
    )
    assert SparseScores(hidden, table).of(owner[:0], token[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: T5CodeWriter(tiny(), [40]), BadSetting, "vocabulary of 30"),
        (lambda: T5CodeWriter(tiny(), [4], codes="words", vocabulary=[1, 2]), BadSetting, "do not fit"),
        (lambda: T5CodeWriter(tiny(), [4], codes="codebooks", normalise="vocabulary"), BadSetting, "codebooks"),
        (lambda: T5CodeWriter(tiny(feed_forward_proj="silu"), [4])._ready(), Unsupported, "silu"),
    ],
)
def test_what_cannot_be_is_said(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("codes", ["tokens", "codebooks", "words"])
def test_saved_and_loaded_it_writes_the_same(codes, tmp_path, word_tokenizer):
    vocabulary = [7, 3, 9, 20, 11] if codes == "words" else None
    writer = T5CodeWriter(tiny(), [4, 5], codes=codes, vocabulary=vocabulary, tokenizer=word_tokenizer, with_end=True)
    writer.eval().save(tmp_path)
    again = T5CodeWriter.load(tmp_path)
    assert again.widths == (4, 5) and again.with_end and not again.training
    with torch.inference_mode():
        torch.testing.assert_close(again.start(QUERIES)[1], writer.start(QUERIES)[1])
    assert again.tokenize(["a b"]) == writer.tokenize(["a b"])
    (tmp_path / "writer.json").write_text("{")
    with pytest.raises(IndexCorrupt, match="T5 writer"):
        T5CodeWriter.load(tmp_path)


@pytest.fixture
def word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")
