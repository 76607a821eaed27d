"""Mutants of calls: dtype, shape, batch, memory, strides and checks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.contract.operation import Operation

ATTENTION = "scaled_dot_product_attention"


@mutant(
    "float32 in, float64 out",
    replaces="result_dtype",
    operations=("scaled_dot_scores", ATTENTION),
    breaks=("operation.dtype",),
    source="np.sqrt of an integer is a double; pytorch/pytorch#171191",
)
def promoted(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> Any:
    """The dtype of a constant wins."""
    return np.float64


@mutant(
    "bfloat16 in, float32 out",
    replaces="result_dtype",
    operations=("softmax", ATTENTION),
    dtype="bfloat16",
    breaks=("operation.dtype",),
    source="lucidrains/flash-attention-jax#13, tinygrad/tinygrad#5100",
)
def not_rounded_back(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> Any:
    """The dtype of the accumulator."""
    return np.float32


@mutant(
    "float64 computed in float32",
    replaces="prepared",
    operations=(ATTENTION, "softmax", "additive_scores"),
    dtype="float64",
    breaks=("operation.oracle",),
    source="a framework whose default is single precision",
)
def single_inside(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs are cast down, the result is cast up."""
    return {name: x.astype(np.float32) if is_float(x) else x for name, x in arguments.items()}


