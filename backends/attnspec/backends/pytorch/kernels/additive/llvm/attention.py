"""One call of the attention kernel, and what is done around it: whole registers, masks as bytes, non-finite values."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import pages
from .arguments import Attend, attention_scratch
from .forward import attend_kernel
from .layout import Factors, Weight, bits, entry_index, finite, lanes, row_stride, terms, zeros
from .tiles import CHUNK


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
    def of(cls, mask: Tensor, batch: torch.Size, n: int, m: int) -> "MaskPlaces":
        """Those of a mask broadcastable to (*batch, n, m)."""
        *own, rows, _ = shape = broadcast(mask.shape, (1, m))
        index = entry_index(torch.Size(own), batch) * (rows * m)
        return cls(tuple(shape), index, m if rows == n and n > 1 else 0)

    def rows(self, mask: Tensor) -> "MaskRows":
        """Those of a mask of this shape, in memory, its keys expanded."""
        return MaskRows(mask.expand(self.shape).contiguous(), self)


class MaskRows(NamedTuple):
    """A mask as bytes, and where its rows lie."""

    rows: Tensor
    places: MaskPlaces


def kept_weights(like: Tensor, entries: int, n: int, m: int, causal: bool) -> Tensor:
    """Memory (entries, n, stride of m) for weights, 0 where `attend` does not write to blocks of keys."""
    make = zeros if causal else pages.empty
    return make(like, entries, n, row_stride(m, like))


def attend(a: Tensor, keys: Factors, weight: Weight, value: Tensor, a_index: Tensor, b_index: Tensor,
           value_index: Tensor, mask: MaskRows | None, causal: bool, weights: Tensor | None,
           output: Tensor | None = None) -> Tensor:  # fmt: skip
    """Output (entries, n, d rounded up) for non-empty operands in the compute type; value is finite and whole.

    It is written to ``output`` if that is given.
    """
    batches, n, m, h, d = a_index.numel(), a.shape[1], value.shape[1], a.shape[2], value.shape[2]
    single = n == 1 and not causal  # the backward kernels take causal queries by whole chunks
    rows = 1 if single else CHUNK
    chunks = -(-n // rows)
    threads = thread_count(batches * chunks, batches * n * m * (h + d))
    stride = row_stride(m, a)
    output = a.new_empty(batches, n, d) if output is None else output
    arguments = Attend(
        tasks=batches * chunks,
        chunks=chunks,
        n=n,
        m=m,
        h=h,
        causal=causal,
        stride=stride,
        scratch=a.new_empty(threads, sum(attention_scratch(bits(a), rows, stride, d))),
        a_index=a_index,
        b_index=b_index,
        terms=terms(Factors.of_queries(a, weight.flip, weight.ratio), keys, weight),
        mask=None if mask is None else mask.rows,
        mask_index=None if mask is None else mask.places.index,
        mask_row=0 if mask is None else mask.places.step,
        value_index=value_index,
        value=value,
        d=d,
        output=output,
        weights=weights,
    )
    run(attend_kernel(bits(a), single), threads, arguments)
    return output


def add_nonfinite(output: Tensor, weights: Tensor, value: Tensor, value_index: Tensor, attendable: Tensor) -> None:
    """Add what the non-finite values of attendable keys contribute; every other row keeps its bits."""
    bad = ~value.isfinite()
    for key in bad.any(-1).any(0).nonzero().flatten().tolist():
        extra = torch.where(bad[:, key], value[:, key], 0.0)[value_index][:, None, :]
        share = weights[:, :, key, None] * extra
        output += torch.where(attendable[:, :, key, None] & bad[:, key][value_index][:, None, :], share, 0.0)


def attendable(mask: Tensor | None, causal: bool, batch: torch.Size, n: int, m: int) -> Tensor:
    """Which keys each query may attend to, (entries, n, m); mask broadcastable to (*batch, n, m)."""
    allowed = causal_triangle(n, m, "cpu") if causal else torch.ones(n, m, dtype=torch.bool, device="cpu")
    if mask is not None:
        allowed = allowed & mask
    return allowed.expand(*batch, n, m).reshape(batch.numel(), n, m)
