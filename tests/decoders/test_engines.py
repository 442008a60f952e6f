"""The engines that run decoders: torch's and ONNX Runtime's against each other and against the modules' own forward."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.decoders.engines import packed
from callslip.decoders.engines.engine import Affine, engine_for
from callslip.decoders.writer import CodeWriter, States


def engines() -> list[str]:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        return ["torch"]
    return ["torch", "onnx"]


def writer(widths, engine: str, **more) -> CodeWriter:
    torch.manual_seed(0)
    model = CodeWriter(10, widths, width=24, layers=2, heads=3, memory_slots=2, engine=engine, **more)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.mark.parametrize("reads", ["vector", "states"])
@pytest.mark.parametrize("engine", engines())
def test_steps_equal_teacher_forcing(engine, reads):
    """Any walk through the beams: each beam's scores are those of its own prefix, decoded alone."""
    model = writer([4, 5, 3, 6], engine, reads=reads)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 10_000), st.integers(1, 3))
    def check(seed, size):
        rng = np.random.default_rng(seed)
        if reads == "vector":
            queries = torch.from_numpy(rng.normal(size=(size, 10)).astype(np.float32))
        else:
            lengths = rng.integers(1, 6, size)
            mask = torch.from_numpy((np.arange(5) < lengths[:, None]).astype(np.int64))
            queries = States(torch.from_numpy(rng.normal(size=(size, 5, 10)).astype(np.float32)), mask)
        with torch.inference_mode():
            state, step = model.start(queries)
            prefixes = [[[]] for _ in range(size)]
            for level in range(4):
                for query in range(size):
                    for beam, prefix in enumerate(prefixes[query]):
                        code = torch.tensor([prefix + [0] * (4 - len(prefix))])
                        alone = model(queries[query : query + 1], code)[level][0].log_softmax(-1)
                        torch.testing.assert_close(step[query, beam], alone, atol=2e-4, rtol=1e-3)
                if level == 3:
                    break
                beams = int(rng.integers(1, 5))
                parents = rng.integers(0, len(prefixes[0]), (size, beams))
                tokens = rng.integers(0, model.widths[level], (size, beams))
                prefixes = [
                    [prefixes[q][p] + [int(t)] for p, t in zip(parents[q], tokens[q], strict=True)] for q in range(size)
                ]
                step = model.advance(state, torch.from_numpy(parents), torch.from_numpy(tokens))

    check()


@pytest.mark.parametrize("engine", engines())
def test_a_fork_goes_on_alone(engine):
    model = writer([4, 4, 4], engine)
    with torch.inference_mode():
        state, _ = model.start(torch.randn(1, 10))
        zero = torch.zeros(1, 1, dtype=torch.long)
        forks = [state.fork() for _ in range(2)]
        one, two = model.advance(forks[0], zero, zero), model.advance(forks[1], zero, zero + 3)
        assert state.written == 1 and forks[0].written == 2
        assert not torch.allclose(one, two)
        torch.testing.assert_close(model.advance(state, zero, zero), one)


@pytest.mark.parametrize("engine", engines())
def test_an_engine_follows_the_weights(engine):
    """Training, loading and moving make the laid-out weights stale."""
    model = writer([4, 4], engine)
    query, code = torch.randn(1, 10), torch.zeros(1, 2, dtype=torch.long)

    def first() -> torch.Tensor:
        with torch.inference_mode():
            return model.start(query)[1][0, 0]

    before = first()
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    sum(logits.logsumexp(-1).sum() for logits in model(query, code)).backward()
    optimiser.step()
    model.eval()
    after = first()
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, model(query, code)[0][0].log_softmax(-1).detach(), atol=1e-4, rtol=1e-3)
    model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    torch.testing.assert_close(first(), torch.full((4,), -np.log(4.0), dtype=torch.float32))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_packed_products_are_plain_products(activation, rows, monkeypatch):
    torch.manual_seed(rows)
    affine = Affine(torch.randn(13, 9), torch.randn(13))
    x, residual = torch.randn(rows, 9), torch.randn(rows, 13)
    found = packed.PackedLinear(affine)
    monkeypatch.setattr(packed, "onednn_packs", lambda: False)
    plain = packed.PackedLinear(affine)
    assert not plain.packs
    torch.testing.assert_close(found(x, activation), plain(x, activation), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.added(x, residual), residual + x @ affine.weight.t() + affine.bias)


def test_without_onnxruntime_torch_runs_the_decoder(monkeypatch):
    model = writer([4, 4], "auto")
    monkeypatch.setattr("callslip.decoders.engines.engine.find_spec", lambda name: None)
    assert type(model._ready()).__name__ == "TorchEngine"
    monkeypatch.setitem(sys.modules, "onnx", None)
    with torch.inference_mode():
        assert model.start(torch.randn(2, 10))[1].shape == (2, 1, 4)


def test_only_float32_on_a_cpu_goes_to_onnx():
    weights = writer([4, 4], "torch").double()
    assert type(engine_for(weights_of(weights))).__name__ == "TorchEngine"


def weights_of(model: CodeWriter):
    from callslip.decoders.engines.engine import DecoderWeights
    from callslip.decoders.writer import _norm

    return DecoderWeights([layer.weights() for layer in model.layers], _norm(model.norm), 3)
