"""Rows of ``torch.nn.attention.flex_attention``: eager, and compiled.

Eager, it would be traced anew for many shapes before it does the same: PyTorch's own switch for debugging spares that.
Compiled, it is never replaced by what is eager: where PyTorch cannot compile, it raises. Every shape that differs in
what is 0 or 1, and every kind of mask, is compiled anew, so that few are judged.

In PyTorch 2.13.0 what is compiled after other shapes may be no C++: cpp_flex_attention_template.py replaces the symbol
of a size, such as ks7, wherever it begins another one, such as ks75, which becomes cur_kvSplitSize5. Which law meets
this depends on what was compiled before it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.kernels import Attention, as_heads, both
from attnspec.backends.torch_native.rows import DTYPES, batch_of
from attnspec.spec import Limits, Semantics


def flexible(
    attend: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """flex_attention with its scale, a block mask where there is a mask, and two batch dimensions."""
    n, m = query.shape[-2], key.shape[-2]
    batch = batch_of(query, key, value, mask)
    if not query.new_empty(*batch, n).numel():
        return value.new_empty(*batch, n, value.shape[-1])
    q, k, v = (as_heads(x, batch) for x in (query, key, value))
    blocks = None
    if mask is not None:
        allowed = as_heads(both(mask, causal, n, m, query).expand(*mask.shape[:-2], n, m), batch).contiguous()
        sizes = q.shape[0], q.shape[1], n, m
        blocks = create_block_mask(lambda b, h, i, j: allowed[b, h, i, j], *sizes, device=q.device)
    elif causal:
        blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, n, m, device=q.device)
    found: Tensor = attend(q, k, v, block_mask=blocks)
    return found.reshape(*batch, n, value.shape[-1])


def attended_eagerly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """flexible() without tracing."""
    with patch("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        return flexible(flex_attention, query, key, value, mask, causal)


@lru_cache(maxsize=1)
def compiled() -> Any:
    """flex_attention, compiled once for all shapes; PyTorch would go back to what is not compiled after 8 kinds."""
    torch._dynamo.config.recompile_limit = 1_000
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def attended_compiled(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """flexible() with what is compiled."""
    return flexible(compiled(), query, key, value, mask, causal)


LEARNED = None if "cuda" in devices() else ()
"""The operations that have gradients: on the CPU flex_attention has none."""


class Flex(Attention):
    """flex_attention in one of its two ways."""

    limits = Limits(dtypes=DTYPES, devices=devices(), gradients=LEARNED)
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")
    notes = {"empty": "flex_attention raises where there are no queries or no batch: the row does not call it there"}  # noqa: RUF012 - a declaration
    parts: tuple[Callable[..., Any], ...] = (batch_of, as_heads, both)
    imports = "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"


class Eager(Flex):
    """As it is, without a compiler."""

    name = "flex_attention, eager"
    parts = (batch_of, as_heads, both, flexible)
    calls = {"scaled_dot_product_attention": attended_eagerly}  # noqa: RUF012 - a declaration
    imports = f"from unittest.mock import patch\n\n{Flex.imports}"


class Compiled(Flex):
    """Compiled; the limits are those of time. Scores that are NaN count for nothing, whether of queries or keys."""

    name = "flex_attention, compiled"
    semantics = replace(Flex.semantics, nan_queries="hidden", attendable_nan="hidden")
    tools = ("CppCompileError", "InvalidCxxCompiler")
    limits = replace(Flex.limits, head_sizes=(16,), multiple_of=16, max_length=64, max_batch_dims=1)
    hang_after = 300.0
    parts = (batch_of, as_heads, both, flexible, compiled)
    calls = {"scaled_dot_product_attention": attended_compiled}  # noqa: RUF012 - a declaration
    imports = f"from functools import lru_cache\n{Flex.imports}"


eager = Eager()
compiled_row = Compiled()
