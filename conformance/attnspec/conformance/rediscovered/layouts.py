"""Rediscovered defects of strides: ignored, or taken from an earlier call.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. A law in ``breaks`` must detect the defect. ``prepare`` converts the
arguments and ``vjp`` is the backend's call for gradients. ``vars(self)`` holds what one backend remembers between
calls.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.roles import arrays, changed, mask_of
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import flatten, map_tree
from attnspec.spec.transformer import LayerNorm


def read_with(x: Numbers, strides: tuple[int, ...]) -> Numbers:
    """Copy x read with other strides; x itself if they leave its memory."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True))
    own = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    if not x.size or min(*x.strides, *strides, 0) < 0 or reach > own:
        return x
    return as_strided(x, x.shape, strides).copy()


def c_strides(x: Numbers) -> tuple[int, ...]:
    """Strides of a contiguous array of the shape of x."""
    return tuple(int(s) for s in np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1])


@rediscovered(
    "pytorch/pytorch#181133",
    "[MPS] scaled_dot_product_attention returns wrong values for non-contiguous (permute-produced) q/k/v",
    framework="PyTorch (MPS)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    replaces="prepare",
    profile="full",
)
def permuted_read_as_contiguous(
    correct: Library, operation: Operation, arguments: Mapping[str, Any]
) -> dict[str, Numbers]:
    """For d ≥ 64, arrays stored (positions, heads, d) are read as (heads, positions, d)."""

    def read(_: str, x: Any) -> Any:
        wide = isinstance(x, np.ndarray) and x.ndim > 2 and x.shape[-1] >= 64
        permuted = wide and 0 < x.strides[-3] < x.strides[-2]
        return read_with(x, c_strides(x)) if permuted else x

    misread: dict[str, Numbers] = map_tree(dict(arguments), read)
    return Library.prepare(correct, operation, misread)


@rediscovered(
    "flagos-ai/FlagGems#5896",
    "flash attention returns wrong output for non-contiguous value tensors (breaks Qwen3.5-9B E2E)",
    framework="FlagGems",
    operation=ScaledDotProductAttention,
    breaks=("storage.views-equal-copies",),
    replaces="prepare",
    dtype="float16",
)
def values_read_as_contiguous(
    correct: Library, operation: Operation, arguments: Mapping[str, Any]
) -> dict[str, Numbers]:
    """Values are read as if they were contiguous."""
    path = operation.attended[-1].path
    values = arguments[path]
    return Library.prepare(correct, operation, changed(arguments, {path: read_with(values, c_strides(values))}))


@rediscovered(
    "pytorch/pytorch#187506",
    "Fix cpu flash sdpa incorrect results when inputs' innermost dim is not contiguous",
    framework="PyTorch (CPU)",
    operation=ScaledDotProductAttention,
    breaks=("storage.views-equal-copies",),
    replaces="prepare",
)
def innermost_read_as_contiguous(
    correct: Library, operation: Operation, arguments: Mapping[str, Any]
) -> dict[str, Numbers]:
    """Features are read with stride 1, whatever their stride."""

    def read(_: str, x: Any) -> Any:
        return read_with(x, (*x.strides[:-1], x.itemsize)) if isinstance(x, np.ndarray) and x.ndim > 1 else x

    misread: dict[str, Numbers] = map_tree(dict(arguments), read)
    return Library.prepare(correct, operation, misread)


