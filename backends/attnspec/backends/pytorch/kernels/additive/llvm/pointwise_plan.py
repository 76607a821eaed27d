"""Plans of the pointwise kernels (path ``pointwise``), one for all calls with the same shapes."""

from array import array
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.decode_arguments import STORED
from attnspec.backends.pytorch.kernels.llvm.bfloat16_pairs import nan_stays_in_row
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, buffer_slots
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, is_zen, multiplies_bfloat16, register_bytes
from attnspec.backends.pytorch.kernels.llvm.matmul import LEAST_WORK
from attnspec.backends.pytorch.kernels.llvm.threads import worth_waking
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.plans import plan_class

from .pointwise_kernels import Backward, Forward, forward_kernel

PIECE = 2**17 if is_zen() else 2**20
"""Elements of projected keys in one piece of a batch: 512 KiB of float32, or 4 MiB."""

PARTS_REALS = is_zen()
"""True if float32 and float64 batches are split into pieces, not only half dtypes. On Intel's processors, whose caches
are large, PyTorch's products of whole matrices gain more than pieces save."""

PIECE_OF_WEIGHTS = 4
"""Least elements of a piece per element of a projection weight. Each piece reads the weights twice and adds to their
gradients."""

LEAST_QUERIES = 4
"""Least queries of a piece; each is a task for a thread. Results depend on pieces, but not on the thread count."""


class Operands(NamedTuple):
    """Operands, in field order: (*batch, n, d_q), (*batch, m, d_k), (*batch, m, d_v), (h, d_q), (h, d_k), (h).

    Without w_q and w_k, query and key are projected already.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    w_q: Tensor | None
    w_k: Tensor | None
    w_v: Tensor


@plan_class
class Plan:
    """Kernels, sizes and argument slots shared by calls of equal shapes, dtype and flags.

    ``shared``: whether all entries of the batch share one query, key, value. ``half``: operands have a half dtype.
    ``reads`` is the stored format of values, as in `Memory.load_stored`; "real" is the dtype of sums, of ``bits`` bits.
    With ``rounds``, gradients of projections are rounded to bfloat16, whose products are twice as fast. ``pieces`` are
    ranges (start, stop) of batch entries, computed one after the other. ``parallel``: threads share a call. ``scratch``
    is the number of reals per thread. The buffers have no addresses yet.
    """

    batch: torch.Size
    entries: int
    n: int
    m: int
    h: int
    d: int
    shared: tuple[bool, bool, bool]
    mask_shape: tuple[int, ...]
    causal: bool
    half: bool
    reads: str
    rounds: bool
    pieces: tuple[tuple[int, int], ...]
    parallel: bool
    scratch: int
    forward: "Compiled[Forward]"
    forward_buffer: "array[int]"
    backward_buffer: "array[int]"
    bits: int

    @property
    def real(self) -> torch.dtype:
        """The dtype of sums."""
        return torch.float64 if self.bits == 64 else torch.float32


def plan(operands: Operands, mask: Tensor | None, causal: bool, batch: torch.Size) -> Plan | None:
    """Return the plan of a valid, non-empty call; None if an operand broadcasts over part of the batch."""
    query, key, value, w_q, w_k, w_v = operands
    entries, n, m, h, d = batch.numel(), query.shape[-2], key.shape[-2], w_v.shape[0], value.shape[-1]
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    if any(x.shape[:-2] != batch and x.shape[:-2].numel() != 1 for x in tensors):
        return None
    shared = [x.shape[:-2].numel() != entries for x in tensors]  # in a batch of one, nothing counts as shared
    bits = 64 if query.dtype is torch.float64 else 32
    half = query.dtype in HALF_DTYPES
    mask_rows = 0 if mask is None else mask.shape[-2]
    weight_elements = 0 if w_k is None else w_k.numel()
    widest = max(h, key.shape[-1], d) if half else max(h, 1)  # half keys and values are widened too
    size = max(-(-LEAST_QUERIES // n), max(PIECE, PIECE_OF_WEIGHTS * weight_elements) // (m * widest))
    splits = half or (PARTS_REALS and w_q is not None)
    whole = any(shared) or not splits or size >= entries
    pieces = ((0, entries),) if whole else tuple((i, min(i + size, entries)) for i in range(0, entries, size))
    large = len(pieces) > 1 or entries * max(n, m) * h * key.shape[-1] >= LEAST_WORK
    in_pairs = query.dtype is torch.bfloat16 and w_q is not None and multiplies_bfloat16()
    # depths of the products of gradients: of inputs, of w_q and of w_k
    in_pairs = in_pairs and nan_stays_in_row(h) and nan_stays_in_row(entries * n) and nan_stays_in_row(entries * m)
    # half formats pay in large calls only, and shared operands need sums over entries, which are wide
    keeps_format = large and not any(shared)
    reads, rounds = STORED[query.dtype] if keeps_format else "real", keeps_format and in_pairs
    sizes = {
        "n": n, "m": m, "h": h, "d": d, "causal": int(causal),
        "a_entry": 0 if shared[0] else n * h, "b_entry": 0 if shared[1] else m * h,
        "value_entry": 0 if shared[2] else m * d,
    }  # fmt: skip
    mask_entry, mask_row = 0 if mask is None or shared[3] else mask_rows * m, m if mask_rows > 1 else 0
    scratch = m + register_bytes() * 8 // bits  # scores of a query, and a register that may be read beyond them
    forward = _buffer(Forward, scratch, sizes | {"mask_entry": mask_entry, "mask_row": mask_row})
    backward = _buffer(Backward, scratch, sizes | {"tasks": entries})
    return Plan(
        batch, entries, n, m, h, d, shared=(shared[0], shared[1], shared[2]),
        mask_shape=() if mask is None else (*mask.shape[:-1], m), causal=causal, half=half, reads=reads, rounds=rounds,
        pieces=pieces, parallel=worth_waking(entries * n, entries * n * m * h), scratch=scratch,
        forward=forward_kernel(bits, reads), forward_buffer=forward, backward_buffer=backward, bits=bits,
    )  # fmt: skip


TASKS, SCRATCH, A, B, W, VALUE, MASK, OUTPUT, WEIGHTS, NAN_ADDRESS = buffer_slots(
    Forward.tasks, Forward.scratch, Forward.a, Forward.b, Forward.w, Forward.value, Forward.mask, Forward.output,
    Forward.weights, Forward.nan,
)  # fmt: skip
"""Slots of `Plan.forward_buffer` that each call fills in."""

NAN_FLAG = LEADING + Forward.slots
"""The slot that the kernel sets if it met a NaN."""


def _buffer(arguments: Any, scratch: int, sizes: dict[str, int]) -> "array[int]":
    """Return argument slots: leading ones, sizes, zeros for addresses, and a last one for the NaN flag."""
    buffer = array("q", bytes(8 * (LEADING + arguments.slots + 1)))
    for name, size in sizes.items():
        buffer[LEADING + getattr(arguments, name)] = size
    buffer[LEADING + arguments.scratch + 1] = scratch  # a scratch argument has two slots: address, and reals per thread
    return buffer


def wide(operands: Operands, reads: str) -> Operands:
    """Return half-dtype operands in float32; values stay if the kernels read their dtype."""
    query, key, value, w_q, w_k, w_v = operands
    value = value.float() if reads == "real" else value
    if w_q is not None and w_k is not None:
        w_q, w_k = w_q.float(), w_k.float()
    return Operands(query.float(), key.float(), value, w_q, w_k, w_v.float())
