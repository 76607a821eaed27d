"""Attention in groups of heads by the fastest kernels that serve a call, with log Σ exp, forward and backward.

On CUDA these are PyTorch's (`dot.cuda_groups`), on the CPU the compiled ones:

``step`` reads the keys of one query once, as they are stored (`dot.step`). ``few`` are kernels for few queries and
keys (`dot.few`). ``pytorch`` is the fused kernel of PyTorch, where it costs least and serves (`dot.fused_groups`).
``llvm`` are the kernels of scaled dot-product attention, which share keys among heads without copies and skip what
windows and lengths leave out. ``plain`` are PyTorch's operations (`formula`), with scores in memory: in
``torch.compile``, ``torch.func`` and modes, in forward mode, without llvmlite, where it costs less, for gradients of
biases and slopes, for empty operands, for scales and caps that are not between 2⁻⁴⁰ and 2⁴⁰, and where something is
not finite. Second derivatives are those of ``plain``.
"""

from array import array
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE, LLVM_DTYPES
from attnspec.backends.pytorch.kernels.dot import cuda_groups
from attnspec.backends.pytorch.kernels.dot.batches import batch_of, bias_of, four, mask_of, numbers_of
from attnspec.backends.pytorch.kernels.dot.fused_groups import attending, fused, is_fusible, is_simple
from attnspec.backends.pytorch.kernels.dot.group_gradients import GroupedCall, by_formula
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import finite, widened
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

PLAIN = 60.0
"""Microseconds that the operations of ``plain`` take more than PyTorch's fused kernel, of which the costs are known."""

FEW = 16
"""Heads of a group up to which a step reads the keys for each; beyond, they are the queries of one head."""

EVERYTHING, AS_IT_IS = Visible(), Scoring()


def path_for(query: Tensor, key: Tensor, value: Tensor, visible: Visible = EVERYTHING,
             scoring: Scoring = AS_IT_IS) -> str:  # fmt: skip
    """The path of query (*batch, heads, n, d), key and value (*batch, heads_k, m, d).

    ``step``, ``few``, ``llvm``, ``pytorch`` or ``plain`` on the CPU, ``enable_gqa``, ``flex`` or ``plain`` on CUDA.
    """
    if intercepted():
        return "plain"
    if not query.is_cpu or forced() == "flex":
        return cuda_groups.path_for(query, key, value, visible, scoring)
    if not (HAS_LLVMLITE and _served(query, key, value, visible, scoring)):
        return "plain"
    from attnspec.backends.pytorch.kernels.dot.group_routes import costs_least, few_costs_least, of_heads
    from attnspec.backends.pytorch.kernels.dot.routes import microseconds

    wish = forced()
    if wish not in (None, "llvm", "step", "few", "pytorch"):
        return "plain"
    fusible, is_few = (serves(query, key, value, visible, scoring) for serves in (is_fusible, _is_few))
    if wish == "few":
        return "few" if is_few else "plain"
    if is_few and wish is None and few_costs_least(query, key, value, fusible=fusible):
        return "few"
    if wish == "pytorch":
        return "pytorch" if fusible else "plain"
    if fusible and wish is None and costs_least(query, key, value):
        return "pytorch"
    if _is_step(query, key, value, visible, scoring):
        return "step"
    if wish == "step":
        return "plain"
    (heads, n, d), (heads_k, m, d_v) = query.shape[-3:], value.shape[-3:]
    entries = query.shape[:-3].numel() * heads
    if n == 1 and _joins(visible, scoring):
        entries, n = entries // heads * heads_k, heads // heads_k
    tracked = recorded(query, key, value)
    sizes = entries, n, m, d, d_v, query.dtype, tracked, torch.get_num_threads()
    by_llvm, by_pytorch = (microseconds(path, *sizes) or 0.0 for path in ("llvm", "pytorch"))
    by_llvm += of_heads(query, key, value)
    return "llvm" if wish == "llvm" or by_llvm <= by_pytorch + PLAIN else "plain"


