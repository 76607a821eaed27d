"""ONNX's operators as backends: what the adapter presents, what the evaluators refuse, and where they are wrong."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.backends.bases.numpy import NDArray
from attnspec.spec import OPERATIONS, QUESTIONS, GRUParameters, LSTMParameters, ShapeError

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnx
import onnxruntime

from attnspec.backends.onnx_native import reference as evaluator
from attnspec.backends.onnx_native import runtime

BACKENDS: list[Any] = [runtime.backend, evaluator.backend]
everywhere = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)


def draw(*shape: int, dtype: Any = np.float32) -> NDArray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def weights(record: type, d: int, h: int, dtype: Any = np.float32) -> Any:
    shapes = {"w_x": (d, h), "w_h": (h, h), "b_": (h,)}
    drawn = np.random.default_rng(d + h)
    return record(
        *(
            drawn.normal(size=next(s for k, s in shapes.items() if f.name.startswith(k))).astype(dtype)
            for f in fields(record)
        )
    )


@everywhere
def test_what_it_provides(backend: Any) -> None:
    assert {n for n in OPERATIONS if hasattr(backend, n)} == {"scaled_dot_product_attention", "gru", "lstm"}


@everywhere
def test_it_declares_its_deviations(backend: Any) -> None:
    deviations = {q: getattr(backend.semantics, q) for q in QUESTIONS}
    expected = {"masked_nonfinite": "propagates", "no_keys": "error"}
    assert {q: c for q, c in deviations.items() if c != QUESTIONS[q].normative} == expected


@everywhere
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_attention_is_the_formula(backend: Any, batch: tuple[int, ...], causal: bool, masked: bool) -> None:
    query, key, value = draw(*batch, 4, 8), draw(6, 8), draw(*batch, 6, 5)
    mask = draw(4, 6) > 0 if masked else None
    expected = reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    found = backend.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@everywhere
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_what_is_empty_has_an_empty_result(backend: Any, shape: tuple[int, int, int]) -> None:
    batch, n, m = shape
    found = backend.scaled_dot_product_attention(draw(batch, n, 6), draw(batch, m, 6), draw(batch, m, 5))
    assert found.shape == (batch, n, 5)


@everywhere
def test_no_keys_are_refused(backend: Any) -> None:
    with pytest.raises((ValueError, onnxruntime.capi.onnxruntime_pybind11_state.Fail)):
        backend.scaled_dot_product_attention(draw(3, 4), draw(0, 4), draw(0, 4))


@everywhere
@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_recurrent_networks_are_the_formula(backend: Any, batch: tuple[int, ...], steps: int) -> None:
    x, h, c = draw(*batch, steps, 5), draw(3), draw(*batch, 3) + 1
    for name, record, state in (("gru", GRUParameters, h), ("lstm", LSTMParameters, (h, c))):
        parameters = weights(record, 5, 3)
        expected = getattr(reference, name)(x, state, parameters)
        found = getattr(backend, name)(x, state, parameters)
        for ours, theirs in zip(flat(found), flat(expected), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def flat(value: Any) -> list[NDArray]:
    return [x for part in value for x in flat(part)] if isinstance(value, tuple) else [value]


def test_the_runtime_takes_lengths() -> None:
    x, state, parameters, lengths = draw(3, 4, 5), draw(3, 3), weights(GRUParameters, 5, 3), np.array([4, 1, 2])
    found = runtime.backend.gru(x, state, parameters, lengths=lengths)
    expected = reference.gru(x, state, parameters, lengths=lengths)
    for ours, theirs in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@everywhere
@pytest.mark.parametrize("length", [-1, 5])
def test_lengths_out_of_range_raise(backend: Any, length: int) -> None:
    message = rf"^gru: lengths: expected lengths in 0\.\.4; got {length}$"
    with pytest.raises(ShapeError, match=message):
        backend.gru(draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3), lengths=np.array([1, length]))


def test_a_session_is_made_once_for_a_kind_of_call() -> None:
    runtime._session.cache_clear()
    for n in (2, 3):
        runtime.backend.scaled_dot_product_attention(draw(n, 4), draw(5, 4), draw(5, 4))
    assert runtime._session.cache_info().misses == 1


def test_the_runtime_refuses_recurrent_networks_of_doubles() -> None:
    x, state, parameters = draw(4, 5, dtype="f8"), draw(3, dtype="f8"), weights(GRUParameters, 5, 3, "f8")
    with pytest.raises(Exception, match="GRU operator does not support double yet"):
        runtime.backend.gru(x, state, parameters)


# Where the libraries violate the contract: as their modules say, for the versions that they name. ------------------


def stated(module: Any, library: Any) -> bool:
    """Whether a module's text is about the version that is installed."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    found = re.search(rf"in {library.__name__} ([\d.]+[\d])", text)
    return found is not None and found[1] == library.__version__


needs_runtime = pytest.mark.skipif(not stated(runtime, onnxruntime), reason="another version of ONNX Runtime")
needs_evaluator = pytest.mark.skipif(not stated(evaluator, onnx), reason="another version of onnx")


@needs_runtime
def test_the_scale_of_doubles_is_that_of_float32() -> None:
    query, key, value = (np.array(x) for x in ([[1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[1.0], [0.0]]))
    found = runtime.backend.scaled_dot_product_attention(query, key, value).item()
    exact = reference.scaled_dot_product_attention(query, key, value).item()
    assert 1e-10 < abs(found - exact) < 1e-7


@needs_runtime
def test_a_sequence_of_length_0_ends_in_zeros() -> None:
    x, state, parameters = draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3)
    _, final = runtime.backend.gru(x, state, parameters, lengths=np.array([0, 4]))
    assert state[0].all()
    assert not final[0].any()


@needs_evaluator
def test_the_reference_evaluator_ignores_lengths() -> None:
    x, state, parameters = draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3)
    cut, whole = (evaluator.backend.gru(x, state, parameters, lengths=n) for n in (np.array([1, 2]), None))
    assert all(np.array_equal(a, b) for a, b in zip(cut, whole, strict=True))
