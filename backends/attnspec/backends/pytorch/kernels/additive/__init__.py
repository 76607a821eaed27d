"""Fast additive (Bahdanau) attention: softmax_j(w_v . tanh(a_i + b_j)) value.

Queries a and keys b are already projected. Four paths compute it; `path_for` names the path of a call.

- ``llvm``: CPU; llvmlite compiles the kernels and caches them in the user's cache folder, no C compiler is needed.
  Most exponentials are replaced by products exp(2a) exp(2b) of precomputed factors.
- ``pointwise``: CPU; compiled kernels that evaluate each tanh pointwise, chosen where that costs less than factors.
  `attention` hands empty calls on to ``llvm``, and masked calls that meet a NaN: a masked key may have caused it.
- ``triton``: CUDA, or the CPU in Triton's interpreter (TRITON_INTERPRET=1, for tests; only with `path="triton"`).
- ``plain``: chunked PyTorch operations; every device, dtype and derivative. It is the only path under ``torch.func``
  and in forward mode.

Half dtypes are accumulated in float32. Under autocast, operands other than float64 are cast to autocast's dtype.
Sources: S0, equation (4); Bahdanau 2015.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from attnspec.backends.bases.autocast import autocast_enabled
from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import FLOAT_DTYPES
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted, under_torch_func

from . import path_choice, plain
from .checks import cast_operands, check, refuse


def path_for(first: Tensor, *others: Tensor, path: str | None = None) -> str:
    """Return the path of a call with these operands; `path` requests a specific one.

    ValueError if `path` is unknown or does not support the operands.
    """
    operands = first, *others
    device, dtype = first.device.type, first.dtype
    possible = [name for name in path_choice.available_paths(device) if _serves(name, operands)]
    if path is None:
        forced_path = forced()
        # `by_cost` decides between the two CPU paths, and obeys if one of them is forced
        if "pointwise" in possible and forced_path in (None, *path_choice.PATHS):
            return _cheapest_path(*operands)
        return forced_path if forced_path in possible else possible[0]
    if path not in possible:
        expected = f"one of {', '.join(possible)} for {dtype} on {device}"
        raise ValueError(f"additive attention: path: expected {expected}; got {path!r}")
    return path


def _beyond_kernels(operands: tuple[Tensor, ...]) -> bool:
    """True inside ``torch.func`` or if an operand carries a tangent: kernels would ignore both."""
    if under_torch_func():
        return True
    if torch.compiler.is_compiling():
        return False
    return any(unpack_dual(x).tangent is not None for x in operands)  # type: ignore[no-untyped-call]


def _serves(path: str, operands: tuple[Tensor, ...]) -> bool:
    if path != "plain" and _beyond_kernels(operands):
        return False
    if path == "llvm":
        return all(x.dtype in FLOAT_DTYPES for x in operands)
    if path == "pointwise":
        # attention only, not scores; operands need addresses, and under torch.compile sizes may be symbols
        return (
            len(operands) == 4
            and not operations_intercepted()
            and all(x.dtype in FLOAT_DTYPES and addressable(x) for x in operands)
        )
    if path == "triton":
        from .triton import operators as triton

        return triton.supports(*operands)
    return True


def _cheapest_path(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor) -> str:
    """Return ``pointwise`` or ``llvm``, whichever has the lower predicted time."""
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2])
    tracked = needs_gradients(a, b, w_v, value)
    sizes = a.shape[-2], b.shape[-2], w_v.shape[0], value.shape[-1]
    return path_choice.by_cost(batch.numel(), *sizes, a.dtype, tracked=tracked)


def attention(
    a: Float[Tensor, "*#batch n h"],
    b: Float[Tensor, "*#batch m h"],
    w_v: Float[Tensor, " h"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    path: str | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax_j(sum_h w_v tanh(a_i + b_j)) value over the attendable keys: mask True, and j <= i if causal.

    a = query W_q^T and b = key W_k^T, already projected. A row without an attendable key, and every row if m = 0, is 0
    with zero gradients; numbers stored at an excluded key, even NaN, have no effect on the row. ValueError for shapes
    and paths, TypeError for dtypes.
    """
    check(a, b, w_v, value, mask)
    a, b, w_v, value = cast_operands("a, b, w_v, value", a, b, w_v, value)
    chosen = path_for(a, b, w_v, value, path=path)
    if chosen == "pointwise":
        from .llvm import pointwise

        output = pointwise.attention(a, b, w_v, value, mask, causal)
        if output is not None:
            return output
        chosen = "llvm"  # for an empty call, or a masked one that met a NaN
    if chosen == "llvm":
        from .llvm import operators as llvm

        return llvm.attention(a, b, w_v, value, mask=mask, causal=causal)
    if chosen == "triton":
        from .triton import operators as triton

        return triton.attention(a, b, w_v, value, mask=mask, causal=causal)
    return plain.attention(a, b, w_v, value, mask=mask, causal=causal)


