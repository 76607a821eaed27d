"""Kernel of additive attention for one block of query rows: scores, softmax, weighted values."""

from math import e, log2

from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2

from .arguments import Attend, attention_scratch
from .products import Finish, emit_product, emit_row_product
from .scores import Block, emit_scores
from .tiles import CHUNK, KEY_TILE, PRODUCT_ROWS, ROW_TILE


@compiled
def attend_kernel(bits: int, single: bool) -> Kernel[Attend]:
    """Write the output, and weights if their slot is set; `single` for one query, with its own tile sizes."""
    k = Kernel("attend_single" if single else "attend", Attend, bits)
    with k.tasks(k.argument.tasks) as task:
        emit_attention(k, Block(k, task, 1 if single else CHUNK), single)
    return k


def emit_attention(k: Kernel[Attend], block: Block, single: bool) -> None:
    """Emit scores, weights and pooled values of a block; `single` if it has one row."""
    g = k.argument
    rows, row_tile, product_rows = (1, 1, 1) if single else (CHUNK, ROW_TILE, PRODUCT_ROWS)

    def set_needed(needed: Variable, query_numbers: list[Value], first_key: Value) -> None:
        with k.when(g.mask.is_given()):
            needed.set(_any_attendable(k, block, query_numbers, first_key))

    emit_scores(k, block, row_tile, set_needed, single)
    weights, reciprocals, pooled = k.parts(block.scores, attention_scratch(k.bits, rows, block.stride, g.d))
    # range of keys to pool: all, or under a mask an empty one that grows with the attendable keys of each row
    unmasked = g.mask.is_null()
    low = Variable(k, k.select(unmasked, k.integer(0), block.keys))
    high = Variable(k, k.select(unmasked, block.keys, k.integer(0)))
    with k.loop(0, block.rows) as i:
        _softmax_row(k, block, i, reciprocals, low, high)
    value = g.value + k.load_int(g.value_index, block.batch) * g.m * g.d
    with k.loop(0, block.rows, product_rows) as i:
        output = (block.batch * g.n + block.first + i) * g.d
        finish = Finish(k, g.output, output, g.d, block.rows - i, reciprocals + i)
        inner = low.get(), high.get()
        if single:
            emit_row_product(k, weights, inner, value, g.d, pooled, finish)
        else:
            offsets = [(i + r) * block.stride for r in range(product_rows)]
            emit_product(k, weights, offsets, 1, inner, value, g.d, finish)


def _softmax_row(k: Kernel[Attend], block: Block, i: Value, reciprocals: RealPointer, low: Variable,
                 high: Variable) -> None:  # fmt: skip
    """Replace a row's scores by exp(score − maximum), exactly 0 where not attendable; store 1 / their sum.

    Under a mask the range low..high grows to cover the row's attendable keys. If the scores of all attendable keys are
    −∞, they become NaN.
    """
    g = k.argument
    number = block.first + i
    row = block.scores + i * block.stride
    limit = k.select(g.causal.is_nonzero(), k.minimum(number + 1, g.m), g.m)
    end = block.key_blocks * (KEY_TILE * k.lanes)
    lowest = k.full(float("-inf"))
    maximum = Variable(k, lowest)
    # registers with only attendable keys need no selection and no store
    whole = k.select(g.mask.is_null(), limit // k.lanes * k.lanes, k.integer(0))
    with k.loop(0, whole, k.lanes) as j:
        maximum.set(k.maximum(k.load(row, j), maximum.get()))  # in this order a NaN score is ignored
    with k.loop(whole, end, k.lanes) as j:
        attendable = Variable(k, k.lanes_below(limit - j))
        with k.when(g.mask.is_given()):
            attendable.set(k.load_bytes(_mask_row(k, block, number), j, attendable.get()))
            with k.when(k.any(attendable.get())):
                low.set(k.minimum(low.get(), j))
                high.set(k.maximum(high.get(), k.minimum(j + k.lanes, block.keys)))
        score = k.select(attendable.get(), k.load(row, j), lowest)
        k.store(score, row, j)
        maximum.set(k.maximum(score, maximum.get()))
    largest = k.max(maximum.get())
    all_lowest = largest.compare("==", lowest)
    with k.when(k.any(all_lowest)), k.loop(0, end, k.lanes) as j:
        attendable = Variable(k, k.lanes_below(limit - j))
        with k.when(g.mask.is_given()):
            attendable.set(k.load_bytes(_mask_row(k, block, number), j, attendable.get()))
        k.store(k.select(attendable.get(), k.full(float("nan")), lowest), row, j)
    largest = k.select(all_lowest, k.full(0.0), largest)
    # Scores are stored divided by `Weight.unit`, for fear of overflow. Multiplied by it, differences may become −∞,
    # with weight 0; scores might become ∞, and their difference NaN.
    total, unit = Variable(k, k.full(0.0)), k.broadcast(g.terms.unit, 0) * log2(e)
    with k.loop(0, end, 2 * k.lanes) as first:
        for j in (first, first + k.lanes):
            weight = exp2(k, (k.load(row, j) - largest) * unit)
            k.store(weight, row, j)
            total.add(weight)
    row_sum = k.sum(total.get())
    reciprocal = k.select(row_sum.compare("==", 0.0), k.full(0.0), k.full(1.0) / row_sum)
    k.store_first(reciprocal, reciprocals, i)
    with k.when(g.weights.is_given()):
        saved = (block.batch * g.n + number) * block.stride
        with k.loop(0, end, k.lanes) as j:
            weight = k.load(row, j)
            # an excluded key keeps weight 0 even if the row is NaN
            k.store(k.select(weight.compare("==", 0.0), weight, weight * reciprocal), g.weights, saved + j)


def _any_attendable(k: Kernel[Attend], block: Block, query_numbers: list[Value], first_key: Value) -> Value:
    """Return 1 if a query may attend to a key of the tile, else 0."""
    any_lane = None
    for number in query_numbers:
        row = _mask_row(k, block, number)
        for t in range(KEY_TILE):
            key = first_key + t * k.lanes
            bits = k.load_bytes(row, key, k.lanes_below(k.argument.m - key))
            any_lane = bits if any_lane is None else any_lane | bits
    assert any_lane is not None
    return k.select(k.any(any_lane), k.integer(1), k.integer(0))


def _mask_row(k: Kernel[Attend], block: Block, number: Value) -> BytePointer:
    g = k.argument
    return g.mask + k.load_int(g.mask_index, block.batch) + number * g.mask_row
