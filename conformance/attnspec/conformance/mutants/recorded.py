"""Mutants of calls that record gradients: results and gradients that differ from plain calls.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``differentiate`` computes the gradients, ``vjp`` is the backend's call for gradients and
``pullback`` records a call and returns its backward pass. ``vars(self)`` holds what one backend remembers between
calls.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import Tape
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import (
    Arguments,
    Gradients,
    Recorded,
    at,
    changed,
    key,
    mask_of,
    query,
    sizes,
    without_last,
)
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.pooling import NadarayaWatson


def _without_mask(operation: str, arguments: Arguments) -> dict[str, Any]:
    mask = OPERATIONS[operation].mask
    return changed(arguments, {mask.path: None} if mask else {})


def _without_causal_flag(operation: str, arguments: Arguments) -> dict[str, Any]:
    flag = OPERATIONS[operation].flag
    return changed(arguments, {flag: False} if flag else {})


# Results --------------------------------------------------------------------------------------------------------------


@mutant(
    "mask forgotten while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.recording-changes-nothing",),
    source="a kernel for training that is chosen by requires_grad and was written for packed sequences",
)
def recorded_without_mask(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The result of a call that records gradients ignores the mask; gradients are correct."""
    _, backward = Library.pullback(correct, operation, arguments, paths)
    return getattr(correct, operation)(**_without_mask(operation, arguments)), backward


@mutant(
    "causal flag forgotten while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.recording-changes-nothing",),
    source="a flag that only the backward pass is given",
)
def recorded_without_flag(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The result of a call that records gradients ignores the causal flag; gradients are correct."""
    _, backward = Library.pullback(correct, operation, arguments, paths)
    return getattr(correct, operation)(**_without_causal_flag(operation, arguments)), backward


@mutant(
    "last of more than 64 keys lost while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.recording-changes-nothing",),
    source="a remainder of the keys behind a tile, in the kernel that saves what the backward pass needs",
)
def recorded_without_last(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """While gradients are recorded, results ignore the last of more than 64 keys."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    described = OPERATIONS[operation]
    if sizes(described, arguments)[1] <= 64:
        return result, backward
    return getattr(correct, operation)(**changed(arguments, without_last(described, arguments))), backward


@mutant(
    "causal flag forgotten beyond 64 queries while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.same-in-every-mode",),
    source="a last tile of queries that is not full, in the kernel that saves what the backward pass needs",
)
def recorded_acausal_behind_a_tile(
    correct: Library, operation: str, arguments: Arguments, paths: Collection[str]
) -> Recorded:
    """While gradients are recorded, results of queries from the 65th on ignore the causal flag."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    whole = getattr(correct, operation)(**_without_causal_flag(operation, arguments))
    return np.where(np.arange(result.shape[-2])[:, None] < 64, result, whole), backward


# Gradients ------------------------------------------------------------------------------------------------------------


@mutant(
    "mask forgotten if only the keys have a gradient",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.recording-changes-nothing",),
    source="AMD-AGI/Primus-Turbo#458: saved for the backward pass only if certain arguments have gradients",
)
def keys_alone(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """If only the keys have a gradient, it is computed without the mask."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    if set(paths) != {key(OPERATIONS[operation])}:
        return result, backward
    _, other = Library.pullback(correct, operation, _without_mask(operation, arguments), paths)
    return result, other


