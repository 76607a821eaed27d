"""``jax.nn.dot_product_attention``, unmodified, as a backend, with gradients by ``jax.vjp``.

The adapter flattens batches, moves heads to JAX's axis, and pads with columns of zeros, since JAX wants values as wide
as keys: values, or queries and keys, whichever are narrower; the extra columns are cut off again. A window side without
limit becomes max(n, m). The adapter asks for no implementation, so JAX uses XLA's.

JAX has no softcap, slopes or sinks. The logarithms of sums that it can return have no gradients (``stop_gradient``), so
they are omitted.

Violation in jax 0.10.2: with jax_enable_x64, float64 attention computes its softmax in float32. Without that option JAX
has no float64, and it is not judged.
"""

from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.backends.bases.jax import JaxBackend
from attnspec.backends.bases.numpy import refuse_out_of_range
from attnspec.spec import OPERATIONS, Limits, Semantics, bind


def _flat(x: jax.Array, batch: tuple[int, ...], core: int) -> jax.Array:
    """Return x with one flattened batch dimension before its last `core` dimensions."""
    core_shape = x.shape[x.ndim - core :]
    return jnp.broadcast_to(x, (*batch, *core_shape)).reshape(prod(batch), *core_shape)


def _attend(
    batch: tuple[int, ...], query: jax.Array, key: jax.Array, value: jax.Array,
    mask: jax.Array | None, scale: float | None = None, bias: jax.Array | None = None, **options: Any,
) -> jax.Array:  # fmt: skip
    """Call JAX's attention on (*batch, heads, rows, features); all heads share one mask."""
    d, d_v = query.shape[-1], value.shape[-1]
    padded = [jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, max(d, d_v) - x.shape[-1])]) for x in (query, key, value)]
    q, k, v = (_flat(x, batch, 3).swapaxes(1, 2) for x in padded)
    output: jax.Array = jax.nn.dot_product_attention(
        q, k, v,
        bias=None if bias is None else _flat(bias, batch, 3),
        mask=None if mask is None else _flat(mask[..., None, :, :], batch, 3),
        scale=d**-0.5 if scale is None else scale,
        **options,
    )  # fmt: skip
    return output[..., :d_v].swapaxes(1, 2).reshape(*batch, *query.shape[-3:-1], d_v)


class JaxNative(JaxBackend):
    """JAX, unmodified: masked NaN and infinity propagate; fully masked rows average all values."""

    name = "jax-native"
    semantics = Semantics(fully_masked="uniform", masked_nonfinite="propagates")

    @property
    def limits(self) -> Limits:
        """JAX's dtypes and device, and the options of its attention."""
        return replace(super().limits, features=("scale", "window", "bias", "key_lengths"))

    def scaled_dot_product_attention(
        self,
        query: Float[jax.Array, "*#batch n d"],
        key: Float[jax.Array, "*#batch m d"],
        value: Float[jax.Array, "*#batch m d_v"],
        *,
        mask: Bool[jax.Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[jax.Array, "*batch n d_v"]:
        """softmax(QKᵀ/√d)V, as one head."""
        arguments = {"query": query, "key": key, "value": value, "mask": mask, "causal": causal}
        batch = bind(OPERATIONS["scaled_dot_product_attention"], arguments).batch
        q, k, v = (x[..., None, :, :] for x in (query, key, value))
        return _attend(batch, q, k, v, mask, is_causal=causal)[..., 0, :, :]

    def grouped_query_attention(
        self,
        query: Float[jax.Array, "*#batch heads n d"],
        key: Float[jax.Array, "*#batch heads_k m d"],
        value: Float[jax.Array, "*#batch heads_k m d_v"],
        *,
        mask: Bool[jax.Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        bias: Float[jax.Array, "*#batch #heads #n #m"] | None = None,
        slopes: Float[jax.Array, " heads"] | None = None,
        sinks: Float[jax.Array, " heads"] | None = None,
        key_lengths: Int[jax.Array, "*#batch"] | None = None,
    ) -> tuple[Float[jax.Array, "*batch heads n d_v"], Float[jax.Array, "*batch heads n"] | None]:
        """softmax(QKᵀ·scale + bias)V with shared keys and values; options not in `limits` are unsupported."""
        arguments = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias, "key_lengths": key_lengths}
        bound = bind(OPERATIONS["grouped_query_attention"], {**arguments, "window": window, "causal": causal})
        n, m = bound.sizes["n"], bound.sizes["m"]
        options: dict[str, Any] = {"is_causal": causal}
        if window is not None:
            options["local_window_size"] = tuple(max(n, m) if w is None else w for w in window)
        if key_lengths is not None:
            refuse_out_of_range("grouped_query_attention", "key_lengths", np.asarray(key_lengths), m)
            options["key_value_seq_lengths"] = _flat(key_lengths, bound.batch, 0).astype(jnp.int32)
        return _attend(bound.batch, query, key, value, mask, scale, bias, **options), None


backend = JaxNative()
