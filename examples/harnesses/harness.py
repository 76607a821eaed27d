"""A call of attention, and what a harness is: its inputs, its reference and its rule, beside ``judge``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance.harness.verdict import Verdict


@dataclass(frozen=True)
class Call:
    """What a kernel is given: query (batch, heads, n, d), key (batch, heads_k, m, d), value (batch, heads_k, m, d_v).

    ``heads`` is a multiple of ``heads_k``. Where ``causal``, the last query attends to all keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool = False

    @property
    def allowed(self) -> Tensor | None:
        """What is attended to, (n, m); None for everything."""
        n, m = self.query.shape[-2], self.key.shape[-2]
        return torch.ones(n, m, dtype=torch.bool).tril(m - n) if self.causal else None

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that is attended to, in one head."""
        allowed = self.allowed
        return self.query.shape[-2] * self.key.shape[-2] if allowed is None else int(allowed.sum())

    @property
    def work(self) -> int:
        """Multiplications and additions, each pair of them one operation, of its two products of matrices."""
        batch, heads = self.query.shape[:2]
        return batch * heads * self.pairs * (self.query.shape[-1] + self.value.shape[-1])


def attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention in float32, (batch, heads, n, d_v)."""
    return scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=allowed, scale=scale, enable_gqa=True
    )


@dataclass(frozen=True)
class Source:
    """Where a rule was read."""

    repository: str
    commit: str
    files: tuple[str, ...]

    @property
    def links(self) -> list[str]:
        """The files at that commit."""
        return [f"https://github.com/{self.repository}/blob/{self.commit}/{file}" for file in self.files]


@dataclass(frozen=True)
class Harness:
    """A public harness.

    ``settings`` make its published inputs, by the words that describe them. ``reference`` gives what ``accepts``
    compares an output with. ``judged`` is what takes the place of both; it also takes the precision class of a
    kernel, None for that of its dtype.
    """

    name: str
    source: Source
    rule: str
    settings: Mapping[str, Callable[[], Call]]
    reference: Callable[[Call], Any]
    accepts: Callable[[Tensor, Any], bool]
    judged: Callable[[Tensor, Call, str | None], Verdict]
