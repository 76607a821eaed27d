"""Decode kernel: one query per head against many keys, bound by reading keys and values.

Keys and values are read once for all heads of a group, in place and as stored: half dtypes are half as many bytes. They
may lie in pages. A task is one head of keys. Keys come in blocks. Scores of up to four heads are sums over lanes; at
the end each lane holds one query-key pair. Values are summed with one column per lane. If the processor multiplies
pairs of bfloat16, groups of more than two heads use that, with weights split into two bfloat16 parts that keep 16 bits.
"""

from collections.abc import Callable, Sequence
from math import e, isnan, log2

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call, as_4d
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, buffer_slots, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import is_zen, multiplies_bfloat16, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import argument_buffer, thread_count
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import deinterleaved, exp2
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import upcast

from .decode_arguments import PAIRS, STORED, Decode
from .decode_rows import KeyRows, outputs_at_once

MANY_HEADS = 16
"""Heads per group from which `tiled` replaces this kernel; the heads are then queries of one head."""

BLOCK = 16
"""Keys per block: a register of scores, few enough that prefetched rows are still cached."""


def decode_scratch(lanes: int, group: Extent, d_v: Extent, members: int) -> tuple[Extent | int, ...]:
    """Scratch reals per thread: weights, their two bfloat16 parts, partial scores, factors; for each head of the group
    maxima, totals and output."""
    heads, scores = group + members, BLOCK * members
    return scores, scores // 2, scores // 2, lanes * lanes, lanes, heads * lanes, heads * lanes, heads * d_v


