"""Mutants of options: alone, in pairs, and for rows or parts without weight.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``prepare`` converts the arguments, ``finish`` converts the result and ``differentiate``
computes the gradients. ``value_of(x)`` is x without its record of gradients, so that no gradient flows through it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, at, changed, key, key_lengths, query, sizes
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import bind
from attnspec.spec.kernels import (
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    VariableLengthAttention,
)

TILE = 64
"""Number of keys in a tile."""

HEADS, ROWS, KEYS = -3, -2, -1
"""Axes of a bias (…, heads, n, m)."""

# Gradients of broadcast arrays ----------------------------------------------------------------------------------------


def gradient_of_last(
    correct: Library,
    operation: Operation,
    arguments: Arguments,
    cotangent: Any,
    path: str,
    axes: Sequence[int] | None = None,
) -> Gradients:
    """Gradients with the last share along broadcast ``axes`` (default: all) at ``path``, not their sum."""
    shape = bind(operation, arguments).shape(next(leaf for leaf in operation.leaves if leaf.path == path))
    x = at(arguments, path)
    if x is None:
        return Library.differentiate(correct, operation, arguments, cotangent)
    own = (1,) * (len(shape) - x.ndim) + x.shape
    chosen = range(-len(shape), 0) if axes is None else axes
    whole = [shape[i] if i in chosen else own[i] for i in range(-len(shape), 0)]
    repeated = np.array(np.broadcast_to(x.reshape(own), whole))
    gradients = Library.differentiate(correct, operation, changed(arguments, {path: repeated}), cotangent)
    g = gradients[path]
    for i in range(-len(shape), 0):
        if own[i] == 1 < g.shape[i]:
            g = np.take(g, [-1], axis=i)
    return {**gradients, path: g.reshape(x.shape)}


@mutant(
    "gradient of a bias shared by queries from the last query only",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.broadcast-gradients-sum",),
    source="HKUSTDial/flash-sparse-attention#190: dbias without the reduction over an axis that was broadcast",
)
def bias_of_last_row(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of a bias (…, heads, 1, m) comes from the last query alone."""
    return gradient_of_last(correct, operation, arguments, cotangent, operation.part(ScoreEffect.BIAS), [ROWS])


