"""Rows of scores into weights, and gradients of weights into those of scores, each in one walk while a row is in the
cache: with the rounding to bfloat16 that products of pairs need, PyTorch's operations would read them six times."""

from collections.abc import Callable, Sequence
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import (
    Arguments,
    Bytes,
    Flag,
    OptionalBytes,
    OptionalReals,
    Real,
    Reals,
    Size,
)
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.registers import Inside, groups, load, store
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.kernels.llvm.values import BytePointer, RealPointer, Value, Variable
from attnspec.backends.pytorch.kernels.llvm.vector_functions import exp2, log

ROWS = 8
"""Rows of a task."""

AT_ONCE = 4
"""Registers of a row whose maxima or sums do not wait for one another."""

WORK = 16
"""Multiply-adds that take as long as an exponential."""


class OfWeights(Arguments):
    """What becomes of scores without their ``scale``, which are weights afterwards if they are ``kept``.

    ``logarithms`` (rows) are log Σ exp in bfloat16.
    """

    kept: Flag
    scale: Real
    logarithms: OptionalBytes


class OfGradients(Arguments):
    """What gradients of scores without their ``scale`` are made of, beside weights and their gradients.

    ``of_logarithms`` (rows) are those of log Σ exp.
    """

    scale: Real
    of_logarithms: OptionalReals


class Weights(OfWeights):
    """Arguments of `weights_kernel`: ``scores`` (rows, m), and weights ``rounded`` to bfloat16."""

    tasks: Size
    rows: Size
    m: Size
    scores: Reals
    rounded: Bytes


class Gradients(OfGradients):
    """Arguments of `gradients_kernel`: ``weights`` (rows, m), their gradients, and those of scores ``rounded`` to
    bfloat16."""

    tasks: Size
    rows: Size
    m: Size
    weights: Reals
    of_weights: Reals
    rounded: Bytes


def _each(k: Kernel, m: Value, body: Callable[[Value, Inside, int], None]) -> None:
    """The body for every register of a row and its lanes that there are, with the number of an accumulator for it."""

    def each(places: list[Value], insides: Sequence[Inside]) -> None:
        for c, (place, inside) in enumerate(zip(places, insides, strict=True)):
            body(place, inside, c)

    groups(k, m, AT_ONCE, each)


def _among(k: Kernel, value: Value, inside: Inside, absent: float) -> Value:
    """The lanes that there are, and a number in the others."""
    return value if inside is None else k.select(inside, value, k.full(absent))


def _total(k: Kernel, parts: list[Variable]) -> Value:
    first, *others = (x.get() for x in parts)
    for other in others:
        first = first + other
    return k.sum(first)


@compiled
def weights_kernel() -> Kernel[Weights]:
    """softmax of float32 times a scale."""
    k = Kernel("weight_rows", Weights, 32)
    g = k.argument
    with k.tasks(g.tasks) as task, k.loop(task * ROWS, k.minimum(g.rows, task * ROWS + ROWS)) as row:
        weights_of_row(k, g, g.m, g.scores + row * g.m, g.rounded + row * g.m * 2, row)
    return k


def weights_of_row(
    k: Kernel[Any], g: OfWeights, m: Value, scores: RealPointer, rounded: BytePointer, row: Value
) -> None:  # fmt: skip
    """The ``m`` scores of a row become weights."""
    maxima = [Variable(k, k.full(float("-inf"))) for _ in range(AT_ONCE)]
    totals = [Variable(k, k.full(0.0)) for _ in range(AT_ONCE)]

    def compare(j: Value, inside: Inside, c: int) -> None:
        maxima[c].set(k.maximum(_among(k, load(k, inside, scores, j), inside, float("-inf")), maxima[c].get()))

    _each(k, m, compare)
    largest = maxima[0].get()
    for other in maxima[1:]:
        largest = k.maximum(other.get(), largest)
    largest = k.max(largest)
    steepness = g.scale.load() * log2(e)

    def add(j: Value, inside: Inside, c: int) -> None:
        weight = exp2(k, (load(k, inside, scores, j) - largest) * steepness)
        store(k, weight, inside, scores, j)
        totals[c].add(_among(k, weight, inside, 0.0))

    _each(k, m, add)
    total = _total(k, totals)
    reciprocal = k.full(1.0) / total

    def scale(j: Value, inside: Inside, _: int) -> None:
        weight = load(k, inside, scores, j) * reciprocal
        k.store_bfloat16(weight, rounded, j * 2, inside)
        with k.when(g.kept.is_nonzero()):
            store(k, weight, inside, scores, j)

    _each(k, m, scale)
    with k.when(g.logarithms.is_given()):
        k.store_stored(largest * g.scale.load() + log(k, total), g.logarithms, row * 2, "bfloat16", first=True)


