"""Choice of kernels for a call on the CPU: of those that serve it, the ones that cost least.

``llvm`` are the kernels on tiles (`tiled`), ``few`` those for few queries and keys (`few`), ``step`` those for one
query in each head without gradients (`step`), ``pytorch`` is PyTorch's own (`fused`), and ``plain`` the formula, with
scores in memory.

Scaled dot-product attention that no kernel of this package serves is PyTorch's, attention in groups of heads is the
formula's: without llvmlite, where fused kernels are switched off (``torch.nn.attention.sdpa_kernel``), for empty
operands, gradients of biases and slopes, and scales and caps that are not within `SCALES` or `SCALES_OF_GROUPS`.
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

EXECUTORS = {"few": "few", "pytorch": "fused", "step": "step", "llvm": "tiled"}
"""The module of each path but the formula's; of paths that cost the same, the first is taken."""

SMALL_IN_LAYER = 1 << 18
"""Multiply-adds that PyTorch's kernel does before one of this package is called from within another operation."""

SCALES, SCALES_OF_GROUPS = (2.0**-126, 2.0**126), (2.0**-40, 2.0**40)
"""Accepted (smallest, largest) scale, in groups also softcap: 1/scale and softcap/scale stay normal in float32."""


class Executor(Protocol):
    """A module that computes calls."""

    def serves(self, call: Call) -> bool:
        """Whether it computes a call whose operands any kernel may read."""

    def plan(self, call: Call, given: Sequence[Tensor], rank: int) -> Attend:
        """What computes calls like this one, whose operands are given with a batch of ``rank`` dimensions."""


def executor(path: str) -> Executor:
    """The module of a path, imported at its first use: most need llvmlite."""
    return cast("Executor", import_module(f"{__package__}.{EXECUTORS[path]}"))


def path_for(call: Call) -> str:
    """``llvm``, ``step``, ``few``, ``pytorch`` or ``plain``."""
    query, key, value, options, tensors, fits, in_layer, _ = call
    (b, h, n, d), (m, d_v), tracked, mask = query.shape, value.shape[-2:], call.differentiates(), tensors.mask
    grouped, wish = options.logarithms, forced()
    small = b * h * n * m * (d + d_v) <= SMALL_IN_LAYER and query.dtype not in HALF_DTYPES
    if in_layer and small and (mask is None or tracked) and wish is None:
        return "pytorch"
    if not _served(call):
        # PyTorch's kernel gives NaN where there is no feature and a scale that is not positive
        return "plain" if grouped or not d else "pytorch"
    from attnspec.backends.pytorch.kernels.dot import routes

    paths = [path for path in EXECUTORS if executor(path).serves(call)]
    if wish in paths:
        return str(wish)
    if grouped and wish in (*EXECUTORS, "plain"):
        return "plain"
    if "step" in paths:  # lanes of `llvm` would be empty
        paths.remove("llvm")
    elif grouped:
        paths.append("plain")
    return routes.by_cost(
        b, h, n, m, d, d_v, query.dtype, tracked=tracked, excludes=call.excludes(), masked=mask is not None,
        paths=paths, fits=fits, group=h // key.shape[1], logarithms=grouped, joins=joins(call),
    )  # fmt: skip


def serves_step(call: Call) -> bool:
    """Whether the kernel for one query in each head computes a call, of which keys may lie in pages."""
    return _served(call) and executor("step").serves(call)


def joins(call: Call) -> bool:
    """Whether the heads of a group, of one query each, may be the queries of one head for ``llvm``."""
    query, key, _, options, tensors, *_ = call
    several = query.shape[-2] == 1 and query.shape[1] > key.shape[1]
    return several and options.left is None and tensors.bias is None and tensors.slopes is None


def _served(call: Call) -> bool:
    query, key, value, options, tensors, *_ = call
    low, high = SCALES_OF_GROUPS if options.logarithms else SCALES
    given: list[Tensor] = [x for x in (query, key, value, *tensors) if x is not None]
    return (
        HAS_LLVMLITE
        and fused_allowed()
        and query.dtype in FLOAT_DTYPES
        and query.dtype == key.dtype == value.dtype
        and low <= options.scale <= high
        and (options.softcap is None or low <= options.softcap <= high)
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and not call.learned
        and all(map(addressable, given))
    )
