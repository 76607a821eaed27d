"""One query in each head against many keys: a step of decoding, bound by reading keys and values.

Keys and values are read once for all heads of a group, where they lie and as they are stored: in half dtypes they are
half as many bytes. They may lie in pages. A task is one head of keys. Keys come in blocks; scores of up to four heads
are sums over lanes, at the end with a query and a key in each; values are added up with a column in each lane. Where
the processor multiplies pairs of bfloat16, products are taken so for many heads, with weights in two parts, which keep
16 bits of them.
"""

from collections.abc import Callable, Sequence
from math import e, isnan, log2

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, is_zen, multiplies_bfloat16, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import call, run, thread_count, with_leading
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, Extent, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import deinterleaved, exp2
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import widened

from . import logarithms
from .key_rows import KeyRows, together
from .step_arguments import PAIRS, STORED, Step

BLOCK = 16
"""Keys in a block: a whole register of scores, and few enough that all is at hand that was asked for ahead."""


def step_scratch(lanes: int, group: Extent, d_v: Extent, members: int) -> tuple[Extent | int, ...]:
    """Reals of a thread: weights, two parts of them in bfloat16, parts of scores, factors; for each head of the group
    maxima, totals, the output."""
    heads, some = group + members, BLOCK * members
    return some, some // 2, some // 2, lanes * lanes, lanes, heads * lanes, heads * lanes, heads * d_v


