"""Matrix rows of ``torch.nn.attention.flex_attention``: eager and compiled.

Eager calls would be traced again for many shapes and then compute the same; a debugging switch of PyTorch avoids the
tracing. Compiled calls never fall back to eager: where PyTorch cannot compile, they raise. Every shape and layout is
compiled separately, which takes seconds, so few are judged.

With symbolic sizes, PyTorch 2.13.0 may generate invalid C++: cpp_flex_attention_template.py replaces a size's symbol,
such as ks7, also at the start of a longer one, such as ks75, which becomes cur_kvSplitSize5. Which law hits this
depends on what was compiled before, so this row compiles with constant sizes.
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
from attnspec.backends.torch_native.attention import batch_of
from attnspec.backends.torch_native.kernels import Attention, as_heads, with_causal
from attnspec.backends.torch_native.rows import DTYPES
from attnspec.spec import Limits, Semantics


def call_flex(
    attend: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Call flex_attention with its default scale, block masks and two batch dimensions."""
    n, m = query.shape[-2], key.shape[-2]
    batch = batch_of(query, key, value, mask)
    if not query.new_empty(*batch, n).numel():
        return value.new_empty(*batch, n, value.shape[-1])
    q, k, v = (as_heads(x, batch) for x in (query, key, value))
    blocks = None
    if mask is not None:
        allowed = as_heads(with_causal(mask, causal, n, m, query).expand(*mask.shape[:-2], n, m), batch).contiguous()
        sizes = q.shape[0], q.shape[1], n, m
        blocks = create_block_mask(lambda b, h, i, j: allowed[b, h, i, j], *sizes, device=q.device)
    elif causal:
        blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, n, m, device=q.device)
    output: Tensor = attend(q, k, v, block_mask=blocks)
    return output.reshape(*batch, n, value.shape[-1])


def attend_eagerly(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Call flex_attention without tracing, which only a private switch of PyTorch turns off."""
    with patch("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
        return call_flex(flex_attention, query, key, value, mask, causal)


@lru_cache(maxsize=1)
def compiled() -> Any:
    """Return flex_attention compiled for every shape; by default PyTorch stops after 8."""
    torch.compiler.config.recompile_limit = 1_000
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def in_few_layouts(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return x for the whole batch; contiguous, unless it is bfloat16 and does not broadcast."""
    broadcasts = x.shape[:-2] != batch
    return x.expand(*batch, *x.shape[-2:]).contiguous() if broadcasts or x.dtype != torch.bfloat16 else x


def attend_compiled(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Call compiled flex_attention."""
    batch = batch_of(query, key, value, mask)
    q, k, v = (in_few_layouts(x, batch) for x in (query, key, value))
    return call_flex(compiled(), q, k, v, mask, causal)


WITH_GRADIENTS = None if "cuda" in devices() else ()
"""Declaration of operations with gradients: () is none, on the CPU; None is all, with CUDA."""


class Flex(Attention):
    """flex_attention, eager or compiled."""

    limits = Limits(dtypes=DTYPES, devices=devices(), gradients=WITH_GRADIENTS)
    semantics = Semantics(masked_nonfinite="propagates", no_keys="error")
    notes = {"empty": "flex_attention raises without queries or without a batch: the adapter does not call it then"}  # noqa: RUF012 - a declaration
    parts: tuple[Callable[..., Any], ...] = (batch_of, as_heads, with_causal)
    imports = "from torch.nn.attention.flex_attention import create_block_mask, flex_attention\n"


class Eager(Flex):
    """flex_attention without a compiler."""

    name = "flex_attention, eager"
    parts = (batch_of, as_heads, with_causal, call_flex)
    calls = {"scaled_dot_product_attention": attend_eagerly}  # noqa: RUF012 - a declaration
    imports = f"from unittest.mock import patch\n\n{Flex.imports}"


class Compiled(Flex):
    """flex_attention, compiled, within limits that save time; it ignores NaN scores."""

    name = "flex_attention, compiled"
    semantics = replace(Flex.semantics, nan_queries="hidden", attendable_nan="hidden")
    tools = ("CppCompileError", "InvalidCxxCompiler")
    limits = replace(Flex.limits, head_sizes=(16,), multiple_of=16, max_length=32, max_batch_dims=1)
    notes = Flex.notes | {
        "layouts": "only bfloat16 is judged with gaps in memory; other dtypes are copied without them"
    }
    hang_after = 300.0
    parts = (batch_of, as_heads, with_causal, call_flex, compiled, in_few_layouts)
    calls = {"scaled_dot_product_attention": attend_compiled}  # noqa: RUF012 - a declaration
    imports = f"from functools import lru_cache\n{Flex.imports}"


eager = Eager()
compiled_row = Compiled()