def _served(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> bool:
    others = [x for x in (*visible, scoring.bias, scoring.slopes) if isinstance(x, Tensor)]
    d = query.shape[-1]
    scale = d**-0.5 if scoring.scale is None and d else scoring.scale or 0.0
    cap = 1.0 if scoring.softcap is None else scoring.softcap
    return (
        query.dtype in LLVM_DTYPES
        and query.dtype == key.dtype == value.dtype
        and torch._C._get_flash_sdp_enabled()  # on the CPU too
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and cuda_groups.SCALES[0] <= scale <= cuda_groups.SCALES[1]
        and cuda_groups.SCALES[0] <= cap <= cuda_groups.SCALES[1]
        and not (scoring.bias is not None and recorded(scoring.bias))
        and not (scoring.slopes is not None and recorded(scoring.slopes))
        and all(map(addressable, (query, key, value, *others)))
    )


def _is_step(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> bool:
    """Whether there is one query, and nothing but scale, lengths and a window."""
    from attnspec.backends.pytorch.kernels.dot import step

    alone = all(x is None for x in (scoring.softcap, scoring.bias, scoring.slopes, visible.mask))
    few = query.shape[-3] // key.shape[-3] < FEW
    return query.shape[-2] == 1 and alone and few and not recorded(query, key, value) and step.reads(key, value)


def _is_few(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> bool:
    """Whether the kernels for few queries serve the call: nothing but causality and scale, and one batch."""
    from attnspec.backends.pytorch.kernels.dot import few

    given = query, key, value
    one_batch = all(x.dim() == 4 and x.shape[0] == query.shape[0] for x in given)
    return one_batch and is_simple(visible, scoring) and few.serves(*given, None)


def _joins(visible: Visible, scoring: Scoring) -> bool:
    """Whether the heads of a group may be the queries of one head, where each has one query."""
    return visible.left is None and scoring.bias is None and scoring.slopes is None


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Visible,
           scoring: Scoring) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Output and log Σ exp in the dtype of sums; None where ``plain`` computes them.

    query (*batch, heads, n, d), key (*batch, heads_k, m, d), value (*batch, heads_k, m, d_v); batches broadcast.
    """
    path = path_for(query, key, value, visible, scoring)
    if path == "plain":
        return None
    if path in ("enable_gqa", "flex"):
        return cuda_groups.attend(path, query, key, value, visible, scoring)
    if path == "few":
        from attnspec.backends.pytorch.kernels.dot import few

        scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
        return few.grouped(query, key, value, visible.right == 0, scale)(query, key, value)
    if path == "pytorch":
        by_pytorch = fused(query, key, value, visible.right == 0, scoring.scale)
        assert by_pytorch is not None
        return attending(by_pytorch, recorded(query, key, value))(query, key, value)
    batch = batch_of(query, key, value, visible, scoring)
    query, key, value = four(query, batch), four(key, batch), four(value, batch)
    (b, heads, n, d), (heads_k, m, d_v) = query.shape, value.shape[-3:]
    lengths, offsets = numbers_of(visible.lengths, batch), numbers_of(visible.offsets, batch)
    scale = d**-0.5 if scoring.scale is None else scoring.scale
    if path == "step":
        from attnspec.backends.pytorch.kernels.dot import step

        start, stop = step.bounds(b, m, visible._replace(lengths=lengths, offsets=offsets))
        output, logarithms = step.attend(query, key, value, scale, start, stop)
        if bool(logarithms.isnan().any()):
            return None
    else:
        mask = None if visible.mask is None else mask_of(visible.mask, batch, m)
        right = visible.right
        joins = n == 1 and heads > heads_k and _joins(visible, scoring)
        if joins:
            if right is not None:
                lengths, right = _stops(b, m, right, lengths, offsets), None
            query = query.view(b, heads_k, heads // heads_k, d) if query.is_contiguous() else query.reshape(
                b, heads_k, heads // heads_k, d)  # fmt: skip
        bias = None if scoring.bias is None else bias_of(widened(scoring.bias.detach()), batch, m)
        slopes = None if scoring.slopes is None else widened(scoring.slopes.detach()) / scale
        call = GroupedCall(scale, visible.left, right, scoring.softcap)
        tensors = mask, lengths, offsets, slopes, bias
        if recorded(query, key, value):
            output, logarithms, nan = GroupedAttention.apply(query, key, value, call, *tensors)  # type: ignore[no-untyped-call]
            excludes = any(x is not None for x in visible)
            nan = nan or (excludes and not (finite(key) and finite(value)))
        else:
            output, logarithms, _, nan = _forward(query, key, value, call, *tensors)
        if nan:
            return None
        if joins:
            output, logarithms = output.reshape(b, heads, 1, d_v), logarithms.reshape(b, heads, 1)
    return output.reshape(*batch, heads, n, d_v), logarithms.reshape(*batch, heads, n)


def attend_in_pages(query: Tensor, key_pages: Tensor, value_pages: Tensor, table: Tensor, visible: Visible,
                    scoring: Scoring) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """The same for one query a head and keys in pages (pages, heads_k, page, d), whose numbers a table holds.

    ``table`` (*batch, blocks).
    """
    if path_for(query, key_pages, value_pages, visible, scoring) != "step" or not (
        addressable(table) and table.shape[-1]
    ):
        return None
    from attnspec.backends.pytorch.kernels.dot import step

    assert visible.lengths is not None
    batch = broadcast(query.shape[:-3], table.shape[:-1], visible.lengths.shape)
    query, b = four(query, batch), batch.numel()
    table = table.expand(*batch, table.shape[-1]).reshape(b, -1).to(torch.int64).contiguous()
    lengths, offsets = numbers_of(visible.lengths, batch), numbers_of(visible.offsets, batch)
    start, stop = step.bounds(b, 0, visible._replace(lengths=lengths, offsets=offsets))
    scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    output, logarithms = step.attend(query, key_pages, value_pages, scale, start, stop, table)
    if bool(logarithms.isnan().any()):
        return None
    return output.reshape(*batch, *output.shape[1:]), logarithms.reshape(*batch, *logarithms.shape[1:])


def _stops(b: int, m: int, right: int, lengths: Tensor | None, offsets: Tensor | None) -> Tensor:
    """How many keys the first query sees that has no end on the left."""
    stops = torch.full((b,), right + 1) if offsets is None else offsets + (right + 1)
    return stops.clamp(max=m) if lengths is None else torch.minimum(stops, lengths)


# The kernels


Tensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class GroupedAttention(torch.autograd.Function):
    """Output and log Σ exp in the dtype of sums, and whether a NaN is in the output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: GroupedCall, *tensors: Tensor | None
                ) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
        """``tensors`` are mask, lengths, offsets, slopes over the scale, and bias."""
        output, logarithms, numbers, nan = _forward(query, key, value, call, *tensors)
        ctx.save_for_backward(query, key, value, output, numbers, *tensors)
        ctx.call = call
        return output, logarithms, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_logarithms: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        query, key, value, output, numbers, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        gradient, of_logarithms = gradient.resolve_neg(), of_logarithms.resolve_neg()
        operands = gradient, of_logarithms, query, key, value, output, numbers
        if torch.is_grad_enabled() or intercepted() or not all(map(addressable, operands)):
            found = by_formula(ctx.call, (query, key, value), tensors, (gradient, of_logarithms), wanted)
        else:
            found = _backward(ctx.call, operands, tensors, wanted)
        return *found, None, None, None, None, None, None


def _forward(query: Tensor, key: Tensor, value: Tensor, call: GroupedCall, *tensors: Tensor | None
             ) -> tuple[Tensor, Tensor, Tensor, bool]:  # fmt: skip
    """Output and log Σ exp, maxima and reciprocals of the rows (2, b, heads, n), and whether the output has a NaN."""
    from attnspec.backends.pytorch.kernels.dot import cpu
    from attnspec.backends.pytorch.kernels.dot.arguments import Options, forward_scratch, padded
    from attnspec.backends.pytorch.kernels.dot.forward import Forward, forward_kernel
    from attnspec.backends.pytorch.kernels.dot.tiles import width
    from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count

    mask, lengths, offsets, slopes, bias = tensors
    query, key, value = cpu.rows(query), cpu.rows(key), cpu.rows(value)
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    output, numbers = query.new_empty(b, h, n, d_v), query.new_empty(2, b, h, n)
    logarithms = query.new_empty(b, h, n)
    options = Options(call.left, call.right, lengths, offsets, call.softcap, slopes, bias)
    operands = cpu.operands_of(
        query, key, value, mask, options, call.scale, output, numbers[0], numbers[1], logarithms
    )  # fmt: skip
    nan, tasks = array("q", [0]), b * h * -(-n // width(bits))
    threads = thread_count(tasks, b * h * n * m * (d + d_v) / 2)
    scratch = query.new_empty(threads, sum(forward_scratch(bits, padded(d, bits), padded(d_v, bits))))
    run(forward_kernel(bits), threads, Forward(tasks=tasks, operands=operands, scratch=scratch, nan=nan))
    return output, logarithms, numbers, nan[0] != 0


def _backward(call: GroupedCall, operands: tuple[Tensor, ...], tensors: list[Tensor | None],
              wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that need them, in their dtypes."""
    from attnspec.backends.pytorch.kernels.dot import cpu
    from attnspec.backends.pytorch.kernels.dot.arguments import KEYS, Options, backward_scratch, padded
    from attnspec.backends.pytorch.kernels.dot.backward import Backward, backward_kernel
    from attnspec.backends.pytorch.kernels.dot.tiles import TILE_ROWS
    from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count

    mask, lengths, offsets, slopes, bias = tensors
    dtype = operands[2].dtype
    gradient, query, key, value, output = (cpu.rows(operands[i]) for i in (0, 2, 3, 4, 5))
    of_rows, numbers = operands[1].contiguous(), operands[6].contiguous()
    (b, h, n, d), (heads_k, m, d_v), bits = query.shape, value.shape[-3:], query.element_size() * 8
    options = Options(call.left, call.right, lengths, offsets, call.softcap, slopes, bias)
    own = cpu.operands_of(query, key, value, mask, options, call.scale, output, numbers[0], numbers[1])
    d_padded, v_padded, m_padded = padded(d, bits), padded(d_v, bits), -(-m // TILE_ROWS) * TILE_ROWS
    threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
    keys = cpu.key_range(b * h, m, threads)
    ranges = -(-m // keys)
    by_query = by_key = by_value = None
    if wanted[0]:
        # a task writes no rows of queries that attend to none of its keys
        bounded = call.left is not None or offsets is not None or (call.right is not None and ranges > 1)
        by_query = (query.new_zeros if bounded else query.new_empty)(ranges, b, h, n, d)
    if wanted[1]:
        by_key = query.new_zeros(b, h, m_padded, d_padded)
    if wanted[2]:
        by_value = query.new_zeros(b, h, m_padded, v_padded)
    arguments = Backward(
        tasks=b * h * ranges, operands=own, range=keys, ranges=ranges, m_padded=m_padded, scale=call.scale,
        scratch=query.new_empty(threads, sum(backward_scratch(bits, d_padded, v_padded))), gradient=gradient,
        row_gradient=of_rows, query_gradient=by_query, key_gradient=by_key, value_gradient=by_value,
    )  # fmt: skip
    run(backward_kernel(bits), threads, arguments)
    return (
        None if by_query is None else (by_query[0] if ranges == 1 else by_query.sum(0)).to(dtype),
        None if by_key is None else _of_groups(by_key, heads_k)[:, :, :m, :d].to(dtype),
        None if by_value is None else _of_groups(by_value, heads_k)[:, :, :m, :d_v].to(dtype),
    )


def _of_groups(x: Tensor, heads_k: int) -> Tensor:
    """Sums over the heads of each group: they are added up head by head before, so that errors stay small."""
    return x if x.shape[1] == heads_k else x.view(x.shape[0], heads_k, -1, *x.shape[2:]).sum(2)
