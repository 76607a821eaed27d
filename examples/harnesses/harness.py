"""A call of attention, and a public harness with its inputs, reference and rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance.harness.verdict import Verdict


@dataclass(frozen=True)
class Call:
    """Inputs of a kernel.

    Query (batch, heads, n, d), key (batch, heads_k, m, d) and value (batch, heads_k, m, d_v), where ``heads`` is a
    multiple of ``heads_k``. If ``causal``, the last query attends to all keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool = False

    @property
    def allowed(self) -> Tensor | None:
        """Mask (n, m), True where a query attends to a key; None if everywhere."""
        n, m = self.query.shape[-2], self.key.shape[-2]
        return torch.ones(n, m, dtype=torch.bool).tril(m - n) if self.causal else None

    @property
    def pairs(self) -> int:
        """Number of pairs of a query and an attended key, in one head."""
        allowed = self.allowed
        return self.query.shape[-2] * self.key.shape[-2] if allowed is None else int(allowed.sum())

    @property
    def work(self) -> int:
        """Multiply-adds of the two matrix products."""
        batch, heads = self.query.shape[:2]
        return batch * heads * self.pairs * (self.query.shape[-1] + self.value.shape[-1])


def attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Attention in float32, (batch, heads, n, d_v)."""
    return scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=allowed, scale=scale, enable_gqa=True
    )


def raise_if_wrong(verdict: Verdict) -> None:
    """Raise AssertionError with the verdict if it convicts."""
    if not verdict:
        raise AssertionError(str(verdict))


@dataclass(frozen=True)
class Source:
    """Repository, commit and files from which a rule was transcribed."""

    repository: str
    commit: str
    files: tuple[str, ...]

    @property
    def links(self) -> list[str]:
        """Links to the files at that commit."""
        return [f"https://github.com/{self.repository}/blob/{self.commit}/{file}" for file in self.files]


@dataclass(frozen=True)
class Harness:
    """A public harness.

    ``settings`` map a description to a function that makes these published inputs. The harness computes ``reference``,
    and ``accepts`` compares an output with it. ``judged`` asks ``judge`` instead, and ``within`` compares with the
    numbers of ``tolerance``; their last argument is the precision class of a kernel, None for the default of its dtype.
    """

    name: str
    source: Source
    rule: str
    settings: Mapping[str, Callable[[], Call]]
    reference: Callable[[Call], Any]
    accepts: Callable[[Tensor, Any], bool]
    judged: Callable[[Tensor, Call, str | None], Verdict]
    within: Callable[[Tensor, Call, str | None], bool]