@compiled
def gradients_kernel() -> Kernel[Gradients]:
    """scale·weights·(of_weights − Σ weights·of_weights + of_logarithms)."""
    k = Kernel("weight_row_gradients", Gradients, 32)
    g = k.argument
    with k.tasks(g.tasks) as task, k.loop(task * ROWS, k.minimum(g.rows, task * ROWS + ROWS)) as row:
        first = row * g.m
        gradients_of_row(k, g, g.m, (g.weights + first, g.of_weights + first), g.rounded + first * 2, row)
    return k


def gradients_of_row(
    k: Kernel[Any], g: OfGradients, m: Value, given: tuple[RealPointer, RealPointer], rounded: BytePointer, row: Value
) -> None:  # fmt: skip
    """The ``m`` weights of a row and their gradients, as ``given``, become gradients of its scores."""
    weights, gradients = given
    totals = [Variable(k, k.full(0.0)) for _ in range(AT_ONCE)]

    def add(j: Value, inside: Inside, c: int) -> None:
        totals[c].set(k.fma(load(k, inside, weights, j), load(k, inside, gradients, j), totals[c].get()))

    _each(k, m, add)
    mean = Variable(k, _total(k, totals))
    with k.when(g.of_logarithms.is_given()):
        mean.set(mean.get() - k.broadcast(g.of_logarithms, row))
    taken, scale = mean.get(), g.scale.load()

    def change(j: Value, inside: Inside, _: int) -> None:
        of_score = load(k, inside, weights, j) * (load(k, inside, gradients, j) - taken) * scale
        k.store_bfloat16(of_score, rounded, j * 2, inside)

    _each(k, m, change)


def weights(
    scale: float, scores: Tensor, rounded: Tensor, *, kept: bool, logarithms: Tensor | None = None
) -> None:  # fmt: skip
    """softmax of scale·scores (…, m), ``rounded`` to bfloat16; the scores become weights if ``kept``.

    ``logarithms`` (…) become log Σ exp, in bfloat16. All lie in memory one number after another.
    """
    m = scores.shape[-1]
    if m == 1:
        if logarithms is not None:
            torch.mul(scores[..., 0], scale, out=logarithms)
        rounded.copy_(torch.sub(scores, scores, out=scores).add_(1))  # 1, or NaN where a score is not finite
        return
    rows = scores.numel() // m
    tasks = -(-rows // ROWS)
    arguments = Weights(
        tasks=tasks, rows=rows, m=m, kept=kept, scale=scale, scores=scores, rounded=rounded, logarithms=logarithms
    )  # fmt: skip
    run(weights_kernel(), thread_count(tasks, rows * m * WORK), arguments)


def gradients(scale: float, weights: Tensor, of_weights: Tensor, of_logarithms: Tensor | None, rounded: Tensor) -> None:
    """Gradients of scores without their scale, ``rounded`` to bfloat16.

    From weights and their gradients (…, m) and those of log Σ exp (…).
    All lie in memory one number after another.
    """
    m = weights.shape[-1]
    rows = weights.numel() // m
    tasks = -(-rows // ROWS)
    arguments = Gradients(
        tasks=tasks, rows=rows, m=m, scale=scale, weights=weights, of_weights=of_weights, of_logarithms=of_logarithms,
        rounded=rounded,
    )  # fmt: skip
    run(gradients_kernel(), thread_count(tasks, rows * m * 2), arguments)
