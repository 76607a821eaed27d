"""ONNX's own node tests of attention, convolutions, recurrent networks and RMS norms: outputs within our budgets.

In 16 bits ONNX scales both factors of a product and stores scores, as the `eager` classes do.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.backends.bases.numpy import NDArray
from attnspec.reference.defining.choices import choosing
from attnspec.reference.kernels import capped, scaled
from attnspec.spec import GRUParameters, LSTMParameters, RNNParameters
from tests.budgets import SIXTEEN_BITS, assert_within_budgets

pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import defs, helper
from onnx.backend.test.case import node as onnx_cases

Named = Mapping[str, Any]
Comparison = tuple[Any, Any, dict[str, Any]]
"""ONNX's expected result, the formula or name of our operation, and its arguments."""

LACKING = {"test_lstm_with_peepholes": "P"}
"""Cases with an input that no operation of ours has: P holds peepholes, by which gates read the state of the cell."""

# Each import adds the cases of one operator.
for module in ("attention", "causal_conv_with_state", "gru", "linear_attention", "lstm", "rmsnormalization", "rnn"):
    importlib.import_module(f"{onnx_cases.__name__}.{module}")
# Cases with more nodes repeat another one with the operator's definition.
CASES = {case.name: case for case in onnx_cases._NodeTestCases if len(case.model.graph.node) == 1}


def read(case: Any) -> tuple[str, Named, Named, Named]:
    """Return a case's operator, attributes, inputs and expected outputs, by ONNX's names."""
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    schema = defs.get_schema(node.op_type, case.model.opset_import[0].version)
    named_inputs, named_outputs = (
        dict(zip([f.name for f, name in zip(formal, names, strict=False) if name], arrays, strict=True))
        for formal, names, arrays in ((schema.inputs, node.input, inputs), (schema.outputs, node.output, outputs))
    )
    return node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute}, named_inputs, named_outputs


