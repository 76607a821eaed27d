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

from . import pages
from .scores import capacity, last_group
from .tiles import SHARED, key_lanes

# exp costs about as much as this many terms of a score
EXPONENTIAL_WORK = 16


def address(x: Tensor | None) -> int:
    """Where the numbers of a contiguous tensor begin; 0 for None."""
    return 0 if x is None else x.data_ptr()


def bits(x: Tensor) -> int:
    """Width of a real of x."""
    return x.element_size() * 8


def lanes(x: Tensor) -> int:
    """Reals in a vector register."""
    return register_bytes() // x.element_size()


def blocks(m: int, x: Tensor) -> int:
    """Blocks that hold m keys."""
    return -(-m // key_lanes(bits(x)))


def padded(m: int, x: Tensor) -> int:
    """m rounded up to whole key blocks."""
    return blocks(m, x) * key_lanes(bits(x))


def row_stride(m: int, x: Tensor) -> int:
    """Distance between rows of m scores: whole key blocks, and never such that a column falls on a few cache sets."""
    whole = padded(m, x)
    # without a condition, which torch.export would make one of m
    some = (whole * x.element_size() % 1024 + 1023) // 1024
    return whole + (1 - some) * key_lanes(bits(x))


@lru_cache(maxsize=64)
def entry_index(own: torch.Size, batch: torch.Size) -> Tensor:
    """For each entry of the flattened `batch`, the entry of a flattened operand whose batch is `own`."""
    return torch.arange(own.numel(), device="cpu").reshape(own).expand(batch).reshape(-1).contiguous()


def flatten(x: Tensor, compute: torch.dtype) -> Tensor:
    """x (*batch, rows, columns) as (entries, rows, columns), contiguous and in the dtype of sums."""
    return pages.converted(x, compute).reshape(x.shape[:-2].numel(), *x.shape[-2:]).contiguous()


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros whose pages exist only once they are touched.

    By NumPy, as other helpers here: PyTorch would wake its whole team of threads, which then compete with the kernels.
    """
    return torch.from_numpy(np.zeros(shape, like.numpy().dtype))


def finite(x: Tensor) -> bool:
    """Whether every element is finite."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.numpy().sum()) or np.isfinite(x.numpy()).all())


@dataclass
class Weight:
    """w_v as the kernels take it: scores are unit (offset + minus_two_scale sum_h 1/(E'F + ratio)), E' = E ratio.

    ``unit`` is a power of two, 1 unless sums of weights might overflow; ``raw`` is w_v / unit. ``flip`` is -1 in the
    units whose a, b and weight are negated, for the signs of the weights other than 0 to alternate, and 1 elsewhere.
    """

    raw: Tensor
    flip: Tensor
    ratio: Tensor
    offset: Tensor
    minus_two_scale: Tensor
    unit: Tensor

    @classmethod
    def of(cls, w: Tensor) -> "Weight":
        """w (h), contiguous; made once for the same numbers."""
        return _weight(w.detach().numpy().tobytes(), w.dtype)


@lru_cache(maxsize=64)
def _weight(numbers: bytes, dtype: torch.dtype) -> Weight:
    single = dtype == torch.float32
    limit, room = (2.0**36, 124) if single else (2.0**200, 1020)
    raw: np.ndarray = np.frombuffer(numbers, np.float32 if single else np.float64)
    # max|w| h < 2**(room + excess), and for what is infinite frexp gives 0
    excess = int(np.frexp(np.abs(raw).max())[1]) + len(raw).bit_length() - room
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
    """The largest X that each unit may have where scores are taken."""
    width = 8 * dtype.itemsize
    limit = torch.full((h,), capacity(width, SHARED), dtype=dtype, device="cpu")
    if rest := last_group(h):
        limit[h - rest :] = capacity(width, rest)
    return limit


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which the kernels work: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def whole_registers(x: Tensor) -> Tensor:
    """The last dimension padded with zeros to whole registers."""
    fill = -x.shape[-1] % lanes(x)
    return (pad(x, (0, fill)) if fill else x).contiguous()


def finite_registers(value: Tensor) -> tuple[Tensor, bool]:
    """Values in whole registers, 0 where they are not finite, and whether all of them were."""
    clean = finite(value)
    return whole_registers(value if clean else torch.where(value.isfinite(), value, 0.0)), clean


@plan_class
class MaskPlaces:
    """Where each entry's rows of masks of one shape begin, in bytes, and their distance: 0 if all queries share one."""

    shape: tuple[int, ...]
    index: Tensor
    step: int

    @classmethod
    def of(cls, mask: torch.Size, batch: torch.Size, n: int, m: int) -> "MaskPlaces":
        """Those of a mask whose shape broadcasts to (*batch, n, m); the kernel reads it with its keys expanded."""
        *own, rows, _ = shape = broadcast(mask, (1, m))
        index = entry_index(torch.Size(own), batch) * (rows * m)
        return cls(tuple(shape), index, m if rows == n and n > 1 else 0)


def kept_weights(like: Tensor, entries: int, n: int, m: int, causal: bool) -> Tensor:
    """Memory (entries, n, stride of m) for weights, 0 where the kernel does not write to blocks of keys."""
    make = zeros if causal else pages.empty
    return make(like, entries, n, row_stride(m, like))


def add_nonfinite(output: Tensor, weights: Tensor, value: Tensor, value_index: Tensor, attendable: Tensor) -> None:
    """Add what the non-finite values of attendable keys contribute; every other row keeps its bits."""
    bad = ~value.isfinite()
    for key in bad.any(-1).any(0).nonzero().flatten().tolist():
        extra = torch.where(bad[:, key], value[:, key], 0.0)[value_index][:, None, :]
        share = weights[:, :, key, None] * extra
        output += torch.where(attendable[:, :, key, None] & bad[:, key][value_index][:, None, :], share, 0.0)


def attendable(mask: Tensor | None, causal: bool, batch: torch.Size, n: int, m: int) -> Tensor:
    """Attendable keys of each query, boolean (entries, n, m); mask broadcastable to (*batch, n, m)."""
    allowed = causal_triangle(n, m, "cpu") if causal else torch.ones(n, m, dtype=torch.bool, device="cpu")
    if mask is not None:
        allowed = allowed & mask
    return allowed.expand(*batch, n, m).reshape(batch.numel(), n, m)


def of_attendable(gradient: Tensor, weights: Tensor, m: int) -> Tensor:
    """The gradient of the output (entries, n, d) where NaN and infinities of rows without an attendable key are gone.

    From weights (entries, n, stride) of m keys: what is behind them may never have been written.
    """
    return gradient if finite(gradient) else torch.where(weights[..., :m].any(-1, keepdim=True), gradient, 0.0)
