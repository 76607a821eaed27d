"""Bahdanau's decoding step on the CPU: one query per source sentence, with precomputed key factors.

A step reads each key factor and value once, in memory order; blocks without an attendable key are not read. A factor
is exp(2b) of a key's projection b: with exp(2a) of the query it gives tanh(a + b) without another exponential. Where a
factor is out of range the step has to be computed pointwise, by `step`.
"""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive.registration import operator
from attnspec.backends.pytorch.kernels.llvm.threads import launch, thread_count
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

from . import huge_pages
from .arguments import Terms, attention_scratch
from .decoding_kernel import Decoding, decoding_kernel
from .forward_plan import Sizes, attention_plan, key_factors
from .layout import (
    Weight,
    add_nonfinite,
    attendable,
    bits,
    blocks,
    compute_type,
    entry_index,
    finite_registers,
    flatten,
    lanes,
    padded,
    row_stride,
)

# argument slots that change from step to step
QUERY_RAW, QUERY_FACTOR = Decoding.terms + Terms.query_raw, Decoding.terms + Terms.query_factor
OUTPUT, SCRATCH, REDO, MASK = Decoding.output, Decoding.scratch, Decoding.redo, Decoding.mask


@dataclass(frozen=True)
class Prepared:
    """Precomputed tensors of a step, besides the caller's keys and values.

    `factor`, `flag` (its range) and the maxima are those of the keys, see `factors`; `flip` to `unit` are the weight
    w_v in the form that the kernel takes (`layout.Weight`).
    `raw` holds the keys in the compute dtype if the caller's have another or are not contiguous, and is empty
    otherwise; `value` is finite; `nonfinite` is True if the caller's values were not all finite.
    """

    raw: Tensor
    factor: Tensor
    flag: Tensor
    maximum_flag: Tensor
    group_maximum: Tensor
    maximum: Tensor
    w_v: Tensor
    flip: Tensor
    ratio: Tensor
    offset: Tensor
    minus_two_scale: Tensor
    unit: Tensor
    value: Tensor
    nonfinite: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in order of the fields."""
        return [getattr(self, field) for field in self.__dataclass_fields__]


def _reads_in_place(b: Tensor) -> bool:
    """Return whether kernels can read the keys without a copy."""
    return b.dtype is compute_type(b.dtype) and b.is_contiguous()


@operator("additive_keys_cpu")
def keys_op(b: Tensor, w_v: Tensor, value: Tensor) -> list[Tensor]:
    """Tensors of `Prepared` for b (*batch, m, h), w_v (h) and value (*batch, m, d_v). All are non-empty."""
    compute = compute_type(b.dtype)
    weight = Weight.of(w_v.to(compute).contiguous())
    keys = flatten(b, compute)
    factor, flag, maximum = key_factors(keys, weight.flip)
    whole, clean = finite_registers(flatten(value, compute))
    raw = keys.new_empty(0) if _reads_in_place(b) else keys
    nonfinite = torch.tensor([not clean], device="cpu")
    return Prepared(
        raw, factor, flag, flag.amax(), maximum, maximum.amax((0, 1)),
        weight.raw, weight.flip, weight.ratio, weight.offset, weight.minus_two_scale, weight.unit,
        huge_pages.copy(whole), nonfinite,
    ).tensors()  # fmt: skip


@keys_op.register_fake
def _(b: Tensor, w_v: Tensor, value: Tensor) -> list[Tensor]:
    (m, h), compute = b.shape[-2:], compute_type(b.dtype)
    like = b.new_empty(0, dtype=compute)
    entries, count, d_padded = b.shape[:-2].numel(), blocks(m, like), -(-value.shape[-1] // lanes(like)) * lanes(like)
    empty = like.new_empty
    return Prepared(
        raw=like if _reads_in_place(b) else empty(entries, m, h), factor=empty(entries, count, h, padded(1, like)),
        flag=empty(entries, padded(m, like)), maximum_flag=empty(()), group_maximum=empty(entries, count, h),
        maximum=empty(h), w_v=empty(h), flip=empty(h), ratio=empty(h), offset=empty(1), minus_two_scale=empty(1),
        unit=empty(1), value=empty(value.shape[:-2].numel(), m, d_padded), nonfinite=empty(1, dtype=torch.bool),
    ).tensors()  # fmt: skip


def prepare(b: Tensor, w_v: Tensor, value: Tensor) -> Prepared:
    """Prepare b (*batch, m, h), w_v (h), value (*batch, m, d_v), all non-empty; batches may differ but broadcast."""
    return Prepared(*keys_op(b.detach(), w_v.detach(), value.detach()))


@operator("additive_step_cpu")
def step_op(a: Tensor, prepared: list[Tensor], b: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Context (*batch, d_v) of one query (*batch, h) per source; mask (*batch, m)."""
    source, (m, h), d = Prepared(*prepared), b.shape[-2:], value.shape[-1]
    raw = b.reshape(-1, m, h) if _reads_in_place(b) else source.raw
    weight = Weight(source.w_v, source.flip, source.ratio, source.offset, source.minus_two_scale, source.unit)
    batch = broadcast(a.shape[:-1], b.shape[:-2], value.shape[:-2], mask.shape[:-1] if mask is not None else ())
    query, row = flatten(a.unsqueeze(-2), raw.dtype), None if mask is None else mask.unsqueeze(-2)
    batches = a.shape[:-1], b.shape[:-2], value.shape[:-2]
    sizes = Sizes(batch, *batches, 1, m, h, source.value.shape[2], False, raw.dtype)
    plan = attention_plan(sizes, None if row is None else row.shape, prepared=True)
    weights = query.new_empty(batch.numel(), 1, row_stride(m, query)) if source.nonfinite else None
    padded_output = query.new_empty(batch.numel(), 1, source.value.shape[2])
    _held, memory = huge_pages.leased_bytes("additive", query, plan.size)
    keys = source.factor, source.flag, source.group_maximum
    plan.run(query, raw, weight, memory, plan.mask_rows(row), source.value, padded_output, weights, keys=keys)
    output = padded_output[..., :d]
    if weights is not None:
        allowed = attendable(row, False, batch, 1, m)
        add_nonfinite(output, weights, flatten(value, raw.dtype), entry_index(batches[2], batch), allowed)
    return output.to(a.dtype).reshape(*batch, d).contiguous()


