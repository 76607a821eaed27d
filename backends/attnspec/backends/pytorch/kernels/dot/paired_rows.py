"""Calls of the kernels that attend by products of pairs, for all entries, or as many as stay in the cache.

The words of a kernel's arguments are made once for all calls of the same sizes; each call fills in addresses.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, get_num_threads

from attnspec.backends.pytorch.kernels.dot.paired_kernels import (
    PANEL,
    Forward,
    KeyGradients,
    QueryGradients,
    Sizes,
    forward_kernel,
    forward_scratch,
    half,
    key_gradients_kernel,
    key_scratch,
    query_gradients_kernel,
    query_scratch,
)
from attnspec.backends.pytorch.kernels.dot.weight_rows import OfGradients, OfWeights
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.steps import NOTHING, Step, scratch, step
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.kernels.llvm.tile_registers import multiplies_tiles
from attnspec.backends.pytorch.runtime.kept_memory import address
from attnspec.backends.pytorch.runtime.plans import Plans, plan_class

SCORES = 2**16
"""Scores of a task, if its rows are more than `LEAST`: 256 KiB of float32."""

LEAST = 96
"""Queries of a task, of fewer of which it would spend much of its time on the order of keys and values."""

PANELS = 3
"""The same for keys: panels of a task."""

TASKS = 4
"""Tasks for each of several threads, if they have half as many rows at least, so that all end at about the same time.
"""

CHUNK = 2**19
"""Scores for each thread whose gradients are computed at a time, of one entry or several: 2 MiB, with the weights."""

REAL = 4
"""Bytes of float32, or of a pair."""

Lengths: TypeAlias = tuple[int, int, int, int, int]
"""Entries, queries and keys, features of either and of values."""


def serves(m: int) -> bool:
    """Whether products with so many keys are taken by lanes, not by tiles (AMX); the weight of one key is 1."""
    return m > 1 and not multiplies_tiles()


@plan_class
class ScratchStep:
    """A step, and the bytes of scratch that its threads share."""

    step: Step
    scratch: int

    def run(self, *addresses: int) -> None:
        """Call the kernel, with addresses in the order of their places."""
        there, _held = address("paired_rows", self.scratch, self.step.threads)
        self.step.run(there, *addresses)


def forward(
    scale: float, query: Tensor, key: Tensor, value: Tensor, logarithms: bool, saves: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Output (entries, n, d_v) for query (entries, n, d), key (entries, m, d) and value (entries, m, d_v).

    With it log Σ exp (entries, n) if it is wanted, and what `gradients` reads if it ``saves`` that: weights
    (entries, n, m) in float32, and pairs of them in bfloat16, (entries, ·), as the kernels have them.
    """
    query, key, value = (_addressed(x) for x in (query, key, value))
    lengths = _lengths(query, value)
    kind = lengths, scale, saves, get_num_threads()
    made = _forward_steps.get(kind)
    if made is None:
        made = _forward_steps.remember(kind, _forward_step(lengths, scale, saves))
    entries, n, m, _, d_v = lengths
    output = value.new_empty(entries, n, d_v)
    found = query.new_empty(entries, n) if logarithms else None
    kept = None
    if saves:
        kept = query.new_empty(entries, n, m, dtype=torch.float32), query.new_empty(entries, *saved_pairs(n, m))
    made.run(*map(_address, (query, key, value, output, found, *(kept or (None, None)))))
    return output, found, kept