def attention(attributes: Named, inputs: Named, outputs: Named) -> Iterator[Comparison]:
    """Yield the comparisons of Attention."""

    sides = ("left_window_size", "right_window_size")
    known = {"q_num_heads", "kv_num_heads", "is_causal", "scale", "softcap", *sides}
    # A wider precision of the softmax is within the budgets of a narrower one.
    assert set(attributes) <= known | {"softmax_precision", "qk_matmul_output_mode"}

    def in_heads(x: NDArray, heads: str) -> NDArray:
        return x if x.ndim == 4 else x.reshape(*x.shape[:2], attributes[heads], -1).swapaxes(1, 2)

    query, key, value = (
        in_heads(inputs[x], y) for x, y in (("Q", "q_num_heads"), ("K", "kv_num_heads"), ("V", "kv_num_heads"))
    )
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[-2]
        key, value = (np.concatenate([inputs[f"past_{x}"], y], -2) for x, y in (("key", key), ("value", value)))
    output, n, m = in_heads(outputs["Y"], "q_num_heads"), query.shape[-2], key.shape[-2]
    scale, softcap = (attributes.get(x) or None for x in ("scale", "softcap"))
    left, right = (None if x < 0 else x for x in (attributes.get(side, -1) for side in sides))
    causal, window = bool(attributes.get("is_causal")), (left, right)
    mask = bias = None
    if (attn_mask := inputs.get("attn_mask")) is not None:
        missing = [(0, 0)] * (attn_mask.ndim - 1) + [(0, m - attn_mask.shape[-1])]
        attn_mask = np.pad(attn_mask, missing, constant_values=False if attn_mask.dtype == bool else -np.inf)
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        if attn_mask.dtype != bool:
            bias = attn_mask
        elif attn_mask.shape[1] == 1:
            mask = attn_mask[:, 0]
        else:  # heads with masks of their own become elements of the batch
            mask, group = attn_mask, query.shape[1] // key.shape[1]
            key, value = (np.repeat(x, group, 1)[:, :, None] for x in (key, value))
            query, output = query[:, :, None], output[:, :, None]
            outputs = {name: x[:, :, None] for name, x in outputs.items() if name == "qk_matmul_output"}
    if past:  # positions count from the first key that is cached
        seen = reference.sliding_window_mask(past + n, m, window=(left, 0 if causal else right))[past:]
        mask, causal, window = seen if mask is None else mask & seen, False, (None, None)
    arguments = {"query": query, "key": key, "mask": mask, "causal": causal, "scale": scale, "window": window}
    arguments |= {"softcap": softcap, "bias": bias, "key_lengths": inputs.get("nonpad_kv_seqlen")}
    yield (output, None), "grouped_query_attention", {**arguments, "value": value}
    for name, x in (("present_key", key), ("present_value", value)):
        if name in outputs:
            assert np.array_equal(outputs[name], x)
    if "qk_matmul_output" in outputs:
        product, mode = outputs["qk_matmul_output"], attributes.get("qk_matmul_output_mode", 0)
        if mode == 3:
            yield product, "attention_weights", arguments
        else:
            allowed = reference.sliding_window_mask(n, m, window=(None, 0)) if causal else mask
            if allowed is not None:
                bias = np.where(np.expand_dims(allowed, -3), 0 if bias is None else bias, -np.inf).astype(query.dtype)

            def scores(query: Any, key: Any, bias: Any = None) -> Any:
                products = scaled(query @ np.swapaxes(key, -1, -2), query.shape[-1], scale)
                products = capped(products, softcap) if mode else products
                return products if bias is None else products + bias

            key = np.repeat(key, query.shape[-3] // key.shape[-3], -3)
            yield product, scores, {"query": query, "key": key} | ({"bias": bias} if mode == 2 else {})


def linear_attention(attributes: Named, inputs: Named, outputs: Named) -> Iterator[Comparison]:
    """Yield the comparison of LinearAttention, whose heads are packed into the last dimension."""
    assert set(attributes) <= {"q_num_heads", "kv_num_heads", "scale", "update_rule"}
    rule, heads_k = attributes.get("update_rule", b"gated_delta"), attributes["kv_num_heads"]
    assert ("decay" in inputs, "beta" in inputs) == (b"gated" in rule, b"delta" in rule)

    def in_heads(x: NDArray, heads: int) -> NDArray:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    heads = attributes["q_num_heads"]
    query, key, value = (
        in_heads(inputs[name], count) for name, count in (("query", heads), ("key", heads_k), ("value", heads_k))
    )
    state = inputs.get("past_state", np.zeros((len(key), heads_k, key.shape[-1], value.shape[-1]), key.dtype))
    arguments = {"query": query, "key": key, "value": value, "state": state, "scale": attributes.get("scale")}
    if "decay" in inputs:
        arguments["decay"] = in_heads(inputs["decay"], heads_k)
    if "beta" in inputs:
        beta = inputs["beta"].swapaxes(1, 2)
        arguments["beta"] = np.broadcast_to(beta, (len(beta), heads_k, beta.shape[-1]))
    yield (in_heads(outputs["output"], heads), outputs["present_state"]), "linear_attention", arguments


def convolution(attributes: Named, inputs: Named, outputs: Named) -> Iterator[Comparison]:
    """Yield the comparison of CausalConvWithState, whose features come before its steps."""
    assert set(attributes) <= {"activation"}
    x, weight = inputs["input"].swapaxes(1, 2), inputs["weight"][:, 0]
    zeros = np.zeros((len(x), x.shape[-1], weight.shape[-1] - 1), x.dtype)
    arguments = {"x": x, "weight": weight, "state": inputs.get("past_state", zeros).swapaxes(1, 2)}
    arguments |= {"bias": inputs.get("bias")}

    def activated(x: Any, weight: Any, state: Any, bias: Any = None) -> tuple[Any, Any]:
        output, final = reference.short_convolution(x, weight, state, bias=bias)
        return output / (1 + np.exp(-output)), final

    formula = activated if attributes.get("activation", b"none") in (b"silu", b"swish") else "short_convolution"
    yield (outputs["output"].swapaxes(1, 2), outputs["present_state"].swapaxes(1, 2)), formula, arguments


def rms_normalization(attributes: Named, inputs: Named, outputs: Named) -> Iterator[Comparison]:
    """Yield the comparison of RMSNormalization over the last dimensions, as one."""
    assert set(attributes) <= {"axis", "epsilon"}
    x, weight, y = inputs["X"], inputs["scale"], outputs["Y"]
    leading = x.shape[: x.ndim - weight.ndim]
    assert weight.shape == x.shape[attributes.get("axis", -1) :]
    arguments = {"x": x.reshape(*leading, -1), "weight": weight.reshape(-1)}
    yield y.reshape(*leading, -1), "rms_norm", {**arguments, "epsilon": attributes.get("epsilon", 1e-5)}


RECORDS: Mapping[str, tuple[Any, str]] = {
    "RNN": (RNNParameters, "h"), "GRU": (GRUParameters, "zrh"), "LSTM": (LSTMParameters, "iofc")
}  # fmt: skip
"""Records of parameters, and ONNX's order of gates."""


def recurrent(operator: str, attributes: Named, inputs: Named, outputs: Named) -> Iterator[Comparison]:
    """Yield the comparisons of a network, for each direction; the recurrent bias is the weight of an input of ones."""
    assert set(attributes) <= {"hidden_size", "direction", "layout"}
    assert set(inputs) <= {"X", "W", "R", "B"}
    record, gates = RECORDS[operator]
    batch_first, h = attributes.get("layout", 0), attributes["hidden_size"]
    x = inputs["X"] if batch_first else inputs["X"].swapaxes(0, 1)
    x = np.concatenate([x, np.ones_like(x[..., :1])], -1)
    directions = {b"reverse": [-1], b"bidirectional": [1, -1]}.get(attributes.get("direction", b"forward"), [1])
    for i, step in enumerate(directions):
        w_x, w_h = (inputs[name][i].reshape(len(gates), h, -1) for name in "WR")
        biases = inputs["B"][i].reshape(2, len(gates), h) if "B" in inputs else np.zeros((2, len(gates), h), x.dtype)
        weights = {"w_x": np.concatenate([w_x, biases[1][..., None]], -1).swapaxes(1, 2), "w_h": w_h.swapaxes(1, 2)}
        weights["b_"] = biases[0]
        parameters = record(
            **{p + g: w for p, of_gates in weights.items() for g, w in zip(gates, of_gates, strict=True)}
        )
        state = np.zeros((len(x), h), x.dtype)
        start = (state, state) if operator == "LSTM" else state
        arguments = {"x": x[:, ::step], "state": start, "parameters": parameters}
        ends = [outputs.get(n) for n in ("Y_h", *(["Y_c"] if operator == "LSTM" else []))]
        final = tuple(None if y is None else y[:, i] if batch_first else y[i] for y in ends)
        states = None
        if "Y" in outputs:
            states = (outputs["Y"][:, :, i] if batch_first else outputs["Y"][:, i].swapaxes(0, 1))[:, ::step]
        yield (states, final), operator.lower(), arguments


READERS = {
    "Attention": attention,
    "CausalConvWithState": convolution,
    "LinearAttention": linear_attention,
    "RMSNormalization": rms_normalization,
}
"""Functions that turn a case of an operator into comparisons."""


@pytest.mark.parametrize("name", sorted(set(CASES) - set(LACKING)))
def test_expected_outputs_are_within_budgets(name: str) -> None:
    operator, *case = read(CASES[name])
    comparisons = READERS[operator](*case) if operator in READERS else recurrent(operator, *case)
    with choosing(length_alignment="at-length"):
        for result, formula, arguments in comparisons:
            dtype = next(iter(arguments.values())).dtype.name
            precision = f"eager-{dtype}" if dtype in SIXTEEN_BITS else None
            assert_within_budgets(result, formula, precision=precision, **arguments)


@pytest.mark.parametrize("name", LACKING)
def test_these_cases_have_no_operation(name: str) -> None:
    assert LACKING[name] in read(CASES[name])[2]
