"""ONNX's Attention, with batches flattened into one, as one head. What is empty is not asked for: it is refused."""

from math import prod

import numpy as np
from jaxtyping import Bool, Float

from attnspec.backends.bases.numpy import NDArray
from attnspec.backends.onnx_native.models import Evaluated
from attnspec.spec import OPERATIONS, bind

_OPERATION = OPERATIONS["scaled_dot_product_attention"]


def _head(x: NDArray, batch: tuple[int, ...], n: int, d: int) -> NDArray:
    """Rows as (batch, one head, n, d)."""
    return np.broadcast_to(x, (*batch, n, d)).reshape(prod(batch), 1, n, d)


class Attention(Evaluated):
    """Attention: a NaN or an infinity stored at a masked key or value reaches the result."""

    def scaled_dot_product_attention(
        self,
        query: Float[NDArray, "*#batch n d"],
        key: Float[NDArray, "*#batch m d"],
        value: Float[NDArray, "*#batch m d_v"],
        *,
        mask: Bool[NDArray, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[NDArray, "*batch n d_v"]:
        """Attention, with a boolean attn_mask and is_causal."""
        given = {"query": query, "key": key, "value": value, "mask": mask, "causal": causal}
        *rest, n, d_v = shape = bind(_OPERATION, given).result
        if not prod(rest) * n:
            return np.empty(shape, query.dtype)
        batch, (m, d) = tuple(rest), key.shape[-2:]
        inputs = {
            "Q": _head(query, batch, n, d),
            "K": _head(key, batch, m, d),
            "V": _head(value, batch, m, d_v),
            "attn_mask": None if mask is None else _head(mask, batch, n, m),
        }
        (found,) = self.run("Attention", inputs, ("Y",), is_causal=int(causal))
        return found.reshape(shape)
