"""The PyTorch backend with a Bahdanau context that is a decoding step: keys prepared once, then two states.

The operation itself prepares nothing: only this adapter lets the suite judge caches of keys. The first state differs
from the second, as in a decoder, and must leave no trace in the cache.
"""

from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch import *  # noqa: F403
from attnspec.backends.pytorch import additive

name = "pytorch in decoding steps"
notes = {**pytorch.notes, "bahdanau_context": "the second step of a cache of keys"}
_check = Check("bahdanau_context")


def bahdanau_context(  # type: ignore[no-redef]
    state: Tensor, annotations: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *, mask: Tensor | None = None
) -> Tensor:
    """The second step of a decoder."""
    _check(state, annotations, w_q, w_k, w_v, mask)
    cache = additive.prepare_keys(annotations @ w_k.mT, w_v, annotations)
    query = state @ w_q.mT
    additive.step(cache, query.flip(-1), mask=mask)
    return additive.step(cache, query, mask=mask)
