"""ONNX's attention, recurrent networks, RMS norm and rotary embedding, by its reference evaluator and ONNX Runtime.

Both run unmodified on the CPU. The adapter flattens batches, joins the weights of gates, and evaluates a model of one
operator. A mask beside a bias becomes −∞ in the bias; a negative scale, which ONNX lacks, negates the query. Empty
results and sequences without steps are not evaluated. Not available: gradients, slopes, sinks, logarithms of sums, and
in float64 RMS norms, whose ε is float32, and rotary embeddings. Windows need opset 25. ONNX Runtime has a kernel of
Attention up to opset 24, and decomposes later ones. It has no float64 networks and no bfloat16; in float16 it scales
queries and keys before their product. The reference evaluator's float16 products are NumPy's, for which there is no
precision class. docs/adapters.md lists the violations.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from attnspec.backends.bases.numpy import NDArray, NumPyBackend, refuse_out_of_range
from attnspec.spec import OPERATIONS, Limits, Semantics, bind


@cache
def _session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4  # 4 logs fatal errors only; others are raised
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _flat(x: NDArray, batch: tuple[int, ...], *core: int) -> NDArray:
    """Return x with one flattened batch dimension before the `core` sizes."""
    return np.broadcast_to(x, (*batch, *core)).reshape(prod(batch), *core)


class Onnx(NumPyBackend):
    """One of the two evaluators: masked NaN and infinity propagate; calls without keys are errors.

    With lengths, causal masks are aligned at the last key within each length.
    """

    semantics = Semantics(masked_nonfinite="propagates", no_keys="error", length_alignment="at-length")

    def __init__(self, name: str, load: Callable[[bytes], Any], limits: Limits, **precision: str) -> None:
        self.name, self.load, self.limits = name, load, limits
        self.precision = dict.fromkeys(("scaled_dot_product_attention", "grouped_query_attention"), precision)
        self.gru, self.lstm = (partial(self._recurrent, *x) for x in (("gru", "zrh"), ("lstm", "iofc")))

    def _run(self, operator: str, inputs: list[NDArray | None], outputs: int, **attributes: Any) -> Any:
        """Evaluate one operator; None omits an input or attribute; results have the first input's dtype."""
        opset = 25 if attributes.get("left_window_size") is not None else OPSETS.get(operator, 24)
        arrays = {f"x{i}": np.ascontiguousarray(x) for i, x in enumerate(inputs) if x is not None}
        kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in arrays.items()}
        input_infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
        output_infos = [helper.make_tensor_value_info(f"y{i}", kinds["x0"], None) for i in range(outputs)]
        names = [f"x{i}" if f"x{i}" in arrays else "" for i in range(len(inputs))]
        node = helper.make_node(operator, names, [x.name for x in output_infos], **attributes)
        graph = helper.make_graph([node], operator, input_infos, output_infos)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12)
        return self.load(model.SerializeToString()).run(None, arrays)

    def scaled_dot_product_attention(
        self, query: NDArray, key: NDArray, value: NDArray, *, mask: NDArray | None = None, causal: bool = False
    ) -> NDArray:
        """softmax(QKᵀ/√d)V, as one head."""
        bind(OPERATIONS["scaled_dot_product_attention"], {"query": query, "key": key, "value": value, "mask": mask})
        q, k, v = (x[..., None, :, :] for x in (query, key, value))
        return self.grouped_query_attention(q, k, v, mask=mask, causal=causal)[0][..., 0, :, :]

    def grouped_query_attention(
        self, query: NDArray, key: NDArray, value: NDArray, *, mask: NDArray | None = None, causal: bool = False,
        scale: float | None = None, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
        bias: NDArray | None = None, slopes: NDArray | None = None, sinks: NDArray | None = None,
        key_lengths: NDArray | None = None,
    ) -> tuple[NDArray, NDArray | None]:  # fmt: skip
        """ONNX's Attention: mask or bias as attn_mask, lengths as nonpad_kv_seqlen."""
        arguments = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias, "key_lengths": key_lengths}
        bound = bind(OPERATIONS["grouped_query_attention"], arguments)
        batch, shape, (n, m) = bound.batch, bound.result, (query.shape[-2], key.shape[-2])
        if not prod(shape):
            return np.empty(shape, query.dtype), None
        if key_lengths is not None:
            refuse_out_of_range("grouped_query_attention", "key_lengths", key_lengths, m)
            key_lengths = _flat(key_lengths, batch).astype(np.int64)
        mask_or_bias = None if mask is None else mask[..., None, :, :]
        if bias is not None:
            mask_or_bias = bias if mask_or_bias is None else np.where(mask_or_bias, bias, -np.inf)
        q, k, v = (_flat(x, batch, *x.shape[-3:]) for x in (query, key, value))
        added = None if mask_or_bias is None else _flat(mask_or_bias, batch, mask_or_bias.shape[-3], n, m)
        left, right = (None, None) if window is None else (-1 if x is None else x for x in window)
        if scale is not None and scale < 0:
            q, scale = -q, -scale
        options = {"scale": scale, "softcap": softcap, "left_window_size": left, "right_window_size": right}
        results = self._run("Attention", [q, k, v, added, None, None, key_lengths], 1, is_causal=int(causal), **options)
        return results[0].reshape(shape), None

    def _recurrent(
        self, name: str, gates: str, x: NDArray, state: Any, parameters: Any, *, lengths: NDArray | None = None
    ) -> tuple[NDArray, Any]:
        """Run a network; a GRU resets before the recurrent product (linear_before_reset = 0)."""
        bound = bind(OPERATIONS[name], {"x": x, "state": state, "parameters": parameters, "lengths": lengths})
        batch, (steps, h) = bound.batch, bound.result[-2:]
        initial = [np.broadcast_to(s, (*batch, h)) for s in (state if isinstance(state, tuple) else (state,))]
        if lengths is not None:
            refuse_out_of_range(name, "lengths", lengths, steps)
            lengths = _flat(lengths, batch).astype(np.int32)
        states, final = np.zeros(bound.result, x.dtype), [s.copy() for s in initial]
        if states.size:
            w_x, w_h, b = (np.concatenate([getattr(parameters, p + g) for g in gates], -1).T for p in _WEIGHTS)
            inputs = [_flat(x, batch, *x.shape[-2:]).swapaxes(0, 1), w_x[None], w_h[None], np.pad(b, (0, len(b)))[None]]
            starts = [_flat(s, batch, h)[None] for s in initial]
            hidden, *final = self._run(name.upper(), [*inputs, lengths, *starts], 1 + len(starts), hidden_size=h)
            states = hidden[:, 0].swapaxes(0, 1).reshape(bound.result)
        final = [s.reshape(*batch, h) for s in final]
        return states, tuple(final) if isinstance(state, tuple) else final[0]

    def rms_norm(self, x: NDArray, weight: NDArray, *, epsilon: float = 1e-6) -> NDArray:
        """RMSNormalization of the last axis."""
        bind(OPERATIONS["rms_norm"], {"x": x, "weight": weight})
        return np.asarray(self._run("RMSNormalization", [x, weight], 1, epsilon=epsilon)[0])

    def rotary_embedding(self, x: NDArray, positions: NDArray | None = None, *, theta: float = 10000.0) -> NDArray:
        """RotaryEmbedding; ONNX takes cosines and sines, which are computed in float64."""
        bind(OPERATIONS["rotary_embedding"], {"x": x, "positions": positions})
        n, d = x.shape[-2:]
        along = np.arange(n) if positions is None else positions
        return self.axial_rotary_embedding(x, along[..., None], theta ** (-np.arange(0, d, 2) / d)[None])

    def axial_rotary_embedding(self, x: NDArray, positions: NDArray, frequencies: NDArray) -> NDArray:
        """RotaryEmbedding of the first features; ONNX takes cosines and sines, which are computed in float64."""
        arguments = {"x": x, "positions": positions, "frequencies": frequencies}
        bound = bind(OPERATIONS["axial_rotary_embedding"], arguments)
        shape, batch, pairs = bound.result, bound.batch, frequencies.shape[-1]
        if not prod(shape):
            return np.empty(shape, x.dtype)
        angles = _flat(positions @ frequencies.astype(np.float64), batch, shape[-2], pairs)
        tables = [f(angles).astype(x.dtype) for f in (np.cos, np.sin)]
        inputs: list[NDArray | None] = [_flat(x, batch, *shape[-2:])[:, None], *tables]
        results = self._run("RotaryEmbedding", inputs, 1, interleaved=1, rotary_embedding_dim=2 * pairs)
        return np.asarray(results[0].reshape(shape))