@compiled
def step_kernel(bits: int, stored: str, members: int) -> Kernel[Step]:
    """Output, row maximum and reciprocal of the row sum, so many heads at once, of keys and values stored so."""
    k, pairs = Kernel("dot_step", Step, bits), stored == PAIRS
    g, lowest, zero, segment = k.argument, k.full(float("-inf")), k.full(0.0), k.lanes // members
    at_once = together(stored, members)
    with k.tasks(g.tasks) as entry:
        batch, head_k = entry // g.heads_k, entry % g.heads_k
        sizes = step_scratch(k.lanes, g.group, g.d_v, members)
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
            numbers = Variable(k, batch), Variable(k, batch)
            with k.when(g.table.is_given()):
                for number, at in zip(numbers, (page, k.minimum(page + 1, end - 1)), strict=True):
                    number.set(k.load_int(g.table, batch * g.pages + at))
            own, following = (number.get() for number in numbers)
            keys, values, next_page = (
                x.of_head(y, head_k) for x, y in ((g.key, own), (g.value, own), (g.key, following))
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
                    for some in range(0, members, at_once):
                        lane = some * segment
                        own_outputs = outputs[some : some + at_once]
                        if pairs:
                            parts = high + lane // 2, low + lane // 2
                            rows.pool_pairs(parts, factors + lane, own_outputs, segment)
                        else:
                            rows.pool(weights + lane, factors + lane, own_outputs, segment)
        with k.loop(0, g.group) as member:
            place, own_lane = member // members * members * k.lanes, member % members * segment
            sums = k.of_segments(k.load(totals, place), segment, lambda x, y: x + y)
            none = sums.compare("==", zero)
            k.store(k.select(none, zero, k.full(1.0) / sums), factors, 0)
            reciprocal = k.broadcast(factors, own_lane)
            k.store_first(reciprocal, g.reciprocal, first_head + member)
            k.store(k.select(none, zero, k.load(maxima, place)), factors, 0)
            row, target = pooled + member * g.d_v, g.output + (first_head + member) * g.d_v
            found = Variable(k, k.broadcast(factors, own_lane))
            if pairs:
                with k.loop(0, g.d_v, 2 * k.lanes) as column:
                    low_half, high_half = k.load(row, column), k.load(row, column + k.lanes)
                    ordered = deinterleaved(k, low_half * reciprocal, high_half * reciprocal)
                    for c, own_values in enumerate(ordered):
                        k.store(own_values, target, column + c * k.lanes)
                        nan = k.any(own_values.compare("!=", own_values))
                        found.set(k.select(nan, k.full(float("nan")), found.get()))
            else:
                with k.loop(0, g.d_v, k.lanes) as column:
                    k.store(k.load(row, column) * reciprocal, target, column)
            k.store_first(found.get(), g.maximum, first_head + member)
    return k


def reads(key: Tensor, value: Tensor) -> bool:
    """Whether the kernel takes keys and values (…, rows, columns) of these strides: rows of whole registers."""
    lanes = register_bytes() // widened(key[:0]).element_size()
    return all(x.shape[-1] % lanes == 0 and x.stride(-1) == 1 for x in (key, value))


def bounds(b: int, m: int, visible: Visible) -> tuple[Tensor, Tensor]:
    """The first key (b) that the only query sees, and the one behind the last; lengths and offsets are (b) or None."""
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


def planned(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Callable[..., tuple[Tensor, Tensor] | None]:
    """What computes calls like this one against all keys: output and log Σ exp in the dtype of the operands.

    It gives None where a NaN is in a result.
    """
    compute, dtype = _planned(query, key, value, scale, (*query.shape[:-1], value.shape[-1])), query.dtype
    b, heads = query.shape[:2]
    rows = b * heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        output, numbers = compute(query, key, value)
        found = logarithms.of_rows(numbers[:rows], numbers[rows : 2 * rows], scale)
        if isnan(found.sum()):
            return None
        found = found.view(b, heads, 1)
        return (output, found) if output.dtype is dtype else (output.to(dtype), found.to(dtype))

    return attend


def planned_output(
    query: Tensor, key: Tensor, value: Tensor, scale: float, shape: Sequence[int]
) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """A function that computes the output, of this shape, of calls like this one against all keys, without a mask.

    Operands are given in four dimensions; those of a call may have fewer, if they lie in the same way.
    """
    compute, dtype = _planned(query, key, value, scale, shape), query.dtype

    def attend(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None = None) -> Tensor:
        return compute(query, key, value)[0].to(dtype)

    return attend


def _planned(
    query: Tensor, key: Tensor, value: Tensor, scale: float, shape: Sequence[int]
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The output, of this shape, and maxima and reciprocals of all rows one after another, in the dtype of sums."""
    (b, heads, *_), (m, d_v) = query.shape, value.shape[-2:]
    wide = widened(query[..., :0])
    output, numbers = wide.new_empty(b, heads, 1, d_v), wide.new_empty(2, b, heads, 1)
    start, stop = torch.zeros(b, dtype=torch.int64), torch.full((b,), m)
    kernel, threads, arguments, scratch = _call(query, key, value, scale, start, stop, None, output, numbers)
    template = with_leading(arguments.to_words())
    size, rows = wide.element_size(), b * heads
    sums, pairs = wide.dtype, _in_pairs(query, key, value)

    def compute(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        wide = query.float() if size == 4 and not pairs else query
        wide = wide if wide.is_contiguous() else wide.contiguous()
        output = torch.empty(shape, dtype=sums)
        numbers = torch.empty(2 * rows + threads * scratch, dtype=sums)
        words = template[:]
        words[_QUERY], words[_KEY], words[_VALUE] = wide.data_ptr(), key.data_ptr(), value.data_ptr()
        words[_START], words[_STOP], words[_OUTPUT] = start.data_ptr(), stop.data_ptr(), output.data_ptr()
        words[_MAXIMUM] = address = numbers.data_ptr()
        words[_RECIPROCAL], words[_SCRATCH] = address + rows * size, address + 2 * rows * size
        call(kernel, threads, words)
        return output, numbers

    return compute


_QUERY, _KEY, _VALUE, _START, _STOP, _OUTPUT, _MAXIMUM, _RECIPROCAL, _SCRATCH = (
    LEADING + word
    for word in (
        Step.query, Step.key, Step.value, Step.start, Step.stop, Step.output, Step.maximum, Step.reciprocal,
        Step.scratch,
    )
)  # fmt: skip


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float, start: Tensor, stop: Tensor,
           table: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (b, heads, 1, d_v) and log Σ exp (b, heads, 1) in the dtype of sums, of query (b, heads, 1, d).

    key (b, heads_k, m, d) and value (b, heads_k, m, d_v), or pages (pages, heads_k, page, d) that a table (b, blocks)
    numbers; start and stop (b) are contiguous 64-bit integers.
    """
    b, heads, d_v, wide = *query.shape[:2], value.shape[-1], widened(query[..., :0])
    output, numbers = wide.new_empty(b, heads, 1, d_v), wide.new_empty(2, b, heads, 1)
    kernel, threads, arguments, _ = _call(query, key, value, scale, start, stop, table, output, numbers)
    run(kernel, threads, arguments)
    return output, logarithms.of_numbers(numbers, scale)


def _call(
    query: Tensor, key: Tensor, value: Tensor, scale: float, start: Tensor, stop: Tensor, table: Tensor | None,
    output: Tensor, numbers: Tensor,
) -> tuple[Compiled[Step], int, Step, int]:  # fmt: skip
    """The kernel, how many threads run it, its arguments, and reals of scratch memory of each thread."""
    (b, heads, _, d), (heads_k, page, d_v) = query.shape, value.shape[1:]
    pairs = _in_pairs(query, key, value)
    stored = PAIRS if pairs else STORED[key.dtype]
    own = query.contiguous().view(torch.float32) if pairs else widened(query).contiguous()
    group, lanes = heads // heads_k, register_bytes() // output.element_size()
    tasks, members = b * heads_k, 1 if group == 1 else 2 if group == 2 else 4
    blocks = 1 if table is None else table.shape[-1]
    threads = thread_count(tasks, b * heads * page * blocks * (d + d_v) / 2)
    scratch = sum(step_scratch(lanes, group, d_v, members))
    arguments = Step(
        tasks=tasks, heads_k=heads_k, group=group, d=d, d_v=d_v, page=page, pages=blocks,
        log2_scale=scale * log2(e), table=table, start=start, stop=stop, query=own, key=key, value=value,
        output=output, maximum=numbers[0], reciprocal=numbers[1],
        scratch=output.new_empty(threads, scratch),
    )  # fmt: skip
    return step_kernel(output.element_size() * 8, stored, members), threads, arguments, scratch


def _in_pairs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether products are taken in pairs of bfloat16: of many heads with each key, for few are read no faster.

    Intel's processors take as long for a pair as for four products of float32.
    """
    pairs, many = register_bytes() // 2, query.shape[1] > 2 * key.shape[1]
    columns = query.shape[-1] % pairs == 0 and value.shape[-1] % pairs == 0
    return many and columns and query.dtype is key.dtype is torch.bfloat16 and is_zen() and multiplies_bfloat16()
