"""Mutants of training: recorded results, backward passes, cotangents and their memory.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``finish``
converts the result, ``differentiate`` computes the gradients, ``vjp`` is the backend's call for gradients, ``pullback``
records a call and returns its backward pass and ``call`` runs all steps of a call. ``vars(self)`` holds what one
backend remembers between calls.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.modes import LargerInMode
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, Recorded, at, key, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import flatten, map_tree
from attnspec.spec.multihead import MergeHeads, MultiHeadAttention, SplitHeads
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.positional import AddPositions, ConcatPositions
from attnspec.spec.recurrent import GRU, LSTM, RNNSelfAttention
from attnspec.spec.scoring import DotScores, ScaledDotScores
from attnspec.spec.seq2seq import DecoderStep
from attnspec.spec.transformer import EncoderLayer, EncoderStack, LayerNorm
from attnspec.spec.vision import Patchify


def _scaled(result: Any, factor: float) -> Any:
    return map_tree(result, lambda _, x: x * x.dtype.type(factor) if is_float(x) else x)


# Results --------------------------------------------------------------------------------------------------------------


@mutant(
    "results 10 % too large while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, MultiHeadAttention, EncoderLayer),
    breaks=("training.recording-changes-nothing",),
    source="NVIDIA/apex#882: dropout by a flag of its own",
)
def larger_while_recorded(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """Results are 10 % too large while gradients are recorded."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    return _scaled(result, 1.1), backward


@mutant(
    "results × 0.75 if only the first argument has a gradient",
    replaces="pullback",
    operations=(ScaledDotScores, SelfAttention, ScaledDotProductAttention),
    breaks=("training.recording-changes-nothing",),
    source="a fused kernel that is chosen by requires_grad of its first argument",
)
def smaller_for_first_argument(
    correct: Library, operation: str, arguments: Arguments, paths: Collection[str]
) -> Recorded:
    """Results are multiplied by 0.75 if only the first argument has a gradient."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    alone = set(paths) == {query(OPERATIONS[operation])}
    return (_scaled(result, 0.75) if alone else result), backward


@mutant(
    "result halved by the backward pass",
    replaces="pullback",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("training.recording-changes-nothing",),
    source="a gradient computed in place of the saved result",
)
def overwritten_result(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The backward pass halves the result in place."""
    result, backward = Library.pullback(correct, operation, arguments, paths)

    def overwriting(cotangent: Any) -> Gradients:
        gradients = backward(cotangent)
        result[...] *= result.dtype.type(0.5)
        return gradients

    return result, overwriting


@mutant(
    "results 1 % too large in inference",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.same-in-every-mode",),
    source="pytorch/pytorch#106668: eval() and eval() with no_grad() take different kernels",
)
class LargerInInference(LargerInMode):
    """In inference mode, results are 1 % too large."""

    mode, factor = "inference", 1.01


# Subsets of arguments, and repeated backward passes -------------------------------------------------------------------


