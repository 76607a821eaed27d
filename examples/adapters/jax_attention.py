"""Adapter to ``jax.nn.dot_product_attention``, without declarations."""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp

from attnspec.backends.bases.jax import JaxBackend


class JaxAttention(JaxBackend):
    """Backend that calls JAX with one head, and with features padded to one width."""

    name = "jax-attention"

    @partial(jax.jit, static_argnames=("self", "causal"))
    def scaled_dot_product_attention(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None = None, causal: bool = False
    ) -> jax.Array:
        """Attention with all batch dimensions flattened to one."""
        n, m, d, d_v = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
        masks = [] if mask is None else [mask]
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value, *masks)))
        query, key, value = (
            jnp.pad(
                jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(prod(batch), x.shape[-2], 1, x.shape[-1]),
                [(0, 0)] * 3 + [(0, max(d, d_v) - x.shape[-1])],
            )
            for x in (query, key, value)
        )
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*batch, n, m)).reshape(prod(batch), 1, n, m)
        output: jax.Array = jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=causal, scale=d**-0.5)
        return output[..., :d_v].reshape(*batch, n, d_v)
