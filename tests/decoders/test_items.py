"""Items and histories: padding counts nothing, sequences look back only, sets know no order, tables grow and shrink."""

from __future__ import annotations

import pytest
import torch

from callslip.decoders.histories import HistoryEncoder, HistoryWriter, ItemTable
from callslip.decoders.writer import CodeWriter
from callslip.errors import BadSetting

TEXTS = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))


def table(kind="both") -> ItemTable:
    torch.manual_seed(0)
    items = ItemTable(9, 8, kind, 5)
    items.set_texts(TEXTS)
    return items


def encoder(kind="sequence", items="both") -> HistoryEncoder:
    torch.manual_seed(0)
    made = HistoryEncoder(table(items), kind, longest=6, layers=2, heads=2)
    for parameter in made.parameters():  # an untrained pool is a mean: give it something to do
        if parameter.dim() == 2 and not parameter.any():
            torch.nn.init.normal_(parameter)
    return made.eval()


@pytest.mark.parametrize("kind", ["id", "text", "both"])
def test_vectors_of_items_are_the_sum_of_what_is_known_of_them(kind):
    items = table(kind)
    expected = torch.zeros(9, 8)
    if kind != "text":
        expected = expected + items.ids.weight[1:]
    if kind != "id":
        expected = expected + TEXTS @ items.project.weight.T
    torch.testing.assert_close(items.all(), expected)
    torch.testing.assert_close(items(torch.tensor([[4, 0]])), torch.stack([expected[3], torch.zeros(8)])[None])


@pytest.mark.parametrize("kind", ["set", "sequence"])
def test_padding_counts_nothing(kind):
    model = encoder(kind)
    alone = model(torch.tensor([[3, 7]]))
    beside = model(torch.tensor([[3, 7, 0, 0, 0], [1, 2, 3, 4, 5]]))
    torch.testing.assert_close(beside.vector[0], alone.vector[0])
    torch.testing.assert_close(beside.states.values[0, :2], alone.states.values[0])
    assert beside.states.mask.tolist() == [[True, True, False, False, False], [True] * 5]


def test_a_sequence_reads_back_only_and_a_set_knows_no_order():
    sequence, group = encoder("sequence"), encoder("set")
    long, short = sequence(torch.tensor([[3, 7, 2, 5]])), sequence(torch.tensor([[3, 7]]))
    torch.testing.assert_close(long.states.values[0, :2], short.states.values[0])
    torch.testing.assert_close(short.vector[0], long.states.values[0, 1])
    assert not torch.allclose(sequence(torch.tensor([[7, 3]])).vector, short.vector, atol=1e-3)
    one, other = group(torch.tensor([[3, 7, 2]])).vector, group(torch.tensor([[2, 3, 7]])).vector
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one, group(torch.tensor([[2, 3, 8]])).vector, atol=1e-3)


@pytest.mark.parametrize("kind", ["set", "sequence"])
def test_a_history_of_nothing_has_a_vector(kind):
    read = encoder(kind)(torch.tensor([[0, 0], [0, 0]]))
    assert read.vector.shape == (2, 8) and torch.isfinite(read.vector).all()


def test_too_long_histories_and_odd_widths_are_refused():
    with pytest.raises(ValueError, match="7 items"):
        encoder()(torch.ones(1, 7, dtype=torch.int64))
    with pytest.raises(BadSetting, match="heads"):
        HistoryEncoder(table(), heads=3)
    with pytest.raises(ValueError, match="vectors for 9 items"):
        table().set_texts(torch.zeros(4, 5))


@pytest.mark.parametrize("kind", ["id", "text", "both"])
def test_a_table_grows_and_shrinks(kind):
    items, before = table(kind), table(kind).all()
    new = torch.randn(2, 5)
    items.extend(new)
    after = items.all()
    torch.testing.assert_close(after[:9], before)
    mean = items.ids.weight[1:10].mean(dim=0) if kind != "text" else 0
    torch.testing.assert_close(after[9:], mean + (new @ items.project.weight.T if kind != "id" else torch.zeros(2, 8)))
    assert items.known().tolist() == [True] * 9 + [kind != "id"] * 2
    items.keep(torch.tensor([2, 5, 10]))
    torch.testing.assert_close(items.all(), after[[2, 5, 10]])
    assert items.count == 3
    again = ItemTable(3, 8, kind, 5)
    again.load_state_dict(items.state_dict())
    again.set_texts(torch.stack([TEXTS[2], TEXTS[5], new[1]]))
    torch.testing.assert_close(again.all(), items.all())


def test_beginnings_are_read_in_one_go():
    model = encoder("sequence")
    histories = torch.tensor([[3, 7, 2, 5], [1, 4, 0, 0]])
    together = model.at(histories, torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0]))
    for vector, beginning in zip(together, ([3, 7], [3, 7, 2, 5], [1]), strict=True):
        torch.testing.assert_close(vector, model(torch.tensor([beginning])).vector[0])
    with pytest.raises(ValueError, match="no prefixes"):
        encoder("set").at(histories, torch.tensor([0]), torch.tensor([0]))


@pytest.mark.parametrize(("engine", "reads"), [("torch", "states"), ("onnx", "states"), ("onnx", "vector")])
@pytest.mark.parametrize("kind", ["set", "sequence"])
def test_what_is_searched_is_what_is_trained(kind, engine, reads):
    """`start` and `advance` give the logits of teacher forcing, with histories of several lengths in one batch."""
    torch.manual_seed(0)
    writer = CodeWriter(8, [4, 5, 3], width=16, layers=2, heads=2, reads=reads, engine=engine)
    model = HistoryWriter(encoder(kind), writer).eval()
    histories = torch.tensor([[3, 7, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]])
    codes = torch.tensor([[1, 4, 2], [0, 0, 0], [3, 2, 1]])
    with torch.inference_mode():
        expected = [logits.log_softmax(-1) for logits in model(histories, codes)]
        state, scores = model.start(histories)
        torch.testing.assert_close(scores[:, 0], expected[0], atol=1e-4, rtol=1e-4)
        parents = torch.zeros(3, 1, dtype=torch.int64)
        for level in (1, 2):
            scores = model.advance(state, parents, codes[:, level - 1 : level])
            torch.testing.assert_close(scores[:, 0], expected[level], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(model.read(histories), codes)[2], model(histories, codes)[2])