def scores(
    a: Float[Tensor, "*#batch n h"],
    b: Float[Tensor, "*#batch m h"],
    w_v: Float[Tensor, " h"],
    *,
    path: str | None = None,
) -> Float[Tensor, "*batch n m"]:
    """sum_h w_v tanh(a_i + b_j), with gradients for any use.

    Under a softmax the gradients of a row's scores add up to 0, and the kernels of `attention` leave that sum out.
    """
    check(a, b, w_v, None, None)
    a, b, w_v = cast_operands("a, b, w_v", a, b, w_v)
    chosen = path_for(a, b, w_v, path=path)
    if chosen == "llvm":
        from .llvm import operators as llvm

        return llvm.scores(a, b, w_v)
    if chosen == "triton":
        from .triton import operators as triton

        return triton.scores(a, b, w_v)
    return plain.scores(a, b, w_v)


@dataclass(frozen=True)
class KeyCache:
    """Keys and values of source sentences, prepared once for all decoding steps by ``path``.

    ``prepared`` holds the path's precomputed tensors; None if steps read ``b`` itself. ``fused``, if not None, computes
    a step in a single kernel call; it returns None for steps that it does not support.
    """

    path: str
    b: Tensor
    w_v: Tensor
    value: Tensor
    prepared: Any
    fused: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copying and unpickling prepare the keys again."""
        return _restored_cache, (self.path, self.b, self.w_v, self.value)


def prepare_keys(
    b: Float[Tensor, "*#batch m h"],
    w_v: Float[Tensor, " h"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    path: str | None = None,
) -> KeyCache:
    """Prepare projected keys b and values for `step`. The cache keeps these tensors: do not change them afterwards."""
    if b.dim() < 2:
        refuse("b", "shape (*batch, m, h)", b)
    check(b[..., :1, :], b, w_v, value, None)
    b, w_v, value = cast_operands("b, w_v, value", b, w_v, value)
    chosen = path_for(b, w_v, value, path=path)
    prepared: Any = None
    fused: Any = None
    if chosen == "llvm" and b.numel() and value.numel():
        from .llvm import decoding as llvm

        prepared = llvm.prepare(b, w_v, value)
        fused = llvm.fused(prepared, b, w_v, value)
    if chosen == "triton":
        from .triton import decoding as triton

        prepared = triton.cache(b, w_v, value)
    return KeyCache(chosen, b, w_v, value, prepared, fused)


def _restored_cache(path: str, b: Tensor, w_v: Tensor, value: Tensor) -> KeyCache:
    with autocast.off(b):  # the tensors were cast when the cache was made
        return prepare_keys(b, w_v, value, path=path)


def step(
    cache: KeyCache, a: Float[Tensor, "*#batch h"], *, mask: Bool[Tensor, "*#batch #m"] | None = None
) -> Float[Tensor, "*batch d_v"]:
    """One decoding step: the context of one projected query a per source; mask (*batch, m) or (m).

    Batches broadcast. A query of shape (B, 1, h) would have the batch (B, 1), and attend to all of B sources, so pass
    (B, h). If gradients are needed, the step is `attention` with a single query on the original keys; inside
    torch.func, on the plain path. Under autocast a step keeps the dtype of the cache.
    """
    if cache.fused is not None and not torch.compiler.is_compiling():
        context: Tensor | None = cache.fused(a, mask)
        if context is not None:
            return context
    if autocast_enabled(a):
        with autocast.off(a):
            return step(cache, a if a.dtype is torch.float64 else a.to(cache.b.dtype), mask=mask)
    (m, h), mask_row = cache.b.shape[-2:], None
    if a.dim() < 1 or a.shape[-1] != h:
        refuse("a", f"shape (*batch, {h})", a)
    if mask is not None:
        if mask.dim() < 1 or (mask.shape[-1] != m and mask.shape[-1] != 1):
            refuse("mask", f"shape broadcastable to (*batch, {m}), rank >= 1", mask)
        mask_row = mask.unsqueeze(-2)
    check(a.unsqueeze(-2), cache.b, cache.w_v, cache.value, mask_row)
    if a.dtype != cache.b.dtype:
        raise TypeError(f"additive attention: a: expected {cache.b.dtype} like the keys; got {a.dtype}")
    tracked = needs_gradients(a, cache.b, cache.w_v, cache.value)
    operands = a, cache.b, cache.w_v, cache.value
    supported = _serves(cache.path, operands)
    if cache.prepared is None or tracked or a.numel() == 0 or not supported:
        path = cache.path if supported else path_for(*operands)
        output = attention(a.unsqueeze(-2), cache.b, cache.w_v, cache.value, mask=mask_row, path=path)
        return output.squeeze(-2)
    if cache.path == "triton":
        from .triton import decoding as triton

        return triton.step(cache.prepared, a, mask)
    from .llvm import decoding as llvm

    return llvm.step(cache.prepared, a, cache.b, cache.value, mask)
