"""ONNX's operators as backends: what they provide, what they refuse, where they are wrong."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.backends.bases.numpy import NDArray
from attnspec.reference.defining.choices import choosing
from attnspec.spec import OPERATIONS, QUESTIONS, GRUParameters, LSTMParameters, ShapeError

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnx
import onnxruntime

from attnspec.backends.onnx_native import reference as evaluator
from attnspec.backends.onnx_native import runtime
from attnspec.backends.onnx_native.running import session
from tests.budgets import assert_within_budgets

BACKENDS: list[Any] = [runtime, evaluator]
DOCUMENTED = Path(__file__).parents[2] / "docs" / "adapters.md"
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
def test_the_backend_provides_these_operations(backend: Any) -> None:
    expected = {"scaled_dot_product_attention", "grouped_query_attention", "gru", "lstm", "rms_norm"}
    expected |= {"rotary_embedding", "axial_rotary_embedding"}
    assert {n for n in OPERATIONS if hasattr(backend, n)} == expected | ({"linear_attention"} & {*dir(backend)})
    assert hasattr(backend, "linear_attention") == (backend is evaluator)


@everywhere
def test_it_declares_its_deviations(backend: Any) -> None:
    deviations = {q: getattr(backend.semantics, q) for q in QUESTIONS}
    expected = {"masked_nonfinite": "propagates", "no_keys": "error", "length_alignment": "at-length"}
    assert {q: c for q, c in deviations.items() if c != QUESTIONS[q].normative} == expected


@everywhere
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_attention_is_the_formula(backend: Any, batch: tuple[int, ...], causal: bool, masked: bool) -> None:
    query, key, value = draw(*batch, 4, 8), draw(6, 8), draw(*batch, 6, 5)
    mask = draw(4, 6) > 0 if masked else None
    result = backend.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)
    assert result.dtype == np.float32
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, value, mask=mask, causal=causal)


LENGTHS = np.array([[2], [4], [6]])
CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "scale and softcap": {"scale": 0.25, "softcap": 2.0},
    "a negative scale": {"scale": -0.5},
    "a bias for all heads": {"bias": draw(1, 4, 6)},
    "a bias and a mask": {"bias": draw(4, 4, 1), "mask": draw(2, 1, 6) > -1, "causal": True},
    "a window": {"window": (2, 1)},
    "a window to the left, and a mask": {"window": (1, None), "mask": draw(2, 1, 6) > -1},
    "lengths": {"key_lengths": LENGTHS},
    "lengths and causal": {"key_lengths": LENGTHS, "causal": True},
    "lengths, causal and a window": {"key_lengths": LENGTHS, "causal": True, "window": (1, 0)},
    "lengths, causal, a mask and a bias": {
        "key_lengths": LENGTHS, "causal": True, "mask": draw(4, 6) > -1, "bias": draw(4, 4, 6)
    },
}  # fmt: skip


@everywhere
@pytest.mark.parametrize("options", CHOICES.values(), ids=CHOICES)
def test_heads_share_keys_and_values(backend: Any, options: dict[str, Any]) -> None:
    query, key, value = draw(2, 4, 4, 8), draw(2, 6, 8), draw(3, 1, 2, 6, 5)
    result, logarithms = backend.grouped_query_attention(query, key, value, **options)
    assert logarithms is None
    assert result.dtype == np.float32
    with choosing(length_alignment=backend.semantics.length_alignment):
        assert_within_budgets((result, None), "grouped_query_attention", query, key, value, **options)


@everywhere
def test_rows_without_keys_are_zero(backend: Any) -> None:
    query, key, value = draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6)
    result, _ = backend.grouped_query_attention(query, key, value, key_lengths=np.array([0, 5]))
    assert not result[0].any()
    assert result[1].all()


@everywhere
@pytest.mark.parametrize("length", [-1, 6])
def test_lengths_of_keys_out_of_range_raise(backend: Any, length: int) -> None:
    message = rf"^grouped_query_attention: key_lengths: expected key_lengths in 0\.\.5; got {length}$"
    with pytest.raises(ShapeError, match=message):
        backend.grouped_query_attention(
            draw(2, 4, 3, 8), draw(2, 2, 5, 8), draw(2, 2, 5, 6), key_lengths=np.array([1, length])
        )


@everywhere
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_empty_batches_and_queries_give_empty_results(backend: Any, shape: tuple[int, int, int]) -> None:
    batch, n, m = shape
    result = backend.scaled_dot_product_attention(draw(batch, n, 6), draw(batch, m, 6), draw(batch, m, 5))
    assert result.shape == (batch, n, 5)


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
        assert_within_budgets(getattr(backend, name)(x, state, parameters), name, x, state, parameters)


@everywhere
@pytest.mark.parametrize("batch", [(), (3,), (2, 0)])
def test_norms_and_rotary_embeddings_are_the_formula(backend: Any, batch: tuple[int, ...]) -> None:
    x, weight, positions, frequencies = draw(*batch, 5, 8), draw(8), np.arange(10).reshape(5, 2), draw(2, 3)
    for name, *arguments in (
        ("rms_norm", x, weight),
        ("rotary_embedding", x, np.array([7, 0, 900, 3, 4])),
        ("axial_rotary_embedding", x, positions, frequencies),
    ):
        assert_within_budgets(getattr(backend, name)(*arguments), name, *arguments)


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("names", [(), ("decay",), ("beta",), ("decay", "beta")], ids="-".join)
@pytest.mark.parametrize("decays", [1, 8])
def test_linear_attention_is_the_formula(decays: int, names: tuple[str, ...], steps: int) -> None:
    drawn = {"decay": -np.abs(draw(2, 2, steps, decays)), "beta": np.abs(draw(2, 2, steps)) % 1}
    options: dict[str, Any] = {name: drawn[name] for name in names}
    query, key, value, state = draw(2, 4, steps, 8), draw(2, 2, steps, 8) / 3, draw(2, 2, steps, 6), draw(2, 8, 6)
    result = evaluator.linear_attention(query, key, value, state, **options)
    assert_within_budgets(result, "linear_attention", query, key, value, state, **options)


def test_the_runtime_takes_lengths() -> None:
    x, state, parameters, lengths = draw(3, 4, 5), draw(3, 3), weights(GRUParameters, 5, 3), np.array([4, 1, 2])
    result = runtime.gru(x, state, parameters, lengths=lengths)
    assert_within_budgets(result, "gru", x, state, parameters, lengths=lengths)


@everywhere
@pytest.mark.parametrize("length", [-1, 5])
def test_lengths_out_of_range_raise(backend: Any, length: int) -> None:
    message = rf"^gru: lengths: expected lengths in 0\.\.4; got {length}$"
    with pytest.raises(ShapeError, match=message):
        backend.gru(draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3), lengths=np.array([1, length]))


def test_a_session_is_made_once_for_a_kind_of_call() -> None:
    session.cache_clear()
    for n in (2, 3):
        runtime.scaled_dot_product_attention(draw(n, 4), draw(5, 4), draw(5, 4))
    assert session.cache_info().misses == 1


def test_the_runtime_refuses_recurrent_networks_of_doubles() -> None:
    x, state, parameters = draw(4, 5, dtype="f8"), draw(3, dtype="f8"), weights(GRUParameters, 5, 3, "f8")
    with pytest.raises(Exception, match="GRU operator does not support double yet"):
        runtime.gru(x, state, parameters)


# Where the libraries violate the contract: as docs/adapters.md says, for the versions that it names. ----------------


def is_documented_version(library: Any) -> bool:
    match = re.search(rf"with {library.__name__} ([\d.]+\d)", DOCUMENTED.read_text(encoding="utf-8"))
    return match is not None and match[1] == library.__version__


needs_runtime = pytest.mark.skipif(not is_documented_version(onnxruntime), reason="another version of ONNX Runtime")
needs_evaluator = pytest.mark.skipif(not is_documented_version(onnx), reason="another version of onnx")


@needs_runtime
def test_the_scale_of_doubles_is_that_of_float32() -> None:
    query, key, value = (np.array(x) for x in ([[1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[1.0], [0.0]]))
    result = runtime.scaled_dot_product_attention(query, key, value).item()
    exact = reference.scaled_dot_product_attention(query, key, value).item()
    assert 1e-10 < abs(result - exact) < 1e-7


@needs_evaluator
def test_the_root_of_a_scale_of_doubles_is_that_of_float32() -> None:
    query, key, value = (np.array(x)[None] for x in ([[1.0]], [[1.0], [0.0]], [[1.0], [0.0]]))
    result, exact = (b.grouped_query_attention(query, key, value, scale=0.5)[0].item() for b in (evaluator, reference))
    assert 1e-10 < abs(result - exact) < 1e-7


@needs_runtime
def test_a_sequence_of_length_0_ends_in_zeros() -> None:
    x, state, parameters = draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3)
    _, final = runtime.gru(x, state, parameters, lengths=np.array([0, 4]))
    assert state[0].all()
    assert not final[0].any()


@needs_evaluator
def test_the_reference_evaluator_ignores_lengths() -> None:
    x, state, parameters = draw(2, 4, 5), draw(2, 3), weights(GRUParameters, 5, 3)
    cut, whole = (evaluator.gru(x, state, parameters, lengths=n) for n in (np.array([1, 2]), None))
    assert all(np.array_equal(a, b) for a, b in zip(cut, whole, strict=True))


@needs_runtime
def test_the_runtime_refuses_a_scale_of_0() -> None:
    query, key = draw(2, 3, 4), draw(1, 5, 4)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="scale"):
        runtime.grouped_query_attention(query, key, key, scale=0.0)