@step_op.register_fake
def _(a: Tensor, prepared: list[Tensor], b: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    batch = broadcast(a.shape[:-1], b.shape[:-2], value.shape[:-2], mask.shape[:-1] if mask is not None else ())
    return a.new_empty(*batch, value.shape[-1])


def step(prepared: Prepared, a: Tensor, b: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the context of `a` (*batch, h) over prepared keys and values, without gradients."""
    return step_op(a, prepared.tensors(), b.detach(), value.detach(), mask)


def fused(prepared: Prepared, b: Tensor, w_v: Tensor, value: Tensor) -> "FusedStep | None":
    """Return a `FusedStep` for addressable operands, finite values and equal batches; else None."""
    serves = not operations_intercepted() and all(map(addressable, (b, w_v, value)))
    serves = serves and b.shape[:-2] == value.shape[:-2] and not prepared.nonfinite
    return FusedStep(prepared, b, w_v, value) if serves else None


def _is_readable(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return x.shape == shape and x.dtype is dtype and addressable(x) and x.is_contiguous()


class FusedStep:
    """Decoding steps over one cache, each a single kernel call.

    ``__call__`` never raises; it returns None for a step that `step` must compute. After the first query out of the
    factors' range, it returns None for all later steps.
    """

    def __init__(self, prepared: Prepared, b: Tensor, w_v: Tensor, value: Tensor) -> None:
        batch, (m, h), d = b.shape[:-2], b.shape[-2:], value.shape[-1]
        entries, like, d_padded = batch.numel(), prepared.factor.new_empty(0), prepared.value.shape[2]
        self.query_shape, self.output_shape, self.mask_shape = (*batch, h), (entries, 1, d_padded), (*batch, m)
        self.result_shape, self.dtype, self.compute, self.sources = (*batch, d), b.dtype, like.dtype, (b, w_v, value)
        self.kernel = decoding_kernel(bits(like))
        self.tasks_and_work = entries, entries * m * (h + d_padded)
        stride = row_stride(m, like)
        self.scratch = sum(attention_scratch(bits(like), 1, stride, d_padded))
        index = entry_index(batch, batch)
        self.useful = True
        arguments = Decoding(
            tasks=entries, chunks=1, n=1, m=m, h=h, causal=False, stride=stride,
            scratch=like.new_empty(0, self.scratch), a_index=index, b_index=index, value_index=index,
            mask=None, mask_index=index * m, mask_row=0, value=prepared.value, d=d_padded, output=like, weights=None,
            terms=Terms(
                query_factor=like, key_factor=prepared.factor, ratio=prepared.ratio, offset=prepared.offset,
                minus_two_scale=prepared.minus_two_scale, unit=prepared.unit, clamp_tiles=None, pointwise=False,
                query_raw=like, key_raw=None, weight=prepared.w_v, query_flag=like, key_flag=prepared.flag,
            ),
            flip=prepared.flip, key_maximum=prepared.maximum, key_maximum_flag=prepared.maximum_flag,
            redo=array("q", [0]),
        )  # fmt: skip
        # referenced, because the argument slots hold addresses of these tensors
        self.arguments = arguments
        self.slots = arguments.to_slots()

    def __call__(self, a: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the context (*batch, d) of one query (*batch, h) per source, or None; mask (*batch, m)."""
        fits = _is_readable(a, self.query_shape, self.dtype)
        fits = fits and (mask is None or _is_readable(mask, self.mask_shape, torch.bool))
        if not (fits and self.useful) or needs_gradients(a, *self.sources) or operations_intercepted():
            return None
        threads, a = thread_count(*self.tasks_and_work), a.to(self.compute)
        output, factor = a.new_empty(self.output_shape), torch.empty_like(a)
        scratch, redo = a.new_empty(threads * self.scratch), array("q", [0])
        slots = self.slots.copy()
        slots[QUERY_RAW], slots[QUERY_FACTOR] = a.data_ptr(), factor.data_ptr()
        slots[OUTPUT], slots[SCRATCH] = output.data_ptr(), scratch.data_ptr()
        slots[REDO] = redo.buffer_info()[0]
        slots[MASK] = 0 if mask is None else mask.data_ptr()
        launch(self.kernel, threads, slots)
        if redo[0]:  # a query was out of the factors' range: later ones are likely to be, too
            self.useful = False
            return None
        return output.view(*self.result_shape[:-1], -1)[..., : self.result_shape[-1]].to(self.dtype).contiguous()
