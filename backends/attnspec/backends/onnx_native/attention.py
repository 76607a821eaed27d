"""ONNX's Attention and LinearAttention."""

from math import prod

import numpy as np

from attnspec.backends.bases.numpy import NDArray, refuse_out_of_range
from attnspec.backends.onnx_native.running import Operators, flat
from attnspec.spec import OPERATIONS, bind


class Attention(Operators):
    """Attention of one head and of groups of heads."""

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
            key_lengths = flat(key_lengths, batch).astype(np.int64)
        mask_or_bias = None if mask is None else mask[..., None, :, :]
        if bias is not None:
            mask_or_bias = bias if mask_or_bias is None else np.where(mask_or_bias, bias, -np.inf)
        q, k, v = (flat(x, batch, *x.shape[-3:]) for x in (query, key, value))
        added = None if mask_or_bias is None else flat(mask_or_bias, batch, mask_or_bias.shape[-3], n, m)
        left, right = (None, None) if window is None else (-1 if x is None else x for x in window)
        if scale is not None and scale < 0:
            q, scale = -q, -scale
        options = {"scale": scale, "softcap": softcap, "left_window_size": left, "right_window_size": right}
        results = self.run("Attention", [q, k, v, added, None, None, key_lengths], 1, is_causal=int(causal), **options)
        return results[0].reshape(shape), None


class LinearAttention(Operators):
    """Linear attention."""

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
            batched = flat(x, bound.batch, *x.shape[-3:])
            return batched.swapaxes(1, 2).reshape(len(batched), x.shape[-2], -1)

        optional = [None if x is None else packed(x) for x in (decay, None if beta is None else beta[..., None])]
        inputs = [*map(packed, (query, key, value)), flat(state, bound.batch, *final[-3:]), *optional]
        rule = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
        attributes = {"update_rule": rule[decay is not None, beta is not None], "scale": scale}
        heads = {"q_num_heads": shape[-3], "kv_num_heads": final[-3]}
        output, state = self.run("LinearAttention", inputs, 2, **attributes, **heads)
        output = output.reshape(prod(bound.batch), shape[-2], shape[-3], shape[-1]).swapaxes(1, 2)
        return output.reshape(shape), state.reshape(final)