class Evaluator(Onnx):
    """The reference evaluator, which has linear attention too; ONNX Runtime does not run its decomposition."""

    def linear_attention(
        self, query: NDArray, key: NDArray, value: NDArray, state: NDArray, *, decay: NDArray | None = None,
        beta: NDArray | None = None, scale: float | None = None,
    ) -> tuple[NDArray, NDArray]:  # fmt: skip
        """LinearAttention, whose heads are packed into the last axis."""
        arguments = {"query": query, "key": key, "value": value, "state": state, "decay": decay, "beta": beta}
        bound = bind(OPERATIONS["linear_attention"], arguments)
        shape, final = bound.result, (*bound.batch, *state.shape[-3:])
        if not prod(shape):
            return np.empty(shape, query.dtype), np.broadcast_to(state, final).copy()

        def packed(x: NDArray) -> NDArray:
            flat = _flat(x, bound.batch, *x.shape[-3:])
            return flat.swapaxes(1, 2).reshape(len(flat), x.shape[-2], -1)

        optional = [None if x is None else packed(x) for x in (decay, None if beta is None else beta[..., None])]
        inputs = [*map(packed, (query, key, value)), _flat(state, bound.batch, *final[-3:]), *optional]
        rule = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
        attributes = {"update_rule": rule[decay is not None, beta is not None], "scale": scale}
        heads = {"q_num_heads": shape[-3], "kv_num_heads": final[-3]}
        output, state = self._run("LinearAttention", inputs, 2, **attributes, **heads)
        output = output.reshape(prod(bound.batch), shape[-2], shape[-3], shape[-1]).swapaxes(1, 2)
        return output.reshape(shape), state.reshape(final)


OPSETS = {"LinearAttention": 27}
"""Operator sets of ONNX that have an operator which older ones lack."""

_WEIGHTS = ("w_x", "w_h", "b_")
_ROTARY = ("rotary_embedding", "axial_rotary_embedding")
_SINGLE: dict[str, tuple[str, ...]] = dict.fromkeys(("rms_norm", "linear_attention", *_ROTARY), ("float32",))
_NARROW: dict[str, tuple[str, ...]] = dict.fromkeys(("gru", "lstm", *_ROTARY), ("float32", "float16"))
_OPTIONS = "scale window softcap bias key_lengths lengths epsilon positions theta decay beta"
_LIMITS = Limits(features=tuple(_OPTIONS.split()), dtypes_by_operation=_SINGLE)
_HALF = replace(_LIMITS, dtypes=("float64", "float32", "float16"), dtypes_by_operation=_SINGLE | _NARROW)
reference = Evaluator("onnx-reference", cache(ReferenceEvaluator), _LIMITS)
runtime = Onnx("onnx-runtime", _session, _HALF, float16="prescaled-float16")