@compiled
def decode_kernel(bits: int, stored: str, members: int) -> Kernel[Decode]:
    """Kernel for output, row maximum and reciprocal of the row sum.

    ``members`` heads of a group are computed at once: each has a segment of every register of scores. The last few may
    number fewer; the last head is then repeated, with scratch memory of its own.
    """
    k, pairs = Kernel("dot_decode", Decode, bits), stored == PAIRS
    g, lowest, zero, segment = k.argument, k.full(float("-inf")), k.full(0.0), k.lanes // members
    outputs_together = outputs_at_once(stored, members)
    with k.tasks(g.tasks) as entry:
        batch, head_k = entry // g.heads_k, entry % g.heads_k
        sizes = decode_scratch(k.lanes, g.group, g.d_v, members)
        weights, high, low, partial, factors, maxima, totals, pooled = k.parts(g.scratch.of(k.thread), sizes)
        first_head, scale = entry * g.group, g.log2_scale.load()
        with k.loop(0, (g.group + members) * g.d_v, k.lanes) as i:
            k.store(zero, pooled, i)
        with k.loop(0, (g.group + members) * k.lanes, k.lanes) as i:
            k.store(lowest, maxima, i)
            k.store(zero, totals, i)
        start, stop = k.load_int(g.start, batch), k.load_int(g.stop, batch)
        end = (stop + g.page - 1) // g.page
        with k.loop(start // g.page, end) as page:
            # this page, and the next one to prefetch; without a table a batch element is one page
            numbers = Variable(k, batch), Variable(k, batch)
            with k.when(g.table.is_given()):
                for number, at in zip(numbers, (page, k.minimum(page + 1, end - 1)), strict=True):
                    number.set(k.load_int(g.table, batch * g.pages + at))
            this_page, next_page_number = (number.get() for number in numbers)
            keys, values, next_page = (
                x.of_head(y, head_k) for x, y in ((g.key, this_page), (g.value, this_page), (g.key, next_page_number))
            )
            before = page * g.page
            last = k.minimum(stop - before, g.page)
            with k.loop(k.maximum(start - before, k.integer(0)), last, BLOCK) as first:
                count = k.minimum(last - first, k.integer(BLOCK))
                later = keys + (first + BLOCK) * g.key.row
                next_key = k.select((first + BLOCK).compare("<", last), later.address, next_page.address)
                key, value = keys + first * g.key.row, values + first * g.value.row
                rows = KeyRows(k, stored, key, value, BytePointer(next_key), count)
                with k.loop(0, g.group, members) as member:
                    heads = [k.minimum(member + i, g.group - 1) + first_head for i in range(members)]
                    queries = [g.query + head * (g.d // 2 if pairs else g.d) for head in heads]
                    largest = Variable(k, lowest)
                    with k.loop(0, count, segment) as at:
                        scores = rows.scores(queries, at, partial)
                        scores = k.select(k.lanes_of_segments_below(count - at, segment), scores, lowest)
                        k.store(scores, weights, at * members)
                        largest.set(k.maximum(scores, largest.get()))
                    place = member * k.lanes
                    old, total = k.load(maxima, place), Variable(k, zero)
                    new = k.maximum(k.of_segments(largest.get(), segment, k.maximum), old)
                    shift = k.select(new.compare("==", lowest), zero, new)
                    with k.loop(0, count, segment) as at:
                        weight = exp2(k, (k.load(weights, at * members) - shift) * scale)
                        total.add(weight)
                        if pairs:
                            place_of_half = at * members * 2
                            k.store_stored(weight, BytePointer(high.address), place_of_half, "bfloat16")
                            rounded = k.load_stored(BytePointer(high.address), place_of_half, "bfloat16")
                            k.store_stored(weight - rounded, BytePointer(low.address), place_of_half, "bfloat16")
                        else:
                            k.store(weight, weights, at * members)
                    shrink = exp2(k, (old - shift) * scale)
                    k.store(new, maxima, place)
                    k.store(k.fma(k.load(totals, place), shrink, total.get()), totals, place)
                    k.store(shrink, factors, 0)
                    outputs = [pooled + (member + i) * g.d_v for i in range(members)]
                    for first_output in range(0, members, outputs_together):
                        lane = first_output * segment
                        own_outputs = outputs[first_output : first_output + outputs_together]
                        if pairs:
                            parts = high + lane // 2, low + lane // 2
                            rows.pool_pairs(parts, factors + lane, own_outputs, segment)
                        else:
                            rows.pool(weights + lane, factors + lane, own_outputs, segment)
        with k.loop(0, g.group) as member:
            place, own_lane = member // members * members * k.lanes, member % members * segment
            sums = k.of_segments(k.load(totals, place), segment, lambda x, y: x + y)
            empty = sums.compare("==", zero)
            k.store(k.select(empty, zero, k.full(1.0) / sums), factors, 0)
            reciprocal = k.broadcast(factors, own_lane)
            k.store_first(reciprocal, g.reciprocal, first_head + member)
            k.store(k.select(empty, zero, k.load(maxima, place)), factors, 0)
            row, target = pooled + member * g.d_v, g.output + (first_head + member) * g.d_v
            row_maximum = Variable(k, k.broadcast(factors, own_lane))
            if pairs:
                with k.loop(0, g.d_v, 2 * k.lanes) as column:
                    low_half, high_half = k.load(row, column), k.load(row, column + k.lanes)
                    ordered = deinterleaved(k, low_half * reciprocal, high_half * reciprocal)
                    for c, own_values in enumerate(ordered):
                        k.store(own_values, target, column + c * k.lanes)
                        nan = k.any(own_values.compare("!=", own_values))
                        row_maximum.set(k.select(nan, k.full(float("nan")), row_maximum.get()))
            else:
                with k.loop(0, g.d_v, k.lanes) as column:
                    k.store(k.load(row, column) * reciprocal, target, column)
            k.store_first(row_maximum.get(), g.maximum, first_head + member)
    return k


def serves(call: Call) -> bool:
    """Return whether heads have one query, rows fill registers, and options are scale, lengths, window."""
    query, key, value, options, (mask, _, _, slopes, bias), *_ = call
    alone = all(x is None for x in (mask, slopes, bias, options.softcap))
    if query.shape[-2] != 1 or not alone or call.differentiates():
        return False
    lanes = register_bytes() // upcast(key[:0]).element_size()
    whole = all(x.shape[-1] % lanes == 0 and x.stride(-1) == 1 for x in (key, value))
    return whole and query.shape[1] // key.shape[1] < MANY_HEADS


def bounds(b: int, m: int, visible: Visible) -> tuple[Tensor, Tensor]:
    """First key (b) and end (b) of the only query's keys; lengths and offsets are (b) or None."""
    _, left, right, lengths, offsets = visible
    if left is None and right is None and lengths is not None:
        return torch.zeros_like(lengths), lengths
    start, stop = torch.zeros(b, dtype=torch.int64), torch.full((b,), m) if lengths is None else lengths
    aligned = start if offsets is None else offsets
    if left is not None:
        start = (aligned - left).clamp(min=0)
    if right is not None:
        stop = torch.minimum(stop, aligned + (right + 1))
    return start, torch.maximum(stop, start)


def plan(
    call: Call, operands: Sequence[Tensor], rank: int, table: Tensor | None = None
) -> Callable[..., tuple[Tensor, Tensor | None] | None]:
    """Return the function for calls like this one; it returns None if log Σ exp is NaN.

    Later calls have lengths and offsets if this call has. ``table`` (b, blocks) holds numbers of pages.
    """
    query, key, value, options, tensors = *(as_4d(x, rank) for x in operands), call.options, call.tensors
    (b, heads, _, d), (heads_k, page, d_v), dtype = query.shape, value.shape[1:], query.dtype
    shape, group, rows = (*operands[0].shape[:-1], d_v), heads // heads_k, b * heads
    visible = Visible(None, options.left, options.right, tensors.lengths, tensors.offsets)
    start, stop = bounds(b, page, visible)
    bounds_vary = tensors.lengths is not None or tensors.offsets is not None
    sees_all_keys = not bounds_vary and options.left is options.right is None
    pairs, sums = multiplies_pairs(query, key, value), upcast(query[:0]).dtype
    wide, size = query.new_empty(b, heads, 1, d_v, dtype=sums), sums.itemsize
    members, lanes = 1 if group == 1 else 2 if group == 2 else 4, register_bytes() // size
    blocks, scratch = 1 if table is None else table.shape[-1], sum(decode_scratch(lanes, group, d_v, members))
    threads = thread_count(b * heads_k, rows * page * blocks * (d + d_v) / 2)
    arguments = Decode(
        tasks=b * heads_k, heads_k=heads_k, group=group, d=d, d_v=d_v, page=page, pages=blocks,
        log2_scale=options.scale * log2(e), table=table, start=start, stop=stop, query=wide, key=key, value=value,
        output=wide, maximum=wide, reciprocal=wide, scratch=wide.new_empty(1, scratch),
    )  # fmt: skip
    kernel = decode_kernel(8 * size, PAIRS if pairs else STORED[key.dtype], members)
    template, results = argument_buffer(arguments.to_slots()), sums if options.wide else dtype

    def attend(
        query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None, lengths: Tensor | None = None,
        offsets: Tensor | None = None, *others: Tensor | None,
    ) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
        first, last, wide = start, stop, query
        if bounds_vary:
            first, last = bounds(b, page, visible._replace(lengths=lengths, offsets=offsets))
        if dtype is not sums and not pairs:
            wide = query.to(sums)
        wide = wide if wide.is_contiguous() else wide.contiguous()
        output = torch.empty(shape, dtype=sums)
        statistics_and_scratch = torch.empty(2 * rows + threads * scratch, dtype=sums)
        buffer = template[:]
        buffer[_QUERY], buffer[_KEY], buffer[_VALUE] = wide.data_ptr(), key.data_ptr(), value.data_ptr()
        buffer[_START], buffer[_STOP], buffer[_OUTPUT] = first.data_ptr(), last.data_ptr(), output.data_ptr()
        buffer[_MAXIMUM] = address = statistics_and_scratch.data_ptr()
        buffer[_RECIPROCAL], buffer[_SCRATCH] = address + rows * size, address + 2 * rows * size
        call_kernel(kernel, threads, buffer)
        if not options.logarithms:
            return output.to(results), None
        maxima, reciprocals = statistics_and_scratch[: 2 * rows].view(2, b, heads, 1).unbind()
        logarithms = torch.add(reciprocals.log().neg_(), maxima, alpha=options.scale)
        if not sees_all_keys:
            logarithms.masked_fill_(reciprocals == 0, -torch.inf)  # no key was attendable
        if isnan(logarithms.sum()):  # the maxima are part of it, and mark NaN in the output
            return None
        return output.to(results), logarithms.to(results)

    return attend


_QUERY, _KEY, _VALUE, _START, _STOP, _OUTPUT, _MAXIMUM, _RECIPROCAL, _SCRATCH = buffer_slots(
    Decode.query, Decode.key, Decode.value, Decode.start, Decode.stop, Decode.output, Decode.maximum,
    Decode.reciprocal, Decode.scratch,
)  # fmt: skip


def multiplies_pairs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether products use pairs of bfloat16; one or two heads are bound by reading keys.

    Not on Intel's processors, where a product of pairs takes as long as four products of float32.
    """
    pairs, many_heads = register_bytes() // 2, query.shape[1] > 2 * key.shape[1]
    columns = query.shape[-1] % pairs == 0 and value.shape[-1] % pairs == 0
    return many_heads and columns and query.dtype is key.dtype is torch.bfloat16 and is_zen() and multiplies_bfloat16()
