"""Tensors as the CPU kernels read them: flattened batches, whole registers, masks as bytes, finite values."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import huge_pages
from .scores import capacity, last_group
from .tiles import GROUP, key_lanes

EXPONENTIAL_WORK = 16
"""Time of one exponential, in units of one term of a score; `thread_count` weighs work in these units."""


def address(x: Tensor | None) -> int:
    """Return the address of a contiguous tensor; 0 for None."""
    return 0 if x is None else x.data_ptr()


def bits(x: Tensor) -> int:
    """Return the number of bits of an element of x."""
    return x.element_size() * 8


def lanes(x: Tensor) -> int:
    """Return the number of elements of x in a vector register."""
    return register_bytes() // x.element_size()


def blocks(m: int, x: Tensor) -> int:
    """Return the number of blocks that hold m keys."""
    return -(-m // key_lanes(bits(x)))


def padded(m: int, x: Tensor) -> int:
    """Round m up to whole key blocks."""
    return blocks(m, x) * key_lanes(bits(x))


def row_stride(m: int, x: Tensor) -> int:
    """Distance between rows of m scores: whole key blocks, never a multiple of 1024 bytes (cache set conflicts)."""
    whole = padded(m, x)
    # arithmetic, not a condition: torch.export would specialise on m
    conflict_free = (whole * x.element_size() % 1024 + 1023) // 1024
    return whole + (1 - conflict_free) * key_lanes(bits(x))


@lru_cache(maxsize=64)
def entry_index(source: torch.Size, batch: torch.Size) -> Tensor:
    """Index (batch entries) of each entry of `batch` into an operand of batch `source`; that broadcasts to it."""
    return torch.arange(source.numel(), device="cpu").reshape(source).expand(batch).reshape(-1).contiguous()


def flatten(x: Tensor, compute: torch.dtype) -> Tensor:
    """Return x (*batch, rows, columns) as contiguous (entries, rows, columns) in dtype `compute`."""
    return huge_pages.converted(x, compute).reshape(x.shape[:-2].numel(), *x.shape[-2:]).contiguous()


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros whose pages are allocated at first touch.

    NumPy, as in other helpers here: PyTorch would wake its thread pool, which then competes with the kernels.
    """
    return torch.from_numpy(np.zeros(shape, like.numpy().dtype))


