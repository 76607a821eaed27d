"""Choice of the cheapest CPU kernel that supports a call.

Paths: ``llvm`` is the tiled kernels (`tiled`), ``small`` those for few queries and keys (`small`), ``decode`` those for
one query per head without gradients (`decode`), ``pytorch`` PyTorch's own (`fused`), and ``plain`` the formula, with
scores in memory.

If no kernel of this package supports a call, PyTorch computes scaled dot-product attention, and the formula computes
attention in groups of heads. That happens without llvmlite, with fused kernels switched off (``sdpa_kernel``),
for empty operands, gradients of biases and slopes, and scales and caps outside `SCALES` or `SCALES_OF_GROUPS`.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend
from attnspec.backends.pytorch.runtime.accumulation import FLOAT_DTYPES, HALF_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.runtime.transforms import addressable, fused_allowed

EXECUTORS = {"small": "small", "pytorch": "fused", "decode": "decode", "llvm": "tiled"}
"""Module of each path except ``plain``; if costs are equal, the first path wins."""

SMALL_IN_LAYER = 1 << 18
"""Multiply-adds up to which a call from within another operation uses PyTorch's kernel."""

SCALES, SCALES_OF_GROUPS = (2.0**-126, 2.0**126), (2.0**-40, 2.0**40)
"""Accepted (smallest, largest) scale, in groups also softcap: 1/scale and softcap/scale stay normal in float32."""


class Executor(Protocol):
    """Interface of a path's module."""

    def serves(self, call: Call) -> bool:
        """Return whether the module supports a call whose operands every kernel can read."""

    def plan(self, call: Call, operands: Sequence[Tensor], rank: int) -> Attend:
        """Return the function for calls like this one; ``operands`` have ``rank`` batch dimensions."""


def executor(path: str) -> Executor:
    """The module of a path, imported at its first use: most need llvmlite."""
    return cast("Executor", import_module(f"{__package__}.{EXECUTORS[path]}"))


def path_for(call: Call) -> str:
    """Name of a call's path: ``llvm``, ``decode``, ``small``, ``pytorch`` or ``plain``."""
    query, key, value, options, tensors, is_4d, in_layer, _ = call
    (b, h, n, d), (m, d_v), tracked, mask = query.shape, value.shape[-2:], call.differentiates(), tensors.mask
    grouped, forced_path = options.logarithms, forced()
    small = b * h * n * m * (d + d_v) <= SMALL_IN_LAYER and query.dtype not in HALF_DTYPES
    if in_layer and small and (mask is None or tracked) and forced_path is None:
        return "pytorch"
    if not _supported(call):
        # PyTorch's kernel gives NaN for operands without features if the scale is not positive
        return "plain" if grouped or not d else "pytorch"
    from attnspec.backends.pytorch.kernels.dot import path_costs

    paths = [path for path in EXECUTORS if executor(path).serves(call)]
    if forced_path in paths:
        return str(forced_path)
    if grouped and forced_path in (*EXECUTORS, "plain"):
        return "plain"
    if "decode" in paths:  # `llvm`, with one query per lane, would leave lanes empty
        paths.remove("llvm")
    elif grouped:
        paths.append("plain")
    return path_costs.by_cost(
        b, h, n, m, d, d_v, query.dtype, tracked=tracked, excludes=call.excludes(), masked=mask is not None,
        paths=paths, is_4d=is_4d, group=h // key.shape[1], logarithms=grouped, merges_heads=merges_heads(call),
    )  # fmt: skip


def serves_step(call: Call) -> bool:
    """Return whether the kernel for one query per head supports a call, also with pages."""
    return _supported(call) and executor("decode").serves(call)


def merges_heads(call: Call) -> bool:
    """Return whether ``llvm`` may treat a group's single-query heads as queries of one head."""
    query, key, _, options, tensors, *_ = call
    several = query.shape[-2] == 1 and query.shape[1] > key.shape[1]
    return several and options.left is None and tensors.bias is None and tensors.slopes is None


def _supported(call: Call) -> bool:
    query, key, value, options, tensors, *_ = call
    low, high = SCALES_OF_GROUPS if options.logarithms else SCALES
    present: list[Tensor] = [x for x in (query, key, value, *tensors) if x is not None]
    return (
        HAS_LLVMLITE
        and fused_allowed()
        and query.dtype in FLOAT_DTYPES
        and query.dtype == key.dtype == value.dtype
        and low <= options.scale <= high
        and (options.softcap is None or low <= options.softcap <= high)
        and all(x.numel() > 0 for x in (query, key, value))
        and not call.learned
        and all(map(addressable, present))
    )