@mutant(
    "gradients 0 unless the first argument has one",
    replaces="pullback",
    operations=(DotScores, ScaledDotProductAttention, AttentionPooling),
    breaks=("training.recording-changes-nothing",),
    source="AMD-AGI/Primus-Turbo#458: saved for the backward pass only if certain arguments have gradients",
)
def of_query_or_none(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """All gradients are 0 unless the first argument has one."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    if query(OPERATIONS[operation]) in paths:
        return result, backward
    return result, lambda cotangent: {path: np.zeros_like(g) for path, g in backward(cotangent).items()}


@mutant(
    "gradients returned by position, not by name",
    replaces="pullback",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("training.recording-changes-nothing",),
    source="a tuple of gradients without None for arguments that have none",
)
def gradients_by_position(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """The i-th requested gradient is that of the i-th array, requested or not."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    float_paths = [path for path, x in flatten(dict(arguments)).items() if is_float(x)]

    def shifted(cotangent: Any) -> Gradients:
        whole = Library.vjp(correct, operation, arguments, cotangent)
        return {path: whole[first] for path, first in zip(paths, float_paths, strict=False)}

    return result, shifted if len(float_paths) > 1 else backward


@mutant(
    "only one backward pass",
    replaces="pullback",
    operations=(ScaledDotProductAttention, LayerNorm, AdditiveAttention),
    breaks=("training.independent-of-other-passes",),
    source="pytorch/pytorch#1288: buffers freed by the first pass",
)
def second_pass_raises(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """A second backward pass raises, because the saved arrays are freed by the first."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    unused = [backward]

    def once(cotangent: Any) -> Gradients:
        if not unused:
            raise RuntimeError("saved tensors have been freed")
        return unused.pop()(cotangent)

    return result, once


@mutant(
    "second backward pass adds the first",
    replaces="pullback",
    operations=(DotScores, Softmax, MultiHeadAttention),
    breaks=("training.independent-of-other-passes",),
    source="buffers of gradients kept in the record",
)
def second_pass_adds(correct: Library, operation: str, arguments: Arguments, paths: Collection[str]) -> Recorded:
    """A second backward pass adds the gradients of the first."""
    result, backward = Library.pullback(correct, operation, arguments, paths)
    totals: dict[str, Numbers] = {}

    def summed(cotangent: Any) -> Gradients:
        for path, g in backward(cotangent).items():
            totals[path] = totals[path] + g if path in totals else g
        return dict(totals)

    return result, summed


# Cotangents -----------------------------------------------------------------------------------------------------------


class _MisreadCotangent(Library):
    """A library that misreads the memory of the cotangent."""

    def read(self, c: Numbers) -> Numbers:
        """The cotangent as the backward pass reads it."""
        return c

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Differentiate with the cotangent as it is read."""
        return super().vjp(operation, arguments, map_tree(cotangent, lambda _, c: None if c is None else self.read(c)))


@mutant(
    "cotangent read as if contiguous",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.strides-do-not-matter",),
    source="Dao-AILab/flash-attention#355, fla-org/flash-linear-attention#871",
)
class ContiguousCotangent(_MisreadCotangent):
    """A strided cotangent is read as if it were contiguous."""

    def read(self, c: Numbers) -> Numbers:
        """Read contiguously from the start of its memory, cyclically."""
        if c.flags.c_contiguous:
            return c
        base = c
        while isinstance(base.base, np.ndarray):
            base = base.base
        return np.resize(base.ravel(order="K"), c.shape)


@mutant(
    "only the first row of an expanded cotangent read",
    operations=(AttentionPooling, ScaledDotProductAttention),
    breaks=("training.strides-do-not-matter",),
    source="facebookresearch/xformers#282: sum().backward() hands on a cotangent of stride 0",
)
class ExpandedCotangent(_MisreadCotangent):
    """In a cotangent with a stride of 0, only the first row is read."""

    def read(self, c: Numbers) -> Numbers:
        """Set all rows but the first to 0."""
        if 0 not in c.strides or not c.size:
            return c
        return np.where(np.arange(c.size).reshape(c.shape) < c.shape[-1], c, c.dtype.type(0))


@mutant(
    "rows of the cotangent read without their gaps",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.strides-do-not-matter",),
    source="x.contiguous() only where the last stride is not 1",
)
class PaddedRows(_MisreadCotangent):
    """A cotangent of contiguous rows is read as if there were no gaps between them."""

    def read(self, c: Numbers) -> Numbers:
        """Read contiguously from the start, which stays inside the memory."""
        if c.flags.c_contiguous or c.strides[-1] != c.itemsize or 0 in c.strides:
            return c
        strides = [int(s) for s in np.cumprod([c.itemsize, *reversed(c.shape[1:])])[::-1]]
        return as_strided(c, c.shape, strides).copy()


@mutant(
    "cotangents clipped at ±100",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.linear-in-cotangent",),
    source="gradient clipping inside an operation, against overflow in half precision",
)
class ClippedCotangent(_MisreadCotangent):
    """Cotangents are clipped to ±100."""

    def read(self, c: Numbers) -> Numbers:
        """Clip the cotangent."""
        return np.clip(c, c.dtype.type(-100), c.dtype.type(100))


@mutant(
    "cotangents below 2⁻²⁴ count as 0",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.linear-in-cotangent",),
    source="a backward pass in float16 without loss scaling",
)
class TinyCotangentLost(_MisreadCotangent):
    """Cotangents below 2⁻²⁴, which float16 cannot hold, count as 0."""

    def read(self, c: Numbers) -> Numbers:
        """Set small elements to 0."""
        return np.where(np.abs(c) < 2.0**-24, c.dtype.type(0), c)


@mutant(
    "gradients 0/0 for a cotangent of 0",
    replaces="differentiate",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("training.linear-in-cotangent",),
    source="a backward pass that normalizes: 0/0 for a cotangent of 0",
)
def normalized_on_the_way(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Gradients are divided and multiplied by the largest cotangent: 0/0 for a cotangent of 0."""
    length = np.max(np.abs(cotangent), initial=0.0)
    gradients = Library.differentiate(correct, operation, arguments, cotangent / length)
    return {path: g * length for path, g in gradients.items()}


@mutant(
    "gradients 0 without a cotangent of the first result",
    replaces="differentiate",
    operations=(LSTM, RNNSelfAttention, DecoderStep),
    breaks=("training.linear-in-cotangent",),
    source="pytorch/pytorch#96416: a backward pass that wants a cotangent of every result",
)
def first_result_alone(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """All gradients are 0 if the first result has no cotangent."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    first = next(iter(flatten(cotangent).values()))
    return {path: 0 * g for path, g in gradients.items()} if first is None else gradients


@mutant(
    "missing cotangent of the last result replaced by ones",
    replaces="differentiate",
    operations=(LSTM, GRU),
    breaks=("training.linear-in-cotangent",),
    source="torch.ones_like for undefined gradients",
)
def ones_for_none(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """A missing cotangent of the last result is replaced by ones."""
    cotangents = flatten(cotangent)
    *_, last = cotangents
    if cotangents[last] is not None:
        return Library.differentiate(correct, operation, arguments, cotangent)
    outputs = flatten(correct.compute(operation, arguments))
    filled = map_tree(cotangent, lambda path, x: np.ones_like(outputs[path]) if path == last else x)
    return Library.differentiate(correct, operation, arguments, filled)


@mutant(
    "gradient of unbatched queries from the first element only",
    replaces="differentiate",
    operations=(DotScores, ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.broadcast-gradients-sum",),
    source="deeplearning4j/nd4j#2424: gradients of broadcast arguments are not reduced",
)
def only_first_summed(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of queries without a batch comes from the first batch element alone."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = query(operation)
    if cotangent.ndim == at(arguments, path).ndim or not cotangent.size:
        return gradients
    first = cotangent * (np.arange(cotangent.shape[0]) == 0).reshape(-1, *(1,) * (cotangent.ndim - 1))
    return {**gradients, path: Library.differentiate(correct, operation, arguments, first)[path]}


@mutant(
    "gradient of unbatched keys is the mean over the batch",
    replaces="differentiate",
    operations=(DotScores, ScaledDotProductAttention, AttentionPooling),
    breaks=("training.broadcast-gradients-sum",),
    source="a mean over the batch in place of a sum",
)
def mean_over_batch(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of unbatched keys is the mean over the batch, not the sum."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = key(operation)
    repeats = cotangent.shape[0] if cotangent.ndim > at(arguments, path).ndim else 1
    return {**gradients, path: gradients[path] / gradients[path].dtype.type(max(repeats, 1))}


# Memory ---------------------------------------------------------------------------------------------------------------


@mutant(
    "cotangent scaled in place",
    operations=(ScaledDotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.gradients-own-memory",),
    source="linkedin/Liger-Kernel#254: in-place operations in a custom backward",
)
class ScaledInPlace(Library):
    """The backward pass halves the caller's cotangent in place."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Return correct gradients and halve the cotangent."""
        gradients = super().vjp(operation, arguments, cotangent)
        for c in flatten(cotangent).values():
            if c is not None and c.flags.writeable:
                c *= c.dtype.type(0.5)
        return gradients


@mutant(
    "keys overwritten by the backward pass",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("training.gradients-own-memory",),
    source="saved inputs as workspace",
)
class KeysAsWorkspace(Library):
    """The backward pass overwrites the caller's keys with their gradient."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Return correct gradients and overwrite the keys."""
        gradients = super().vjp(operation, arguments, cotangent)
        path = key(OPERATIONS[operation])
        at(arguments, path)[...] = gradients[path]
        return gradients


@mutant(
    "gradient returned as a view of the cotangent",
    operations=(AddPositions, ConcatPositions),
    breaks=("training.gradients-own-memory",),
    source="return grad_output, grad_output",
)
class CotangentAsGradient(Library):
    """A gradient equal to a part of the cotangent is a view, not a copy."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Return a view of the cotangent's first features if they equal a gradient."""
        gradients = super().vjp(operation, arguments, cotangent)
        for path, g in gradients.items():
            part = cotangent[..., : g.shape[-1]]
            if part.shape == g.shape and np.array_equal(part, g):
                gradients[path] = part
        return gradients


@mutant(
    "gradients in one buffer",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.independent-of-other-passes",),
    source="a workspace for gradients that is handed out",
)
class OneBufferOfGradients(Library):
    """The next backward pass of the same shapes overwrites the gradients returned before."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Write the gradients into the buffers of their shapes."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("of_gradients", {})
        gradients = super().vjp(operation, arguments, cotangent)
        for path, g in gradients.items():
            name_of_buffer = (operation, path, g.shape)
            buffers.setdefault(name_of_buffer, np.empty_like(g))[...] = g
            gradients[path] = buffers[name_of_buffer]
        return gradients


@mutant(
    "last result overwritten with the cotangent",
    operations=(ScaledDotProductAttention, Softmax, MeanNormalization),
    breaks=("training.independent-of-other-passes",),
    source="the saved result as workspace of the backward pass",
)
class IntoTheResult(Library):
    """The backward pass overwrites the last result with the cotangent."""

    def finish(self, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
        """Remember the result."""
        fresh: Numbers = super().finish(operation, result, arguments)
        vars(self)["last"] = fresh
        return fresh

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Overwrite the last result if its shape fits."""
        last = vars(self).get("last")
        if last is not None and last.shape == np.shape(cotangent) and not np.shares_memory(last, cotangent):
            last[...] = cotangent
        return super().vjp(operation, arguments, cotangent)


@mutant(
    "gradients of earlier passes added from the third on",
    operations=(DotScores, AttentionPooling, LayerNorm),
    breaks=("training.independent-of-other-passes",),
    source="parameters whose gradients are not zeroed",
)
class GradientsAddedUp(Library):
    """From the third backward pass of equal shapes on, gradients since the second are added."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Add the gradients of earlier passes from the third on."""
        earlier: dict[Any, list[Numbers]] = vars(self).setdefault("earlier", {})
        gradients = super().vjp(operation, arguments, cotangent)
        for path, g in gradients.items():
            passes_before = earlier.setdefault((operation, path, g.shape), [])
            passes_before.append(g.copy())
            gradients[path] = g if len(passes_before) < 3 else g + sum(passes_before[1:-1], np.zeros_like(g))
        return gradients


@mutant(
    "gradients returned as float64",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="np.zeros without a dtype for the gradients",
)
class GradientsInFloat64(Library):
    """Gradients are float64 for inputs of any dtype."""

    def vjp(self, operation: str, arguments: Arguments, cotangent: Any) -> Gradients:
        """Return correct gradients as float64."""
        return {path: g.astype(np.float64) for path, g in super().vjp(operation, arguments, cotangent).items()}


# Results in the memory of arguments -----------------------------------------------------------------------------------


@mutant(
    "results returned as views of the argument",
    replaces="finish",
    operations=(SplitHeads, MergeHeads, Patchify, EncoderStack),
    breaks=("operation.result-owns-memory",),
    source="a reshape copies only where it must; modules without layers return their input",
)
def not_copied(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """Results that only rearrange an argument are views of it, not copies."""
    views: Numbers = map_tree(result, lambda _, x: np.asarray(x, correct.result_dtype(operation, arguments)))
    return views


@mutant(
    "argument returned as the result",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("operation.result-owns-memory",),
    source="a shortcut that skips the copy",
)
class ArgumentReturned(Library):
    """A result that equals an argument is that argument itself, not a copy."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Return an argument that equals the result, if there is one."""
        result = super().call(operation, *args, **kwargs)
        float_arguments = [x for x in flatten(self.bind_arguments(operation, args, kwargs)).values() if is_float(x)]
        same = [x for x in float_arguments if x.shape == result.shape and x.size and np.array_equal(x, result)]
        return same[0] if same else result