def finite(x: Tensor) -> bool:
    """Return whether every element is finite."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.numpy().sum()) or np.isfinite(x.numpy()).all())


@dataclass
class Weight:
    """w_v for the kernels: scores are unit (offset + minus_two_scale sum_h 1/(E'F + ratio)), E' = E ratio.

    E = exp(2a) and F = exp(2b) are the factors; `scores` derives the formula. ``flip`` is -1 for hidden units whose
    a, b and weight are negated, and 1 elsewhere: signs of nonzero weights then alternate, so that terms cancel, which
    saves digits. With w = raw · flip, ``ratio`` is max|w| / w, ``offset`` sum w, ``minus_two_scale`` -2 max|w|.
    ``unit`` is a power of two, 1 unless sums of weights might overflow; ``raw`` is w_v / unit.
    """

    raw: Tensor
    flip: Tensor
    ratio: Tensor
    offset: Tensor
    minus_two_scale: Tensor
    unit: Tensor

    @classmethod
    def of(cls, w: Tensor) -> "Weight":
        """Return the weight of w (h), contiguous; cached by its numbers."""
        return _weight(w.detach().numpy().tobytes(), w.dtype)


@lru_cache(maxsize=64)
def _weight(numbers: bytes, dtype: torch.dtype) -> Weight:
    single = dtype == torch.float32
    # bound of ratios, beyond which a unit's weight vanishes in rounding, and largest exponent of sums of weights
    limit, most = (2.0**36, 124) if single else (2.0**200, 1020)
    raw: np.ndarray = np.frombuffer(numbers, np.float32 if single else np.float64)
    # max|w| h < 2**(most + excess); frexp returns exponent 0 for infinity
    excess = int(np.frexp(np.abs(raw).max())[1]) + len(raw).bit_length() - most
    unit = raw.dtype.type(2.0 ** max(excess, 0))
    raw = raw / unit
    scale = np.abs(raw).max()
    odd = np.cumsum(raw != 0) % 2 == 1
    flip = np.where((raw < 0) == odd, -1, 1).astype(raw.dtype)
    flipped = raw * flip
    with np.errstate(all="ignore"):
        ratio = np.clip(np.where(raw == 0, limit, scale / flipped), -limit, limit).astype(raw.dtype)
        offset = flipped.sum(dtype=np.float64).astype(raw.dtype)
    return Weight(*(torch.from_numpy(np.atleast_1d(x)) for x in (raw, flip, ratio, offset, -2 * scale, unit)))


@lru_cache(maxsize=64)
def score_limits(h: int, dtype: torch.dtype) -> Tensor:
    """Return the largest X = E'F + ratio per hidden unit that needs no clamp.

    A group's X are multiplied, so that the limit depends on the number of units in the group.
    """
    real_bits = 8 * dtype.itemsize
    limit = torch.full((h,), capacity(real_bits, GROUP), dtype=dtype, device="cpu")
    if last_units := last_group(h):
        limit[h - last_units :] = capacity(real_bits, last_units)
    return limit


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which kernels compute: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def whole_registers(x: Tensor) -> Tensor:
    """Pad the last dimension with zeros to whole registers."""
    fill = -x.shape[-1] % lanes(x)
    return (pad(x, (0, fill)) if fill else x).contiguous()


def finite_registers(value: Tensor) -> tuple[Tensor, bool]:
    """Return values in whole registers, 0 where not finite, and whether all were finite."""
    all_finite = finite(value)
    return whole_registers(value if all_finite else torch.where(value.isfinite(), value, 0.0)), all_finite


@plan_class
class MaskPlaces:
    """Byte offsets ``index`` of each batch entry's rows in a mask, ``step`` bytes apart.

    ``step`` is 0 if all queries share one row.
    """

    shape: tuple[int, ...]
    index: Tensor
    step: int

    @classmethod
    def of(cls, mask: torch.Size, batch: torch.Size, n: int, m: int) -> "MaskPlaces":
        """Offsets for a mask that broadcasts to (*batch, n, m); the kernel reads it with its keys expanded."""
        *mask_batch, rows, _ = shape = broadcast(mask, (1, m))
        index = entry_index(torch.Size(mask_batch), batch) * (rows * m)
        return cls(tuple(shape), index, m if rows == n and n > 1 else 0)


def weights_memory(like: Tensor, entries: int, n: int, m: int, causal: bool) -> Tensor:
    """Return memory (entries, n, stride of m) for weights. Causal blocks that the kernel skips are 0."""
    make = zeros if causal else huge_pages.empty
    return make(like, entries, n, row_stride(m, like))


def add_nonfinite(output: Tensor, weights: Tensor, value: Tensor, value_index: Tensor, attendable: Tensor) -> None:
    """Add the non-finite values of attendable keys, weighted, to the output of the finite ones.

    Rows that attend to no such key keep their bits.
    """
    nonfinite = ~value.isfinite()
    for key in nonfinite.any(-1).any(0).nonzero().flatten().tolist():
        extra = torch.where(nonfinite[:, key], value[:, key], 0.0)[value_index][:, None, :]
        share = weights[:, :, key, None] * extra
        output += torch.where(attendable[:, :, key, None] & nonfinite[:, key][value_index][:, None, :], share, 0.0)


def attendable(mask: Tensor | None, causal: bool, batch: torch.Size, n: int, m: int) -> Tensor:
    """Return attendable keys of each query, boolean (entries, n, m); mask broadcastable to (*batch, n, m)."""
    allowed = causal_triangle(n, m, "cpu") if causal else torch.ones(n, m, dtype=torch.bool, device="cpu")
    if mask is not None:
        allowed = allowed & mask
    return allowed.expand(*batch, n, m).reshape(batch.numel(), n, m)


def zero_empty_rows(gradient: Tensor, weights: Tensor, m: int) -> Tensor:
    """Return the output's gradient (entries, n, d). If not all finite, rows without an attendable key become 0.

    Such rows have only zeros among their weights (entries, n, stride); from column m on, memory may be uninitialised.
    """
    return gradient if finite(gradient) else torch.where(weights[..., :m].any(-1, keepdim=True), gradient, 0.0)
