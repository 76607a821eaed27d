"""Mutants of training: recorded results, backward passes, cotangents and their memory."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import at, key, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.tree import flatten, mapped
from attnspec.spec.multihead import MergeHeads, MultiHeadAttention, SplitHeads
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.positional import AddPositions, ConcatPositions
from attnspec.spec.recurrent import GRU, LSTM, RNNSelfAttention
from attnspec.spec.scoring import DotScores, ScaledDotScores
from attnspec.spec.seq2seq import DecoderStep
from attnspec.spec.transformer import EncoderLayer, EncoderStack, LayerNorm
from attnspec.spec.vision import Patchify

Backward = Callable[[Any], dict[str, Numbers]]


def _scaled(result: Any, factor: float) -> Any:
    return mapped(result, lambda _, x: x * x.dtype.type(factor) if is_float(x) else x)


# Results --------------------------------------------------------------------------------------------------------------


@mutant(
    "dropout while gradients are recorded",
    replaces="pullback",
    operations=(ScaledDotProductAttention, MultiHeadAttention, EncoderLayer),
    breaks=("training.recorded-result",),
    source="NVIDIA/apex#882: dropout by a flag of its own",
)
def trained_otherwise(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """Results are a tenth too large while gradients are recorded."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    return _scaled(result, 1.1), backward