def gradients(
    scale: float, gradient: Tensor, operands: Sequence[Tensor], weights: Sequence[Tensor], wanted: Sequence[bool],
    of_logarithms: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of query, key and value, where wanted, from those of the output (entries, n, d_v) and of log Σ exp
    (entries, n); ``weights`` are what `forward` has saved, or empty."""
    gradient, query, key, value = (_addressed(x) for x in (gradient, *operands))
    by_query, by_key, by_value = found = tuple(
        x.new_empty(x.shape) if w else None for x, w in zip((query, key, value), wanted, strict=True)
    )
    of_rows = None if of_logarithms is None else of_logarithms.contiguous()
    entries, n, m, d, d_v = _lengths(query, value)
    threads = get_num_threads()
    together = max(1, min(CHUNK * threads // (n * m), entries))
    bytes_of_pairs = together * REAL * half(n) * m
    of_scores, _held = address("paired_rows gradients", bytes_of_pairs, threads)
    own_pairs, _also_held = (0, None) if weights else address("paired_rows weights", bytes_of_pairs, threads)
    for first in range(0, entries, together):
        lengths = min(together, entries - first), n, m, d, d_v
        kind = lengths, scale, bool(weights), threads
        steps = _gradient_steps.get(kind)
        if steps is None:
            made = _query_step(lengths, scale, bool(weights)), _key_step(lengths)
            steps = _gradient_steps.remember(kind, made)
        scores, pairs = (_address(x, first) for x in weights) if weights else (0, own_pairs)
        own_query, own_gradient = _address(query, first), _address(gradient, first)
        if not weights or by_query is not None or by_key is not None:
            steps[0].run(
                own_query, _address(key, first), _address(value, first), own_gradient, scores, pairs, of_scores,
                _address(by_query, first), _address(of_rows, first),
            )  # fmt: skip
        if by_key is not None or by_value is not None:
            of_key, of_value = _address(by_key, first), _address(by_value, first)
            steps[1].run(own_query, own_gradient, pairs, of_scores, of_key, of_value)
    return found


def saved_pairs(n: int, m: int) -> tuple[int, ...]:
    """The shape, for each entry, in which `forward` saves pairs of weights."""
    return (2 * half(n) * m,)


def _addressed(x: Tensor) -> Tensor:
    """x in memory, where pairs of features begin at whole reals."""
    x = x.resolve_neg().contiguous()
    return x if x.data_ptr() % REAL == 0 else x.clone()


def _address(x: Tensor | None, entry: int = 0) -> int:
    """Where an entry begins, or 0 for None."""
    if x is None:
        return 0
    return x.data_ptr() + entry * x.stride(0) * x.element_size() if entry else x.data_ptr()


def _lengths(query: Tensor, value: Tensor) -> Lengths:
    (entries, n, d), (_, m, d_v) = query.shape, value.shape
    return entries, n, m, d, d_v


def _forward_step(lengths: Lengths, scale: float, saves: bool) -> ScratchStep:
    sizes = _of_queries(lengths, forward_scratch)
    arguments = Forward(
        **sizes, query=NOTHING, key=NOTHING, value=NOTHING, output=NOTHING, scores=None, pairs=None,
        weights=OfWeights(kept=saves, scale=scale, logarithms=None),
    )  # fmt: skip
    g = Forward
    places = g.query, g.key, g.value, g.output, g.weights + OfWeights.logarithms, g.scores, g.pairs
    return _step(forward_kernel(), arguments, places, sizes["scratch"])


def _query_step(lengths: Lengths, scale: float, kept: bool) -> ScratchStep:
    sizes = _of_queries(lengths, partial(query_scratch, kept=kept))
    arguments = QueryGradients(
        **sizes, query=NOTHING, key=NOTHING, value=NOTHING, gradient=NOTHING, scores=None, pairs=NOTHING,
        pairs_of_gradients=NOTHING, of_query=None, weights=OfWeights(kept=True, scale=scale, logarithms=None),
        gradients=OfGradients(scale=scale, of_logarithms=None),
    )  # fmt: skip
    g = QueryGradients
    places = (
        g.query, g.key, g.value, g.gradient, g.scores, g.pairs, g.pairs_of_gradients, g.of_query,
        g.gradients + OfGradients.of_logarithms,
    )  # fmt: skip
    return _step(query_gradients_kernel(kept), arguments, places, sizes["scratch"])


def _key_step(lengths: Lengths) -> ScratchStep:
    entries, n, m, d, d_v = lengths
    panels, threads = -(-m // PANEL), thread_count(2, _work(lengths))
    blocks = -(-panels // PANELS)
    if threads > 1:
        blocks = max(blocks, min(panels, -(-TASKS * threads // entries)))
    sizes = _sizes(lengths, m, -(-panels // blocks) * PANEL, sum(key_scratch(n, d // 2, d_v // 2)))
    arguments = KeyGradients(
        **sizes, query=NOTHING, gradient=NOTHING, pairs=NOTHING, pairs_of_gradients=NOTHING, of_key=None, of_value=None
    )  # fmt: skip
    g = KeyGradients
    places = g.query, g.gradient, g.pairs, g.pairs_of_gradients, g.of_key, g.of_value
    return _step(key_gradients_kernel(), arguments, places, sizes["scratch"])


def _of_queries(lengths: Lengths, numbers: Callable[[int, int, int, int], Sequence[int]]) -> dict[str, Any]:
    """The sizes of a kernel whose tasks are rows of queries."""
    entries, n, m, d, d_v = lengths
    most, threads = max(SCORES // m, LEAST), thread_count(2, _work(lengths))
    if threads > 1:
        most = min(most, max(-(-n * entries // (TASKS * threads)), LEAST // 2))
    rows = half(-(-n // -(-n // most))) * 2  # as even as possible
    return _sizes(lengths, n, rows, sum(numbers(rows, m, d // 2, d_v // 2)))


def _sizes(lengths: Lengths, count: int, rows: int, numbers: int) -> dict[str, Any]:
    """Sizes for tasks of so many of the ``count`` rows of an entry, each of which takes so many reals of scratch."""
    entries, n, m, d, d_v = lengths
    blocks = -(-count // rows)
    threads = thread_count(entries * blocks, _work(lengths))
    return {
        "tasks": entries * blocks, "blocks": blocks, "rows": rows, "n": n, "m": m, "d": d // 2, "d_v": d_v // 2,
        "scratch": scratch(threads, numbers, torch.float32),
    }  # fmt: skip


def _work(lengths: Lengths) -> float:
    """What a kernel takes, as `thread_count` counts it: of pairs twice as many multiply-adds at once."""
    entries, n, m, d, d_v = lengths
    return entries * n * m * (d + d_v) / 4


def _step(kernel: Compiled[Any], arguments: Arguments, places: Sequence[int], own: Tensor) -> ScratchStep:
    return ScratchStep(step(kernel, len(own), arguments, Sizes.scratch, *places), own.numel() * REAL)


_forward_steps: Plans[ScratchStep] = Plans()
_gradient_steps: Plans[tuple[ScratchStep, ScratchStep]] = Plans()