@mutant(
    "gradient of a bias shared by heads from the last head only",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.broadcast-gradients-sum",),
    source="jax-ml/jax#36702: a bias (…, 1, n, m) that all heads share, in a backward pass for one bias per head",
)
def bias_of_last_head(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of a bias (…, 1, n, m) comes from the last head alone."""
    return gradient_of_last(correct, operation, arguments, cotangent, operation.part(ScoreEffect.BIAS), [HEADS])


@mutant(
    "gradient of a bias shared by keys from the last key only",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.broadcast-gradients-sum",),
    source="a gradient that is stored for every key at the same place, where it should be added",
)
def bias_of_last_key(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of a bias (…, heads, n, 1) comes from the last key alone."""
    return gradient_of_last(correct, operation, arguments, cotangent, operation.part(ScoreEffect.BIAS), [KEYS])


@mutant(
    "gradient of a bias shared by the batch from the last element only",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.broadcast-gradients-sum",),
    source="gradients of relative positions that all blocks of threads store, where they should add",
)
def bias_of_last_element(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of a bias (heads, n, m) comes from the last batch element alone."""
    binding = bind(operation, arguments)
    axes = list(range(-3 - len(binding.batch), -3))
    return gradient_of_last(correct, operation, arguments, cotangent, operation.part(ScoreEffect.BIAS), axes)


@mutant(
    "gradient of queries shared by the batch from the last element only",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.broadcast-gradients-sum",),
    source="queries (1, heads, n, d) that an expanded view repeats, without the sum in the backward pass",
)
def queries_of_last_element(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of queries (1, heads, n, d) comes from the last batch element alone."""
    queries = at(arguments, query(operation))
    if queries.ndim != 4 or queries.shape[0] != 1:
        return Library.differentiate(correct, operation, arguments, cotangent)
    return gradient_of_last(correct, operation, arguments, cotangent, query(operation), [-4])


@mutant(
    "gradient of keys shared by heads from the last head only",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("training.broadcast-gradients-sum",),
    source="keys (batch, 1, m, d) of multi-query attention by expand, without the sum over heads",
)
def keys_of_last_head(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of keys (batch, 1, m, d) comes from the last head alone."""
    keys = at(arguments, key(operation))
    if keys.ndim != 4 or keys.shape[1] != 1:
        return Library.differentiate(correct, operation, arguments, cotangent)
    return gradient_of_last(correct, operation, arguments, cotangent, key(operation), [-3])


@mutant(
    "gradient of the sinks from the last row only",
    replaces="differentiate",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("training.options-affect-gradients", "training.broadcast-gradients-sum"),
    source="a gradient of sinks that every block of rows stores, where it should add it",
)
def sinks_of_last_row(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Only the last row contributes to the gradient of the sinks."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    sinks = operation.part(ScoreEffect.SINK)
    if sinks not in gradients:
        return gradients
    last = [
        None if x is None else np.where(_mask_of_last(x, axis), x, x.dtype.type(0))
        for x, axis in zip(cotangent, (ROWS, -1), strict=True)
    ]
    of_row = Library.differentiate(correct, operation, arguments, tuple(last))
    return {**gradients, sinks: of_row[sinks]}


@mutant(
    "no gradient for the sinks",
    replaces="differentiate",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.gradient", "training.options-affect-gradients"),
    source="a backward pass that returns no gradient for the sinks",
)
def no_gradient_for_sinks(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the sinks is 0."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    sinks = operation.part(ScoreEffect.SINK)
    return {path: np.zeros_like(x) if path == sinks else x for path, x in gradients.items()}


def _mask_of_last(x: Numbers, axis: int) -> Numbers:
    """True at the last index of an axis."""
    at_end = np.arange(x.shape[axis]) == x.shape[axis] - 1
    return at_end.reshape(-1, *(1,) * (-1 - axis))


@mutant(
    "gradients of key heads permuted",
    replaces="differentiate",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("training.options-affect-gradients",),
    source="XunhaoLai/native-sparse-attention-triton#27: a group taken for the number of heads of the keys",
)
def heads_by_group(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Key and value head h gets the gradient of head (h·group + 1) mod h_k: right if group = h_k."""
    gradients = dict(Library.differentiate(correct, operation, arguments, cotangent))
    heads = at(arguments, query(operation)).shape[HEADS]
    others = (query(operation), operation.part(ScoreEffect.BIAS))
    for leaf in operation.floats:
        x = at(arguments, leaf.path)
        if leaf.path in others or x is None or x.ndim < 3 or not x.shape[HEADS]:
            continue
        count = x.shape[HEADS]
        group = heads // count
        if group != count:
            order = [(h * group + 1) % count for h in range(count)]
            gradients[leaf.path] = np.take(gradients[leaf.path], order, axis=HEADS)
    return gradients


# Options in pairs, forward --------------------------------------------------------------------------------------------


@mutant(
    "sinks forgotten beside a window",
    replaces="prepare",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.options-have-effect",),
    source="vllm-project/vllm#49815: the path of windows is called without the sinks",
)
def no_sinks_in_window(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """With a window, sinks are ignored."""
    option, trigger = operation.part(ScoreEffect.SINK), str(operation.window)
    return _prepare_without(option, trigger, correct, operation, arguments)


@mutant(
    "cap forgotten beside slopes",
    replaces="prepare",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.options-have-effect",),
    source="only one of two functions that change scores is applied",
)
def no_cap_beside_slopes(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """With slopes, the cap is ignored."""
    option, trigger = operation.part(ScoreEffect.CAP), operation.part(ScoreEffect.SLOPES)
    return _prepare_without(option, trigger, correct, operation, arguments)


@mutant(
    "lengths forgotten beside a bias",
    replaces="prepare",
    operations=(GroupedQueryAttention,),
    breaks=("operation.options-have-effect",),
    source="a padding mask that is joined with a boolean mask alone",
)
def no_lengths_beside_bias(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """With a bias, lengths are ignored."""
    option, trigger = key_lengths(operation), operation.part(ScoreEffect.BIAS)
    return _prepare_without(option, trigger, correct, operation, arguments)


@mutant(
    "scale forgotten beside a cap",
    replaces="prepare",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.options-have-effect", "operation.oracle"),
    source="a scale folded into the division by the cap, computed from d",
)
def no_scale_beside_cap(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """With a cap, the scale is ignored and 1/√d is used."""
    option, trigger = operation.part(ScoreEffect.SCALE), operation.part(ScoreEffect.CAP)
    return _prepare_without(option, trigger, correct, operation, arguments)


def _prepare_without(
    option: str, trigger: str, correct: Library, operation: Operation, arguments: Arguments
) -> dict[str, Any]:
    """Prepared arguments without ``option`` if ``trigger`` is passed."""
    prepared = Library.prepare(correct, operation, arguments)
    return prepared if prepared.get(trigger) is None else {n: x for n, x in prepared.items() if n != option}


# Options in pairs, backward -------------------------------------------------------------------------------------------


def _backward_without(
    option: str, trigger: str, correct: Library, operation: Operation, arguments: Arguments, cotangent: Any
) -> Gradients:
    """Gradients without ``option`` if ``trigger`` is passed; an array ``option`` gets 0."""
    if arguments.get(trigger) is None or arguments.get(option) is None:
        return Library.differentiate(correct, operation, arguments, cotangent)
    bare = {n: x for n, x in arguments.items() if n != option}
    others = Library.differentiate(correct, operation, bare, cotangent)
    return {**others, option: np.zeros_like(arguments[option])} if isinstance(arguments[option], np.ndarray) else others


@mutant(
    "window forgotten beside sinks in the backward pass",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.options-affect-gradients",),
    source="AMD-AGI/Primus-Turbo#262: the backward pass of sinks knows the left end of a window alone",
)
def no_window_beside_sinks(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """With sinks, gradients are computed without the window."""
    option, trigger = str(operation.window), operation.part(ScoreEffect.SINK)
    return _backward_without(option, trigger, correct, operation, arguments, cotangent)


@mutant(
    "cap forgotten beside a bias in the backward pass",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.options-affect-gradients",),
    source="openxla/tokamax#1121: the derivative of the cap belongs before the gradients of keys and bias",
)
def no_cap_beside_bias(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """With a bias, gradients are computed without the cap."""
    option, trigger = operation.part(ScoreEffect.CAP), operation.part(ScoreEffect.BIAS)
    return _backward_without(option, trigger, correct, operation, arguments, cotangent)


@mutant(
    "slopes forgotten beside lengths in the backward pass",
    replaces="differentiate",
    operations=(GroupedQueryAttention,),
    breaks=("training.options-affect-gradients",),
    source="slopes that only the forward pass of packed sequences reads",
)
def no_slopes_beside_lengths(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """With lengths, gradients are computed without slopes."""
    option, trigger = operation.part(ScoreEffect.SLOPES), key_lengths(operation)
    return _backward_without(option, trigger, correct, operation, arguments, cotangent)


@mutant(
    "backward pass uses the default scale",
    replaces="differentiate",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention, LatentAttention),
    breaks=("operation.gradient",),
    source="a scale that is not saved for the backward pass",
)
def default_scale_backward(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Gradients are computed with the default scale 1/√d."""
    return Library.differentiate(
        correct, operation, changed(arguments, {operation.part(ScoreEffect.SCALE): None}), cotangent
    )


# One query ------------------------------------------------------------------------------------------------------------


def _for_one_query(option: str, correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Prepared arguments without ``option`` if there is a single query."""
    prepared = Library.prepare(correct, operation, arguments)
    single = sizes(operation, prepared)[0] == 1
    return {n: x for n, x in prepared.items() if n != option} if single else prepared


@mutant(
    "slopes forgotten for one query",
    replaces="prepare",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.options-have-effect",),
    source="a decoding kernel for attention without biases",
)
def no_slopes_for_one(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """For a single query, slopes are ignored."""
    return _for_one_query(operation.part(ScoreEffect.SLOPES), correct, operation, arguments)


@mutant(
    "sinks forgotten for one query",
    replaces="prepare",
    operations=(GroupedQueryAttention, VariableLengthAttention, PagedAttention),
    breaks=("operation.options-have-effect",),
    source="kekzl/imp#1303: the reduction of decoding without splits may silently lose the sink",
)
def no_sinks_for_one(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """For a single query, sinks are ignored."""
    return _for_one_query(operation.part(ScoreEffect.SINK), correct, operation, arguments)


# Rows and parts without weight ----------------------------------------------------------------------------------------


@mutant(
    "log-sum-exp of rows without keys lacks the sink",
    replaces="log_sum_exps",
    operations=(GroupedQueryAttention,),
    breaks=("operation.options-have-effect", "kernels.log-sum-exp"),
    source="ROCm/rocm-libraries#12227: no sink in the sum where the range of keys is empty",
)
def no_sink_without_keys(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The log-sum-exp of a row without keys is −3·10³⁸, not its sink."""
    with_sinks = Formulas.log_sum_exps(correct, scores, attendable, sinks)
    if attendable is None or sinks is None:
        return with_sinks
    has_keys = np.broadcast_to(attendable, np.broadcast_shapes(attendable.shape, scores.shape)).any(-1)
    return np.where(has_keys, with_sinks, with_sinks.dtype.type(-3e38))


@mutant(
    "merged log-sum-exps clamped at −10³⁰",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("kernels.merged-parts-equal-whole",),
    source="vllm-project/vllm#39148: the greatest logarithm not below −10³⁰, and 10⁻¹⁰ in the denominator",
)
def clamped_parts(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """Merged log-sum-exps below −10³⁰ become −10³⁰."""
    merged, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    return merged, np.maximum(logarithms, logarithms.dtype.type(-1e30))


@mutant(
    "parts weighted by exponentials that overflow",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("kernels.merged-parts-equal-whole",),
    source="exp(ℓ_p) without subtracting a maximum, for parts of long sequences",
)
def unshifted_parts(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """Parts are weighted by exp(ℓ) without a shift, which overflows float32 for ℓ above 88."""
    scores = log_sum_exps[..., None, :]
    nonempty = value_of(scores) != -np.inf
    weights = correct.exponential(correct.mask_scores(scores, nonempty))
    total = correct.total(weights)
    merged = correct.pool(weights / np.where(value_of(total) == 0, total.dtype.type(1), total), outputs, nonempty)
    _, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    return merged[..., 0, :], logarithms


@mutant(
    "NaN gradients if all parts are empty",
    replaces="differentiate",
    operations=(MergeAttention,),
    breaks=("attention.gradient-identities",),
    source="0 · (−∞ − −∞) in the backward pass of an online rescaling",
)
def empty_parts_backward(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the log-sum-exps is NaN if all parts are empty."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    widths = {*operation.sizes_of(Axis.FEATURE)}
    path = next(leaf.path for leaf in operation.floats if not widths & {*leaf.sizes})
    log_sum_exps = at(arguments, path)
    lost = np.all(np.isneginf(log_sum_exps), axis=-1, keepdims=True) & (log_sum_exps.shape[-1] > 0)
    g = gradients[path]
    return {**gradients, path: np.where(lost, g.dtype.type(np.nan), g)}


@mutant(
    "rows beyond the 256th 1 % too large",
    replaces="finish",
    operations=(ScaledDotProductAttention, GroupedQueryAttention, AdditiveAttention),
    breaks=("sizes.model-sizes",),
    source="a second launch for the rows behind the first 256, with another scale of the output",
)
def later_rows_too_large(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Rows from the 257th on are 1 % too large."""
    whole = Library.finish(correct, operation, result, arguments)
    output = whole[0] if isinstance(whole, tuple) else whole
    output[..., 256:, :] *= output.dtype.type(1.01)
    return whole