@mutant(
    "second backward pass without the causal flag",
    replaces="pullback",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.independent-of-other-passes",),
    source="pytorch/pytorch#1288: buffers freed by the first pass, the mask's among them",
)
def second_acausal(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """A second backward pass ignores the causal flag; the first one is correct."""
    result, first = Library.pullback(correct, operation, arguments, paths)
    _, later = Library.pullback(correct, operation, _without_causal_flag(operation, arguments), paths)
    unused = [first]
    return result, lambda cotangent: (unused.pop() if unused else later)(cotangent)


@mutant(
    "gradients summed in a new order in every pass",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.independent-of-other-passes",),
    source="Dao-AILab/flash-attention#2402: gradients that are added up by atomic operations",
)
class InAnyOrder(Library):
    """Backward passes sum over queries in changing order, so that repeated gradients differ in rounding."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Permute the queries if neither a mask nor a causal flag depends on their order."""
        described = OPERATIONS[operation]
        path = query(described)
        x = at(arguments, path)
        plain = mask_of(described, arguments) is None and not arguments.get(described.flag or "")
        if not plain or cotangent.ndim != x.ndim:
            return super().vjp(operation, arguments, cotangent)
        times = vars(self)["times"] = vars(self).get("times", 0) + 1
        order = np.random.default_rng(times).permutation(x.shape[-2])
        moved = changed(arguments, {path: x[..., order, :]})
        gradients = super().vjp(operation, moved, cotangent[..., order, :])
        return {**gradients, path: gradients[path][..., np.argsort(order), :]}


@mutant(
    "strided keys read as contiguous by the backward pass",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.strides-do-not-matter",),
    source="Dao-AILab/flash-attention#355: the forward pass makes its arguments contiguous, and saves them as given",
)
class DenseKeys(Library):
    """The backward pass reads keys whose last stride is not 1 as contiguous."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Read the keys contiguously from their start."""
        path = key(OPERATIONS[operation])
        x = at(arguments, path)
        if not x.size or min(x.strides) <= 0 or x.strides[-1] == x.itemsize:
            return super().vjp(operation, arguments, cotangent)
        strides = [int(s) for s in np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1]]
        return super().vjp(operation, changed(arguments, {path: as_strided(x, x.shape, strides).copy()}), cotangent)


@mutant(
    "keys that are the queries get the gradient of the queries",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.same-array-passed-twice",),
    source="scores of one array that are taken for symmetric, as they are before the softmax",
)
class SymmetricScores(Library):
    """If queries and keys are one array, both get the gradient of the queries."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Return the gradient of the queries for the keys if they are one array."""
        gradients = super().vjp(operation, arguments, cotangent)
        paths = [path(OPERATIONS[operation]) for path in (query, key)]
        queries, keys = (at(arguments, path) for path in paths)
        return {**gradients, paths[1]: gradients[paths[0]].copy()} if queries is keys else gradients


@mutant(
    "cotangents of 64 or more rows read without their gaps",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.strides-do-not-matter",),
    source="Dao-AILab/flash-attention#355: strides of the cotangent, ignored by the kernel for many rows",
)
class LongDenseCotangent(Library):
    """A cotangent of 64 or more rows is read without the gaps between its rows."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Read the cotangent contiguously from its start."""
        c = cotangent
        if (
            c.ndim > 2
            and c.shape[-2] >= 64
            and c.strides[-1] == c.itemsize
            and c.strides[-2] > c.shape[-1] * c.itemsize
        ):
            c = as_strided(c, c.shape, (*c.strides[:-2], c.shape[-1] * c.itemsize, c.itemsize)).copy()
        return super().vjp(operation, arguments, c)


