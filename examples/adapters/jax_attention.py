"""A first adapter to ``jax.nn.dot_product_attention``."""

import jax
import jax.numpy as jnp

from attnspec.backends.bases.jax import JaxBackend


class JaxAttention(JaxBackend):
    """One head: JAX takes (batch, n, heads, d)."""

    name = "jax-attention"

    def scaled_dot_product_attention(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: jax.Array | None = None,
        causal: bool = False,
    ) -> jax.Array:
        """Attention with all dimensions of the batch as one."""
        batch, n, m = query.shape[:-2], query.shape[-2], key.shape[-2]
        query, key, value = (x.reshape(-1, *x.shape[-2:])[:, :, None] for x in (query, key, value))
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*batch, n, m)).reshape(-1, 1, n, m)
        found: jax.Array = jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=causal)
        return found.reshape(*batch, n, value.shape[-1])