@mutant(
    "recorded for the query alone without scale",
    replaces="pullback",
    operations=(ScaledDotScores, SelfAttention, ScaledDotProductAttention),
    breaks=("training.recorded-result",),
    source="a fused kernel that is chosen by requires_grad of its first argument",
)
def other_kernel(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """Results are multiplied by 0.75 if only the first argument has a gradient."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    alone = set(wanted) == {query(OPERATIONS[operation])}
    return (_scaled(result, 0.75) if alone else result), backward


@mutant(
    "result overwritten by the backward pass",
    replaces="pullback",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("training.recorded-result",),
    source="a gradient computed in place of the saved result",
)
def overwritten_result(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """The backward pass halves the result in place."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)

    def overwriting(cotangent: Any) -> dict[str, Numbers]:
        found = backward(cotangent)
        result[...] *= result.dtype.type(0.5)
        return found

    return result, overwriting


@mutant(
    "inference 1 % off",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.modes",),
    source="pytorch/pytorch#106668: eval() and eval() with no_grad() take different kernels",
)
class OtherInInference(Library):
    """In inference mode, results are 1 % too large."""

    def modes(self, dtype: str, *, device: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """An inference mode that the backend keeps track of."""
        return {"inference": self._inference}

    @contextmanager
    def _inference(self) -> Iterator[None]:
        vars(self)["inferring"] = True
        yield
        vars(self)["inferring"] = False

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Multiply by 1.01 in inference mode."""
        fresh = super().finished(operation, result, arguments)
        found: Numbers = _scaled(fresh, 1.01) if vars(self).get("inferring") else fresh
        return found


# Subsets of arguments, and repeated backward passes -------------------------------------------------------------------


@mutant(
    "gradients only where the query has one",
    replaces="pullback",
    operations=(DotScores, ScaledDotProductAttention, AttentionPooling),
    breaks=("training.recorded-result",),
    source="AMD-AGI/Primus-Turbo#458: saved for the backward pass only if certain arguments have gradients",
)
def of_query_or_none(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """All gradients are 0 unless the first argument has one."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    if query(OPERATIONS[operation]) in wanted:
        return result, backward
    return result, lambda cotangent: {path: np.zeros_like(g) for path, g in backward(cotangent).items()}


@mutant(
    "gradients by place, not by name",
    replaces="pullback",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("training.recorded-result",),
    source="a tuple of gradients without None for arguments that have none",
)
def by_place(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """Gradients are returned by position: arguments without a gradient are not skipped."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    every = [path for path, x in flatten(dict(arguments)).items() if is_float(x)]

    def shifted(cotangent: Any) -> dict[str, Numbers]:
        whole = Library.vjp(correct, operation, arguments, cotangent)
        return {path: whole[first] for path, first in zip(wanted, every, strict=False)}

    return result, shifted if len(every) > 1 else backward


@mutant(
    "only one backward pass",
    replaces="pullback",
    operations=(ScaledDotProductAttention, LayerNorm, AdditiveAttention),
    breaks=("training.no-memory",),
    source="pytorch/pytorch#1288: buffers freed by the first pass",
)
def freed(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """A second backward pass raises, because the saved arrays are freed by the first."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    passes = [backward]

    def once(cotangent: Any) -> dict[str, Numbers]:
        if not passes:
            raise RuntimeError("saved tensors have been freed")
        return passes.pop()(cotangent)

    return result, once


@mutant(
    "second backward pass adds up",
    replaces="pullback",
    operations=(DotScores, Softmax, MultiHeadAttention),
    breaks=("training.no-memory",),
    source="buffers of gradients kept in the record",
)
def adds_up(
    correct: Library, operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Backward]:
    """A second backward pass adds the gradients of the first."""
    result, backward = Library.pullback(correct, operation, arguments, wanted)
    kept: dict[str, Numbers] = {}

    def summed(cotangent: Any) -> dict[str, Numbers]:
        for path, g in backward(cotangent).items():
            kept[path] = kept[path] + g if path in kept else g
        return dict(kept)

    return result, summed


# Cotangents -----------------------------------------------------------------------------------------------------------


class _OtherCotangent(Library):
    """A library that misreads the memory of the cotangent."""

    def read(self, c: Numbers) -> Numbers:
        """The cotangent as the backward pass reads it."""
        return c

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Differentiate with the cotangent as it is read."""
        return super().vjp(operation, arguments, mapped(cotangent, lambda _, c: None if c is None else self.read(c)))


@mutant(
    "cotangent read as if contiguous",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.strides",),
    source="Dao-AILab/flash-attention#355, fla-org/flash-linear-attention#871",
)
class ContiguousCotangent(_OtherCotangent):
    """The cotangent is read as if it were contiguous."""

    def read(self, c: Numbers) -> Numbers:
        """Read contiguously from the start of its memory, cyclically."""
        if c.flags.c_contiguous:
            return c
        base = c
        while isinstance(base.base, np.ndarray):
            base = base.base
        return np.resize(base.ravel(order="K"), c.shape)


@mutant(
    "expanded cotangent read at its first number",
    operations=(AttentionPooling, ScaledDotProductAttention),
    breaks=("training.strides",),
    source="facebookresearch/xformers#282: sum().backward() hands on a cotangent of stride 0",
)
class ExpandedCotangent(_OtherCotangent):
    """Only the first row of a cotangent with a stride of 0 is read; the others count as 0."""

    def read(self, c: Numbers) -> Numbers:
        """Set all rows but the first to 0."""
        if 0 not in c.strides or not c.size:
            return c
        return np.where(np.arange(c.size).reshape(c.shape) < c.shape[-1], c, c.dtype.type(0))


@mutant(
    "rows of the cotangent by its last stride alone",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.strides",),
    source="x.contiguous() only where the last stride is not 1",
)
class PaddedRows(_OtherCotangent):
    """A cotangent with contiguous rows is read as if the rows followed each other without gaps."""

    def read(self, c: Numbers) -> Numbers:
        """Read contiguously from the start, which stays inside the memory."""
        if c.flags.c_contiguous or c.strides[-1] != c.itemsize or 0 in c.strides:
            return c
        strides = [int(s) for s in np.cumprod([c.itemsize, *reversed(c.shape[1:])])[::-1]]
        return as_strided(c, c.shape, strides).copy()


@mutant(
    "large cotangents clipped",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.cotangents",),
    source="gradient clipping inside an operation, against overflow in half precision",
)
class Clipped(_OtherCotangent):
    """Cotangents are clipped to ±100."""

    def read(self, c: Numbers) -> Numbers:
        """Clip the cotangent."""
        return np.clip(c, c.dtype.type(-100), c.dtype.type(100))


@mutant(
    "tiny cotangents lost",
    operations=(DotScores, ScaledDotProductAttention, LayerNorm),
    breaks=("training.cotangents",),
    source="a backward pass in float16 without loss scaling",
)
class Lost(_OtherCotangent):
    """Cotangents below 2⁻²⁴, which float16 cannot hold, count as 0."""

    def read(self, c: Numbers) -> Numbers:
        """Set small elements to 0."""
        return np.where(np.abs(c) < 2.0**-24, c.dtype.type(0), c)


@mutant(
    "gradients divided by the length of the cotangent",
    replaces="differentiated",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("training.cotangents",),
    source="a backward pass that normalizes: 0/0 for a cotangent of 0",
)
def normalized_on_the_way(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients are divided by the largest cotangent and multiplied again: 0/0 for a cotangent of 0."""
    length = np.max(np.abs(cotangent), initial=0.0)
    found = Library.differentiated(correct, operation, arguments, cotangent / length)
    return {path: g * length for path, g in found.items()}


@mutant(
    "nothing learnt from a final state alone",
    replaces="differentiated",
    operations=(LSTM, RNNSelfAttention, DecoderStep),
    breaks=("training.cotangents",),
    source="pytorch/pytorch#96416: a backward pass that wants a cotangent of every result",
)
def first_result_alone(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """All gradients are 0 if the first result has no cotangent."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    first = next(iter(flatten(cotangent).values()))
    return {path: 0 * g for path, g in found.items()} if first is None else found


@mutant(
    "a cotangent of ones where there is none",
    replaces="differentiated",
    operations=(LSTM, GRU),
    breaks=("training.cotangents",),
    source="torch.ones_like for undefined gradients",
)
def ones_for_none(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """A missing cotangent of the last result is replaced by ones."""
    given = flatten(cotangent)
    *_, last = given
    if given[last] is not None:
        return Library.differentiated(correct, operation, arguments, cotangent)
    outputs = flatten(correct.compute(operation, arguments))
    filled = mapped(cotangent, lambda path, x: np.ones_like(outputs[path]) if path == last else x)
    return Library.differentiated(correct, operation, arguments, filled)


@mutant(
    "gradient of a query without batch not summed",
    replaces="differentiated",
    operations=(DotScores, ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.broadcast-sum",),
    source="deeplearning4j/nd4j#2424: gradients of what broadcasts are not reduced",
)
def only_first_summed(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of queries without a batch is that of the first batch element, not the sum."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = query(operation)
    if cotangent.ndim == at(arguments, path).ndim or not cotangent.size:
        return found
    first = cotangent * (np.arange(cotangent.shape[0]) == 0).reshape(-1, *(1,) * (cotangent.ndim - 1))
    return {**found, path: Library.differentiated(correct, operation, arguments, first)[path]}


@mutant(
    "gradient of keys without batch is their mean",
    replaces="differentiated",
    operations=(DotScores, ScaledDotProductAttention, AttentionPooling),
    breaks=("training.broadcast-sum",),
    source="a mean over the batch in place of a sum",
)
def averaged(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of keys without a batch is the mean over the batch, not the sum."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = key(operation)
    repeats = cotangent.shape[0] if cotangent.ndim > at(arguments, path).ndim else 1
    return {**found, path: found[path] / found[path].dtype.type(max(repeats, 1))}


# Memory ---------------------------------------------------------------------------------------------------------------


@mutant(
    "cotangent scaled in place",
    operations=(ScaledDotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.own-memory",),
    source="linkedin/Liger-Kernel#254: in-place operations in a custom backward",
)
class ScaledInPlace(Library):
    """The backward pass halves the caller's cotangent in place."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return correct gradients and halve the cotangent."""
        found = super().vjp(operation, arguments, cotangent)
        for c in flatten(cotangent).values():
            if c is not None and c.flags.writeable:
                c *= c.dtype.type(0.5)
        return found


@mutant(
    "keys overwritten by the backward pass",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("training.own-memory",),
    source="saved inputs as workspace",
)
class KeysAsWorkspace(Library):
    """The backward pass overwrites the caller's keys with their gradient."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return correct gradients and overwrite the keys."""
        found = super().vjp(operation, arguments, cotangent)
        path = key(OPERATIONS[operation])
        at(arguments, path)[...] = found[path]
        return found


@mutant(
    "gradient of what is added is the cotangent itself",
    operations=(AddPositions, ConcatPositions),
    breaks=("training.own-memory",),
    source="return grad_output, grad_output",
)
class HandedOn(Library):
    """A gradient equal to a part of the cotangent is returned as a view of it, not as a copy."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return a view of the cotangent's first features if they equal a gradient."""
        found = super().vjp(operation, arguments, cotangent)
        for path, g in found.items():
            part = cotangent[..., : g.shape[-1]]
            if part.shape == g.shape and np.array_equal(part, g):
                found[path] = part
        return found


@mutant(
    "gradients in one buffer",
    operations=(DotScores, ScaledDotProductAttention, Softmax),
    breaks=("training.no-memory",),
    source="a workspace for gradients that is handed out",
)
class OneBufferOfGradients(Library):
    """The next backward pass of the same shapes overwrites the gradients returned before."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Write the gradients into the buffers of their shapes."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("of_gradients", {})
        found = super().vjp(operation, arguments, cotangent)
        for path, g in found.items():
            place = (operation, path, g.shape)
            buffers.setdefault(place, np.empty_like(g))[...] = g
            found[path] = buffers[place]
        return found


@mutant(
    "backward pass into the last result",
    operations=(ScaledDotProductAttention, Softmax, MeanNormalization),
    breaks=("training.no-memory",),
    source="the saved result as workspace of the backward pass",
)
class IntoTheResult(Library):
    """The backward pass overwrites the last result with the cotangent."""

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Keep the result."""
        found: Numbers = super().finished(operation, result, arguments)
        vars(self)["last"] = found
        return found

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Overwrite the last result if its shape fits."""
        last = vars(self).get("last")
        if last is not None and last.shape == np.shape(cotangent) and not np.shares_memory(last, cotangent):
            last[...] = cotangent
        return super().vjp(operation, arguments, cotangent)


@mutant(
    "gradients added up over calls",
    operations=(DotScores, AttentionPooling, LayerNorm),
    breaks=("training.no-memory",),
    source="parameters whose gradients are not zeroed",
)
class AddedUp(Library):
    """From the third backward pass of the same shapes on, gradients of earlier passes are added."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Add the gradients of earlier passes from the third on."""
        kept: dict[Any, list[Numbers]] = vars(self).setdefault("kept", {})
        found = super().vjp(operation, arguments, cotangent)
        for path, g in found.items():
            before = kept.setdefault((operation, path, g.shape), [])
            before.append(g.copy())
            found[path] = g if len(before) < 3 else g + sum(before[1:-1], np.zeros_like(g))
        return found


@mutant(
    "gradients in double precision",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="np.zeros without a dtype for the gradients",
)
class Doubled(Library):
    """Gradients are float64 for inputs of any dtype."""

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Return correct gradients as float64."""
        return {path: g.astype(np.float64) for path, g in super().vjp(operation, arguments, cotangent).items()}


# Results in the memory of arguments -----------------------------------------------------------------------------------


@mutant(
    "views of the argument",
    replaces="finished",
    operations=(SplitHeads, MergeHeads, Patchify, EncoderStack),
    breaks=("operation.own-memory",),
    source="a reshape copies only where it must; modules without layers return their input",
)
def not_copied(correct: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """Results that only rearrange an argument are views of it, not copies."""
    found: Numbers = mapped(result, lambda _, x: np.asarray(x, correct.result_dtype(operation, arguments)))
    return found


@mutant(
    "attention over one key is its value",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("operation.own-memory",),
    source="a shortcut that skips the copy",
)
class Shortcut(Library):
    """A result that equals an argument is that argument itself, not a copy."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Return an argument that equals the result, if there is one."""
        result = super().call(operation, *args, **kwargs)
        given = [x for x in flatten(self.named(operation, args, kwargs)).values() if is_float(x)]
        same = [x for x in given if x.shape == result.shape and x.size and np.array_equal(x, result)]
        return same[0] if same else result
