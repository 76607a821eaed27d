"""Tensors as the CPU kernels read them: flattened batches, blocks of keys, factors, flags."""

from array import array
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count

from . import factors as factor_kernels
from . import pages
from .arguments import Terms
from .factors import KeyBlocks, KeyFactors, QueryFactors
from .reach import Reach, reach_kernel
from .scores import capacity, last_group
from .tiles import SHARED, key_lanes

# exp costs about as much as this many terms of a score
EXPONENTIAL_WORK = 16


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


def flatten(x: Tensor, batch: torch.Size, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """x (*own, rows, columns) as (entries, rows, columns), and the entry of each element of the broadcast `batch`."""
    own = x.shape[:-2]
    whole = pages.converted(x, compute).reshape(own.numel(), *x.shape[-2:]).contiguous()
    return whole, entry_index(own, batch)


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros whose pages exist only once they are touched.

    By NumPy, as other helpers here: PyTorch would wake its whole team of threads, which then compete with the kernels.
    """
    return torch.from_numpy(np.zeros(shape, like.numpy().dtype))


def finite(x: Tensor) -> bool:
    """Whether every element is finite."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(x.numpy().sum()) or np.isfinite(x.numpy()).all())


def blocked(x: Tensor, memory: Tensor | None = None) -> Tensor:
    """(entries, m, columns) as (entries, blocks, columns, keys of a block), missing keys as the last.

    ``memory`` is for as many numbers.
    """
    entries, m, columns = x.shape
    shape = entries, blocks(m, x), columns, key_lanes(bits(x))
    out = pages.empty(x, *shape) if memory is None else memory.view(shape)
    tasks = entries * blocks(m, x)
    arguments = KeyBlocks(tasks=tasks, m=m, h=columns, raw=x, block=out)
    run(factor_kernels.block_kernel(bits(x)), thread_count(tasks, 2 * x.numel()), arguments)
    return out


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


@dataclass
class Factors:
    """exp(2 flip x) of queries (times the ratios) or of keys (in blocks), and what decides where they serve.

    ``flag`` holds the `RowFlag` of each row, ``maximum`` the largest magnitude of each unit in each group of rows or
    block of keys.
    """

    raw: Tensor
    factor: Tensor
    flag: Tensor
    maximum: Tensor

    @classmethod
    def of_queries(cls, a: Tensor, flip: Tensor, ratio: Tensor, memory: Tensor | None = None) -> "Factors":
        """a (entries, n, h); ``memory`` for as many numbers."""
        h = a.shape[-1]
        rows = a.numel() // h
        tasks = -(-rows // factor_kernels.ROWS)
        factor = torch.empty_like(a) if memory is None else memory.view(a.shape)
        flag, maximum = a.new_empty(rows), a.new_empty(tasks, h)
        arguments = QueryFactors(
            tasks=tasks, rows=rows, h=h, raw=a, flip=flip, ratio=ratio, factor=factor, flag=flag, maximum=maximum
        )  # fmt: skip
        threads = thread_count(tasks, a.numel() * EXPONENTIAL_WORK)
        run(factor_kernels.query_factor_kernel(bits(a)), threads, arguments)
        return cls(a, factor, flag, maximum)

    @classmethod
    def of_keys(cls, b: Tensor, flip: Tensor, *, kept: bool = False, memory: Tensor | None = None) -> "Factors":
        """b (entries, m, h); `kept` for many queries; ``memory`` for as many numbers, of whole blocks of keys."""
        entries, m, h = b.shape
        count, width = blocks(m, b), key_lanes(bits(b))
        shape = entries, count, h, width
        factor = pages.empty(b, *shape, kept=kept) if memory is None else memory.view(shape)
        flag = b.new_empty(entries, count * width)
        maximum = b.new_empty(entries, count, h)
        tasks = entries * count
        arguments = KeyFactors(tasks=tasks, m=m, h=h, raw=b, flip=flip, factor=factor, flag=flag, maximum=maximum)
        threads = thread_count(tasks, b.numel() * EXPONENTIAL_WORK)
        run(factor_kernels.key_factor_kernel(bits(b)), threads, arguments)
        return cls(b, factor, flag, maximum)


def reach(queries: Factors, keys: Factors, ratio: Tensor, limit: Tensor) -> tuple[bool, Tensor | None]:
    """Whether some pair of a query and a key may have no factors, and which blocks of keys need a clamp, if any.

    They need none where products of factors, and the ratio (h), are within the limit (h).
    """
    clamped = keys.flag.new_empty(keys.maximum.shape[:-1], dtype=torch.int64)
    clamps, direct = array("q", [0]), array("q", [0])
    arguments = Reach(
        rows=queries.flag.numel(), keys=keys.flag.numel(), query_groups=len(queries.maximum),
        key_groups=clamped.numel(), h=ratio.numel(), query_flag=queries.flag, key_flag=keys.flag,
        query_maximum=queries.maximum, key_maximum=keys.maximum, ratio=ratio, limit=limit, clamped=clamped,
        clamps=clamps, direct=direct,
    )  # fmt: skip
    run(reach_kernel(bits(ratio)), 1, arguments)
    return bool(direct[0]), clamped if clamps[0] else None


@lru_cache(maxsize=64)
def score_limits(h: int, dtype: torch.dtype) -> Tensor:
    """The largest X that each unit may have where scores are taken."""
    width = 8 * dtype.itemsize
    limit = torch.full((h,), capacity(width, SHARED), dtype=dtype, device="cpu")
    if rest := last_group(h):
        limit[h - rest :] = capacity(width, rest)
    return limit


def terms(queries: Factors, keys: Factors, weight: Weight) -> Terms:
    """The terms of the scores of these queries and keys."""
    direct, clamped = reach(queries, keys, weight.ratio, score_limits(len(weight.raw), weight.raw.dtype))
    return Terms(
        query_factor=queries.factor,
        key_factor=keys.factor,
        ratio=weight.ratio,
        offset=weight.offset,
        minus_two_scale=weight.minus_two_scale,
        unit=weight.unit,
        clamp_tiles=clamped,
        direct=direct,
        query_raw=queries.raw,
        key_raw=blocked(keys.raw) if direct else None,
        weight=weight.raw,
        query_flag=queries.flag,
        key_flag=keys.flag,
    )
