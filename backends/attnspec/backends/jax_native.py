"""``jax.nn.dot_product_attention``, unmodified, as a backend, with gradients by ``jax.vjp``.

The adapter presents: it flattens batches into one, gives every array one head, and pads values, which JAX wants as wide
as keys, with columns of zeros that are cut off again; so does the other side where values are wider. JAX chooses the
implementation, which is XLA's wherever none is asked for.

What violates, in jax 0.10.2: with jax_enable_x64, attention of doubles takes its softmax in float32. Without it JAX has
no doubles, and they are not judged.
"""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from attnspec.backends.bases.jax import JaxBackend
from attnspec.spec import OPERATIONS, Semantics, bind

_OPERATION = OPERATIONS["scaled_dot_product_attention"]


def _heads(x: jax.Array, batch: tuple[int, ...], width: int) -> jax.Array:
    """Rows (*batch, n, d) as (batch, n, one head, width), with zeros beyond d."""
    *_, n, d = x.shape
    flat = jnp.broadcast_to(x, (*batch, n, d)).reshape(prod(batch), n, 1, d)
    return jnp.pad(flat, [(0, 0)] * 3 + [(0, width - d)])


class JaxNative(JaxBackend):
    """JAX as it is: what a mask hides propagates if it is not finite, and a row without keys is the mean of all."""

    name = "jax-native"
    semantics = Semantics(fully_masked="uniform", masked_nonfinite="propagates")

    def scaled_dot_product_attention(
        self,
        query: Float[jax.Array, "*#batch n d"],
        key: Float[jax.Array, "*#batch m d"],
        value: Float[jax.Array, "*#batch m d_v"],
        *,
        mask: Bool[jax.Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[jax.Array, "*batch n d_v"]:
        """softmax(QKᵀ/√d)V by JAX's choice of implementation."""
        given = {"query": query, "key": key, "value": value, "mask": mask, "causal": causal}
        *batch, n, d_v = bind(_OPERATION, given).result
        d, m = query.shape[-1], key.shape[-2]
        heads = partial(_heads, batch=tuple(batch), width=max(d, d_v))
        allowed = None if mask is None else jnp.broadcast_to(mask, (*batch, n, m)).reshape(prod(batch), 1, n, m)
        found = jax.nn.dot_product_attention(
            heads(query), heads(key), heads(value), mask=allowed, is_causal=causal, scale=d**-0.5
        )
        return found[..., :d_v].reshape(*batch, n, d_v)


backend = JaxNative()