@rediscovered(
    "flashinfer-ai/flashinfer#4270",
    "Fix silent wrong results in the cuDNN SDPA prefill/decode paths",
    framework="FlashInfer (cuDNN)",
    operation=ScaledDotProductAttention,
    breaks=("storage.views-equal-copies",),
)
class StridesOfTheFirstCall(Library):
    """Arguments are read with the strides of the first call of their shapes."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Numbers]:
        """Read the arguments with the strides of the first call of these shapes."""
        graphs: dict[Any, Any] = vars(self).setdefault("graphs", {})
        arrays_by_path = {path: x for path, x in flatten(dict(arguments)).items() if isinstance(x, np.ndarray)}
        shapes = tuple((path, x.shape, x.dtype) for path, x in arrays_by_path.items())
        strides = graphs.setdefault(shapes, {path: x.strides for path, x in arrays_by_path.items()})
        misread = {path: read_with(x, strides[path]) for path, x in arrays_by_path.items()}
        return super().prepare(operation, changed(arguments, misread))


@rediscovered(
    "Dao-AILab/flash-attention#2886",
    "[Bug] FA4 Blackwell hd256 forward skips Q/K contiguous conversion on compiled-kernel cache hits",
    framework="FlashAttention 4",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    dtype="bfloat16",
    profile="full",
)
class CopiedOnce(Library):
    """For d = 256, calls after a dtype's first read queries and keys as contiguous."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Numbers]:
        """Read queries and keys as if contiguous once their kernel is compiled."""
        compiled: set[Any] = vars(self).setdefault("compiled", set())
        inputs = [x for leaf, x in arrays(operation, arguments) if leaf.core[-1:] == operation.queries[0].core[-1:]]
        if inputs[0].shape[-1] == 256 and inputs[0].dtype in compiled:
            arguments = map_tree(dict(arguments), lambda _, x: read_with(x, c_strides(x)) if is_in(x, inputs) else x)
        compiled.add(inputs[0].dtype)
        return super().prepare(operation, arguments)


def is_in(x: Any, candidates: list[Numbers]) -> bool:
    """True if x is one of these arrays, by identity."""
    return any(x is y for y in candidates)


@rediscovered(
    "pytorch/pytorch#191937",
    "SDPA EFFICIENT_ATTENTION returns wrong output for broadcasted (stride-0) k/v when kv length % 32 == 1 "
    "(bf16 + attn_mask, CUDA; MATH correct on identical tensors)",
    framework="PyTorch (memory-efficient kernel)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    replaces="prepare",
    dtype="bfloat16",
    profile="full",
)
def last_of_expanded(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Numbers]:
    """Under a mask, a single key in the last tile of 32 is lost. This affects keys and values with a stride of 0."""
    prepared = Library.prepare(correct, operation, arguments)
    keys_and_values = [x for leaf, x in arrays(operation, arguments) if leaf in operation.attended]
    mask = mask_of(operation, arguments)
    if mask is None or any(0 not in x.strides or x.shape[-2] % 32 != 1 or x.shape[-2] == 1 for x in keys_and_values):
        return prepared
    m = keys_and_values[0].shape[-2]
    assert operation.mask is not None
    return changed(prepared, {operation.mask.path: mask & (np.arange(m) < m - 1)})


@rediscovered(
    "pytorch/pytorch#131750",
    "`torch.layer_norm()` gives wrong results on MPS if applied on a slice of tensor",
    framework="PyTorch (MPS)",
    operation=LayerNorm,
    breaks=("storage.views-equal-copies",),
    replaces="prepare",
)
def offset_ignored(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Numbers]:
    """A slice is read from the start of the whole array: its offset is ignored."""
    leaf, x = arrays(operation, arguments)[0]
    whole = x
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if x.flags.c_contiguous and whole.flags.c_contiguous and whole.dtype == x.dtype and whole.size > x.size:
        arguments = changed(arguments, {leaf.path: whole.reshape(-1)[: x.size].reshape(x.shape).copy()})
    return Library.prepare(correct, operation, arguments)


@rediscovered(
    "pytorch/pytorch#138354",
    "[cuDNN][SDPA] Match `query`'s memory layout ordering for `output` in cuDNN SDPA",
    framework="PyTorch (cuDNN)",
    operation=ScaledDotProductAttention,
    breaks=("training.strides-do-not-matter",),
    replaces="vjp",
)
def cotangent_like_the_result(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The cotangent is read as if it were contiguous, like the result."""
    return Library.vjp(correct, operation, arguments, read_with(cotangent, c_strides(cotangent)))
