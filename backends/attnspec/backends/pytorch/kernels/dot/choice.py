"""Which kernels compute a call on the CPU: of those that serve it, the ones that cost least.

``llvm`` are the kernels on tiles (`tiled`), ``few`` those for few queries and keys (`few`), ``step`` those for one
query in each head without gradients (`step`), ``pytorch`` is PyTorch's own (`fused`), and ``plain`` the formula, with
scores in memory.

Scaled dot-product attention that no kernel of this package serves is PyTorch's, attention in groups of heads is the
formula's: without llvmlite, where fused kernels are switched off (``torch.nn.attention.sdpa_kernel``), for empty
operands, gradients of biases and slopes, and scales and caps that are not within `SCALES` or `SCALES_OF_GROUPS`.
"""

from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE, LLVM_DTYPES
from attnspec.backends.pytorch.kernels.dot import fused
from attnspec.backends.pytorch.kernels.dot.call import Call
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.transforms import addressable, fused_allowed

SMALL_IN_LAYER = 1 << 18
"""Multiply-adds that PyTorch's kernel does before one of this package is called from within another operation."""

SCALES, SCALES_OF_GROUPS = (2.0**-126, 2.0**126), (2.0**-40, 2.0**40)
"""Smallest and largest scale that the kernels take: within the normal numbers of float32, also over one another."""


def path_for(call: Call) -> str:
    """``llvm``, ``step``, ``few``, ``pytorch`` or ``plain``."""
    query, key, value, options, tensors, fits, in_layer, _ = call
    (b, h, n, d), (m, d_v), tracked, mask = query.shape, value.shape[-2:], call.differentiates(), tensors.mask
    grouped, wish = options.logarithms, forced()
    small = b * h * n * m * (d + d_v) <= SMALL_IN_LAYER and query.dtype not in HALF_DTYPES
    if in_layer and small and (mask is None or tracked) and wish is None:
        return "pytorch"
    if not _served(call):
        return "plain" if grouped else "pytorch"
    from attnspec.backends.pytorch.kernels.dot import few, routes, step

    paths = ["few"] if few.serves(call) else []
    if fused.serves(call):
        paths.append("pytorch")
    if step.serves(call):
        paths.append("step")
    if wish in (*paths, "llvm"):
        return str(wish)
    if grouped and wish in ("few", "pytorch", "step", "plain"):
        return "plain"
    if "step" not in paths:
        paths += ["llvm", "plain"] if grouped else ["llvm"]
    return routes.by_cost(
        b, h, n, m, d, d_v, query.dtype, tracked=tracked, excludes=call.excludes(), masked=mask is not None,
        paths=paths, fits=fits, group=h // key.shape[1], logarithms=grouped, joins=joins(call),
    )  # fmt: skip


def serves_step(call: Call) -> bool:
    """Whether the kernel for one query in each head computes a call, of which keys may lie in pages."""
    if not _served(call):
        return False
    from attnspec.backends.pytorch.kernels.dot import step

    return step.serves(call)


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
        and query.dtype in LLVM_DTYPES
        and query.dtype == key.dtype == value.dtype
        and low <= options.scale <= high
        and (options.softcap is None or low <= options.softcap <= high)
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and not call.learned
        and all(map(addressable, given))
    )