class _FirstRow(Library):
    """Only the first row of a cotangent with row stride 0 counts."""

    def is_misread(self, c: Numbers) -> bool:
        """True if only the first row of the cotangent counts."""
        return bool(c.ndim > 1 and c.shape[-1] >= 8 and c.strides[-2] == 0)

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Set the other rows of the cotangent to 0, then differentiate correctly."""

        def read(_: str, c: Numbers) -> Numbers:
            if c is None or not self.is_misread(c):
                return c
            return np.where(np.arange(c.shape[-2])[:, None] == 0, c, c.dtype.type(0))

        return super().vjp(operation, arguments, map_tree(cotangent, read))


@mutant(
    "only the first of expanded rows of 8 or more columns read",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("training.strides-do-not-matter",),
    source="facebookresearch/xformers#282: sum().backward() hands on a cotangent of stride 0",
)
class WideRows(_FirstRow):
    """In cotangents of 8 or more columns with row stride 0, only row 0 counts."""


@mutant(
    "only the first of expanded rows of 64 or more columns read",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("training.strides-do-not-matter",),
    source="facebookresearch/xformers#282: sum().backward() hands on a cotangent of stride 0",
)
class WideSums(_FirstRow):
    """In cotangents of 64 or more columns with all strides 0, only row 0 counts."""

    def is_misread(self, c: Numbers) -> bool:
        """True for at least 64 columns with all strides 0."""
        return c.ndim > 1 and c.shape[-1] >= 64 and not any(c.strides)


@mutant(
    "uniform rows are 0 while gradients are recorded",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    declares={"fully_masked": "uniform"},
    breaks=("masking.masked-gets-no-gradient",),
    source="rows without keys filled in behind the kernel, from values that are detached",
)
def detached_average(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Rows without keys, declared uniform, are 0 while gradients are recorded."""
    if mask is None or isinstance(scores, Tape):
        return Formulas.mask_scores(correct, scores, mask)
    return np.where(mask, scores, np.finfo(scores.dtype).min)


# Precision ------------------------------------------------------------------------------------------------------------


def _softmax_by_rounded_log_sum_exp(scores: Tape, dtype: str) -> Tape:
    """Softmax exp(s − L) with L rounded to ``dtype``; Σ P∘dP uses exact weights."""
    s = scores.value
    highest = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, s.dtype.type(0))
    total = np.sum(np.exp(s - shift), axis=-1, keepdims=True)
    right = np.exp(s - shift) / np.where(total == 0, s.dtype.type(1), total)
    logarithm = shift + np.log(np.where(total == 0, s.dtype.type(1), total))
    weights = right * np.exp(logarithm - rounded(logarithm, dtype))
    return Tape(weights, [scores], lambda g: [weights * (g - np.sum(right * g, axis=-1, keepdims=True))])


@mutant(
    "log-sum-exp saved in bfloat16",
    replaces="normalized",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtype="bfloat16",
    breaks=("training.gradient-rounding-spread",),
    source="the log-sum-exp written to memory in the dtype of the result, for the backward pass",
    profile="full",
)
def bfloat16_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The backward pass recomputes the weights from a log-sum-exp rounded to bfloat16."""
    taped = isinstance(scores, Tape)
    return _softmax_by_rounded_log_sum_exp(scores, "bfloat16") if taped else Formulas.normalized(correct, scores)


@mutant(
    "log-sum-exp saved in float16",
    replaces="normalized",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtype="float16",
    breaks=("training.gradient-rounding-spread",),
    source="the log-sum-exp written to memory in the dtype of the result, for the backward pass",
    profile="full",
)
def half_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The backward pass recomputes the weights from a log-sum-exp rounded to float16."""
    taped = isinstance(scores, Tape)
    return _softmax_by_rounded_log_sum_exp(scores, "float16") if taped else Formulas.normalized(correct, scores)


@mutant(
    "gradients of keys and values summed in bfloat16",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, DotProductAttention),
    dtype="bfloat16",
    breaks=("training.gradient-rounding-spread",),
    source="atomic additions to gradients in the dtype of the inputs, one for every tile of queries",
    profile="full",
)
def added_in_bfloat16(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Gradients of keys and values are summed over tiles of 4 queries in bfloat16."""
    path, tile = query(operation), 4
    x = at(arguments, path)
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    if mask_of(operation, arguments) is not None or arguments.get(operation.flag or "") or cotangent.ndim != x.ndim:
        return gradients
    totals: dict[str, Numbers] = {}
    for i in range(0, x.shape[-2], tile):
        part = changed(arguments, {path: x[..., i : i + tile, :]})
        for other, g in Library.differentiate(correct, operation, part, cotangent[..., i : i + tile, :]).items():
            if other != path:
                totals[other] = rounded(totals[other] + g if other in totals else g, "bfloat16")
    return {**gradients, **totals}