@mutant(
    "mask returned as numbers",
    replaces="finished",
    operations=("causal_mask", "padding_mask"),
    breaks=("operation.dtype",),
    source="tril of ones",
)
def numeric_mask(right: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """1 for True and 0 for False."""
    return np.array(result, dtype=np.float32)


@mutant(
    "a single query loses its axis",
    replaces="finished",
    operations=(ATTENTION, "dot_scores", "multi_head_attention"),
    breaks=("operation.shape",),
    source="squeeze without an axis; OpenNMT/OpenNMT-py#110",
)
def squeezed(right: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """Dimensions of size 1 are removed."""
    return np.squeeze(Library.finished(right, operation, result, arguments))


@mutant(
    "result with its last axes exchanged",
    replaces="finished",
    operations=("dot_scores", ATTENTION),
    breaks=("operation.shape",),
    source="sequence first or features first",
)
def transposed(right: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """(…, m, n)."""
    return np.swapaxes(Library.finished(right, operation, result, arguments), -1, -2)


@mutant(
    "batch element 0 for all",
    replaces="prepared",
    operations=("dot_scores", ATTENTION, "softmax", "padding_mask"),
    breaks=("operation.batch-invariance",),
    source="BobMcDear/attorch#14: the batch term lost in an offset",
)
def first_of_batch(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The first argument is read at batch 0 only."""
    prepared = Library.prepared(right, operation, arguments)
    first = operation.arguments[0]
    x = prepared[first.name]
    if x.ndim > len(first.core) and x.shape[0]:
        prepared[first.name] = np.repeat(x[:1], x.shape[0], axis=0)
    return prepared


@mutant(
    "a maximum shared by the batch",
    replaces="shift",
    operations=("softmax", "dot_product_attention"),
    breaks=("operation.oracle",),
    source="a reduction over too many axes",
)
def shared_maximum(right: Formulas, scores: Numbers) -> Numbers:
    """Elements far below the greatest score of the batch underflow."""
    highest = Formulas.shift(right, scores)
    return np.broadcast_to(np.max(highest, initial=-np.inf), highest.shape).astype(scores.dtype)


@mutant(
    "broadcast batches refused",
    replaces="check",
    operations=("dot_scores", ATTENTION),
    breaks=("operation.broadcasting",),
    source="keras-team/keras#21483",
)
def equal_batches_only(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> None:
    """All batches must be equal."""
    Library.check(right, operation, arguments)
    batches = {
        arguments[a.name].shape[: arguments[a.name].ndim - len(a.core)]
        for a in operation.arguments
        if a.batched and arguments.get(a.name) is not None
    }
    if len(batches) > 1:
        raise ValueError(f"{operation.name}: expected equal batches; got {sorted(batches)}")


@mutant(
    "broadcast batches rolled",
    replaces="prepared",
    operations=("dot_scores", ATTENTION),
    breaks=("operation.oracle", "operation.gradient"),
    source="ekzhang/jax-js#180, onnx/onnx#7274: tile for repeat",
)
def repeats_wrongly(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Where keys are repeated over the batch, their order shifts with it."""
    prepared = Library.prepared(right, operation, arguments)
    query, key = prepared["query"], prepared["key"]
    if query.ndim > 2 and query.shape[0] > 1 and (key.ndim < query.ndim or key.shape[0] == 1):
        key = np.broadcast_to(key, (*query.shape[:-2], *key.shape[-2:])).copy()
        key[1:] = np.flip(key[1:], axis=-2)
        prepared["key"] = key
    return prepared


@mutant(
    "batches without elements refused",
    replaces="check",
    operations=(ATTENTION, "dot_scores", "softmax", "bahdanau_context"),
    breaks=("operation.empty-batch",),
    source="pytorch/pytorch#12013: kernels launched with a grid of 0",
)
def empty_batch_refused(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> None:
    """There must be something to compute."""
    Library.check(right, operation, arguments)
    for a in operation.arguments:
        x = arguments.get(a.name)
        if a.batched and isinstance(x, np.ndarray) and 0 in x.shape[: x.ndim - len(a.core)]:
            raise ValueError(f"{operation.name}: expected a batch with elements; got {x.shape}")


@mutant(
    "batches of fewer dimensions from the left",
    replaces="prepared",
    operations=("dot_scores", ATTENTION),
    breaks=("operation.fewer-dimensions",),
    source="unsqueeze behind the batch instead of in front of it",
)
def aligned_left(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that lack batch dimensions are read in reverse order, as the wrong elements would be."""
    prepared = Library.prepared(right, operation, arguments)
    if prepared["key"].ndim < prepared["query"].ndim:
        prepared["key"] = np.flip(prepared["key"], axis=-2)
    return prepared


@mutant(
    "strides ignored",
    replaces="prepared",
    operations=("dot_scores", ATTENTION, "softmax", "padding_mask"),
    breaks=("operation.non-contiguous",),
    source="flagos-ai/FlagGems#5896, ROCm/aiter#5292",
)
def contiguous_only(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Memory is read as if it were contiguous."""
    return {name: _as_contiguous(x) for name, x in Library.prepared(right, operation, arguments).items()}


def _as_contiguous(x: Any) -> Any:
    # Reading on from the start stays inside the buffer unless a dimension is repeated or runs backwards.
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous or any(s <= 0 for s in x.strides):
        return x
    strides = [int(s) for s in np.cumprod([x.itemsize, *reversed(x.shape[1:])])[::-1]]
    return as_strided(x, x.shape, strides).copy()


@mutant(
    "queries scaled in place",
    replaces="prepared",
    operations=("scaled_dot_scores", ATTENTION),
    breaks=("operation.no-mutation",),
    source="pytorch/pytorch#73249",
)
def scaled_in_place(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's query is divided by 2 after it was used; the result is right."""
    prepared = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    arguments["query"][...] *= arguments["query"].dtype.type(0.5)
    return prepared


@mutant(
    "scores masked in place",
    replaces="prepared",
    operations=("softmax", "mean_normalization"),
    breaks=("operation.no-mutation",),
    source="masked_fill_ on an argument",
)
def masked_in_place(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Masked scores of the caller become 0."""
    prepared = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    scores, mask = arguments["scores"], arguments.get("mask")
    if mask is None:
        scores[...] = scores - scores.max(initial=0)
    elif np.broadcast_shapes(scores.shape, mask.shape) == scores.shape:
        scores[...] = np.where(mask, scores, scores.dtype.type(0))
    return prepared


@mutant(
    "lengths sorted in place",
    replaces="prepared",
    operations=("padding_mask",),
    breaks=("operation.no-mutation",),
    source="facebookresearch/InferSent#51",
)
def sorted_in_place(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's lengths are clipped to the longest but one."""
    prepared = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    arguments["lengths"][...] = np.minimum(arguments["lengths"], 1)
    return prepared


@mutant(
    "keys scaled in the memory of the values",
    operations=(ATTENTION, "dot_product_attention"),
    breaks=("attention.shared-inputs",),
    source="one array packed once for two uses",
)
class SharedBuffer(Library):
    """Arguments that are the same array share a copy, and the keys are doubled in it."""

    def prepared(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Double the keys and halve the queries: harmless unless keys and values share memory."""
        copies: dict[int, Any] = {}
        prepared: dict[str, Any] = {
            name: copies.setdefault(id(x), x.copy()) if isinstance(x, np.ndarray) else x
            for name, x in arguments.items()
        }
        prepared["query"] = 0.5 * prepared["query"]
        prepared["key"] *= 2
        return prepared


@mutant(
    "results cached by shape",
    operations=(ATTENTION, "softmax"),
    breaks=("operation.no-memory",),
    source="facebookresearch/xformers#66: a buffer made for the first call",
)
class CachedByShape(Library):
    """A second call with the same shapes gives the first one's result."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
        """Look up the shapes only."""
        results: dict[Any, Numbers] = vars(self).setdefault("results", {})
        given = self.named(operation, args, kwargs)
        shapes = (operation.name, *((name, np.shape(x), x is None) for name, x in given.items()))
        if shapes not in results:
            results[shapes] = super().call(operation, *args, **kwargs)
        return results[shapes]


@mutant(
    "results in one buffer",
    operations=(ATTENTION, "dot_scores", "causal_mask", "sinusoidal_positional_encoding"),
    breaks=("operation.no-memory",),
    source="a workspace that is handed out",
)
class OneBuffer(Library):
    """Results of the same shape share memory: the next call overwrites the last result."""

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Write into the buffer of that shape; tables that need no inputs are computed only once."""
        buffers: dict[Any, Numbers] = vars(self).setdefault("buffers", {})
        fresh = super().finished(operation, result, arguments)
        key = (operation.name, fresh.shape, tuple(v for v in arguments.values() if isinstance(v, int)))
        if key not in buffers:
            buffers[key] = fresh
        elif operation.float_arguments:
            buffers[key][...] = fresh
        return buffers[key]


@mutant(
    "previous result returned",
    operations=(ATTENTION, "softmax"),
    breaks=("operation.no-memory",),
    source="asynchronous copies that are not waited for",
)
class PreviousResult(Library):
    """A call gives what the last one of the same shape computed."""

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Swap this result for the last one."""
        last: dict[Any, Numbers] = vars(self).setdefault("last", {})
        fresh = super().finished(operation, result, arguments)
        previous = last.get((operation.name, fresh.shape), fresh)
        last[operation.name, fresh.shape] = fresh
        return np.array(previous)


@mutant(
    "added to what the buffer held",
    operations=("dot_scores", "attention_pooling"),
    breaks=("operation.no-memory",),
    source="an accumulator that is not zeroed",
)
class AccumulatesOn(Library):
    """A call with the same shapes adds an eighth of the last result."""

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Add to the last one."""
        last: dict[Any, Numbers] = vars(self).setdefault("last", {})
        fresh = super().finished(operation, result, arguments)
        total = fresh + fresh.dtype.type(0.125) * last.get((operation.name, fresh.shape), np.zeros_like(fresh))
        last[operation.name, fresh.shape] = total
        return total.copy()


@mutant(
    "shapes cut to fit",
    replaces="call",
    operations=("dot_scores", ATTENTION, "attention_pooling"),
    breaks=("operation.rejection",),
    source="kernels that take sizes from one argument and trust the others",
)
def cut_to_fit(right: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """The size of the first argument is taken for granted: longer arrays are cut, shorter ones filled with zeros."""
    given = right.named(operation, args, kwargs)
    sizes: dict[str, int] = {}
    for a in operation.arguments:
        x = given.get(a.name)
        if not isinstance(x, np.ndarray) or x.dtype == bool or x.ndim < len(a.core):
            continue
        for axis, d in enumerate(a.core, x.ndim - len(a.core)):
            size = sizes.setdefault(d.name, x.shape[axis])
            x = np.take(x, np.arange(min(size, x.shape[axis])), axis=axis)
            missing = [(0, size - x.shape[i] if i == axis else 0) for i in range(x.ndim)]
            x = np.pad(x, missing)
        given[a.name] = x
    return Library.call(right, operation, **given)


@mutant(
    "masks of any shape taken",
    replaces="call",
    operations=(ATTENTION, "softmax", "average_pooling"),
    breaks=("operation.rejection",),
    source="openai/gpt-2#270: a mask that broadcasts somehow",
)
def any_mask(right: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """A mask is cut, or cyclically repeated, to whatever is needed."""
    given = right.named(operation, args, kwargs)
    mask = given.pop("mask", None)
    if mask is None:
        return Library.call(right, operation, **given)
    try:
        return Library.call(right, operation, **given, mask=mask)
    except ValueError:
        first = given[operation.arguments[0].name]
        m = given["value"].shape[-2] if "value" in given else first.shape[-1]
        shape = (m,) if operation.name == "average_pooling" else (first.shape[-2], m)
        return Library.call(right, operation, **given, mask=np.resize(mask, shape))


@mutant(
    "negative sizes count as 0",
    replaces="call",
    operations=("causal_mask", "sinusoidal_positional_encoding"),
    breaks=("operation.rejection",),
    source="arange of a negative number is empty",
)
def negative_sizes(right: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """max(0, n)."""
    given = right.named(operation, args, kwargs)
    least = {"d": 1}
    sizes = {name: max(x, least.get(name, 0)) if type(x) is int else x for name, x in given.items()}
    return Library.call(right, operation, **sizes)


@mutant(
    "no queries not taken",
    replaces="prepared",
    operations=(ATTENTION, "dot_scores"),
    breaks=("operation.oracle", "operation.shape"),
    source="grids of size 0 cannot be launched",
)
def empty_refused(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Empty arrays raise."""
    if any(isinstance(x, np.ndarray) and not x.size for x in arguments.values()):
        raise RuntimeError("invalid configuration argument")
    return Library.prepared(right, operation, arguments)


@mutant(
    "sequence and batch exchanged",
    replaces="prepared",
    operations=(ATTENTION, "self_attention"),
    breaks=("operation.batch-invariance", "operation.oracle"),
    source="aipixel/AEMatter#3: batch first or sequence first",
)
def sequence_first(right: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Where a batch is as long as the sequences, they are exchanged."""
    prepared = Library.prepared(right, operation, arguments)
    floats = [prepared[name] for name in operation.float_arguments]
    if all(x.ndim == 3 and x.shape[0] > 1 and x.shape[:-1] == floats[0].shape[:-1] for x in floats):
        for name in operation.float_arguments:
            x = prepared[name]
            prepared[name] = np.roll(x.reshape(-1, x.shape[-1]), 1, axis=0).reshape(x.shape)
    return prepared
