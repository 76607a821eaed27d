"""Mutants of multi-head attention.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``call`` runs all steps of a call. ``x * x.dtype.type(0)`` leaves x out but keeps its shape. S0
to S4 are sources of the specification.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.contract.operation import Operation
from attnspec.spec.multihead import (
    BiasedMultiHeadAttention,
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    SplitHeads,
)


@mutant(
    "scores divided by the root of the whole width",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("operation.oracle",),
    source="S2, lucidrains/vit-pytorch#65, Graylab/DL4Proteins-notebooks#12",
)
def width_of_all_heads(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores are divided by √(h·d), with h heads of d features, in place of √d."""
    scores = correct.dot_scores(q, k)
    return correct.attend(correct.scale_scores(scores, q.shape[-1] * q.shape[-3]), v, mask, causal)


@mutant(
    "scores divided by √h",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("multihead.one-head-is-attention", "operation.oracle"),
    source="tenstorrent/tt-metal#56789",
)
def number_of_heads(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores are divided by √h, with h the number of heads, in place of √d."""
    scores = correct.dot_scores(q, k)
    return correct.attend(correct.scale_scores(scores, q.shape[-3]), v, mask, causal)


@mutant(
    "head scores multiplied by ½",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("multihead.one-head-is-attention",),
    source="BobMcDear/attorch#14",
)
def halved(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores are multiplied by ½ = 1/√4 in place of 1/√d."""
    scores = correct.dot_scores(q, k)
    return correct.attend(scores * scores.dtype.type(0.5), v, mask, causal)


@mutant(
    "heads merged without a transpose",
    replaces="join_heads",
    operations=(MultiHeadAttention,),
    breaks=("attention.permutation-equivariance", "multihead.heads-add-up", "operation.oracle"),
    source="jsbaan/transformer-from-scratch#6, ajhalthor/Transformer-Neural-Network#4",
)
def without_transpose(correct: Formulas, heads: Numbers) -> Numbers:
    """Heads (h, n, p) are reshaped to (n, h·p) without a transpose: rows mix positions."""
    *batch, h, n, p = heads.shape
    return heads.reshape(*batch, n, h * p)


@mutant(
    "heads interleaved",
    replaces="join_heads",
    operations=(MultiHeadAttention,),
    breaks=("attention.permutation-equivariance", "operation.oracle"),
    source="the order (p, h) for (h, p)",
)
def interleaved_heads_merged(correct: Formulas, heads: Numbers) -> Numbers:
    """Heads are merged coordinate by coordinate: coordinate 0 of all heads, then coordinate 1."""
    swapped = np.moveaxis(heads, -3, -1)
    return swapped.reshape(*swapped.shape[:-2], swapped.shape[-2] * swapped.shape[-1])


@mutant(
    "projections split feature by feature",
    replaces="project_heads",
    operations=(MultiHeadAttention, ConcatHeadsAttention),
    breaks=("operation.oracle", "operation.gradient"),
    source="a fused projection of Q, K and V viewed as (n, 3, d, heads), not (n, 3, heads, d)",
)
def split_by_feature(correct: Formulas, x: Numbers, weight: Numbers) -> Numbers:
    """Projections are viewed as (n, d, heads), not (n, heads, d): head r gets features r, r + heads, …."""
    heads, d, width = weight.shape
    rows = np.swapaxes(weight.reshape(heads * d, width).reshape(d, heads, width), 0, 1)
    return Formulas.project_heads(correct, x, rows)


@mutant(
    "heads in reverse order",
    replaces="join_heads",
    operations=(MultiHeadAttention,),
    breaks=("multihead.heads-add-up", "operation.oracle"),
    source="snowflakedb/ArcticInference#142",
)
def reversed_heads(correct: Formulas, heads: Numbers) -> Numbers:
    """Heads are merged in reverse order."""
    return Formulas.join_heads(correct, np.flip(heads, axis=-3))


@mutant(
    "every head is head 0",
    replaces="project_heads",
    operations=(MultiHeadAttention,),
    breaks=("attention.permutation-equivariance", "multihead.heads-add-up"),
    source="BobMcDear/attorch#14, PSAL-POSTECH/ONNXim#34",
)
def first_head_only(correct: Formulas, x: Numbers, w: Numbers) -> Numbers:
    """All heads use the first one's weights."""
    return Formulas.project_heads(correct, x, np.repeat(w[:1], w.shape[0], axis=0))


@mutant(
    "last head dropped",
    replaces="join_heads",
    operations=(MultiHeadAttention,),
    breaks=("attention.permutation-equivariance", "multihead.heads-add-up"),
    source="a number of heads that an integer division rounded down",
)
def last_head_dropped(correct: Formulas, heads: Numbers) -> Numbers:
    """The output of the last of several heads is 0."""
    in_use = np.arange(heads.shape[-3]) < max(heads.shape[-3] - 1, 1)
    return Formulas.join_heads(correct, np.where(in_use[:, None, None], heads, heads.dtype.type(0)))


@mutant(
    "head outputs divided by the number of heads",
    replaces="join_heads",
    operations=(MultiHeadAttention,),
    breaks=("multihead.heads-add-up", "pooling.unbiased-gain"),
    source="attention maps are averaged over heads for display",
)
def heads_averaged(correct: Formulas, heads: Numbers) -> Numbers:
    """Outputs of heads are divided by the number of heads."""
    return Formulas.join_heads(correct, heads / heads.dtype.type(heads.shape[-3]))


@mutant(
    "softmax over heads and keys together",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("multihead.heads-add-up", "operation.oracle"),
    source="FudanNLP/fastNLP#254",
)
def joint_softmax(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """The softmax runs over heads and keys: the weights of all heads sum to 1."""
    result = correct.scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)
    scores = correct.scaled_dot_scores(q, k)
    excluded = correct.mask_scores(scores, correct.attendable(mask, causal, *scores.shape[-2:]))
    highest = correct.shift(excluded)
    sums = correct.total(np.exp(excluded - highest)) * np.exp(highest)
    every = np.sum(sums, axis=-3, keepdims=True)
    return result * sums / np.where(every == 0, scores.dtype.type(1), every)


@mutant(
    "mask applied to the first head only",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("masking.masked-keys-ignored", "masking.masking-equals-truncation"),
    source="a mask with a head axis of 1 that is not repeated",
)
def first_head_masked(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """The mask applies to the first head only."""
    if mask is not None:
        mask = mask | (np.arange(q.shape[-3])[:, None, None] > 0)
    return Formulas.attend_heads(correct, q, k, v, mask, causal)


@mutant(
    "heads get masks of other batch elements",
    replaces="attend_heads",
    operations=(MultiHeadAttention,),
    breaks=("operation.batch-invariance",),
    source="lsdefine/attention-is-all-you-need-keras#36, keras repeat for tile",
)
def masks_tiled(correct: Formulas, q: Numbers, k: Numbers, v: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Masks repeated to (B·h) are read as (h·B): heads get masks of other batch elements."""
    if mask is not None and mask.ndim == 4:
        b, h = mask.shape[0], q.shape[-3]
        repeated = np.repeat(mask[:, 0], h, axis=0)
        mask = np.swapaxes(repeated.reshape(h, b, *mask.shape[-2:]), 0, 1)
    return Formulas.attend_heads(correct, q, k, v, mask, causal)


@mutant(
    "w_o read transposed",
    replaces="multi_head_attention",
    operations=(MultiHeadAttention,),
    breaks=("attention.permutation-equivariance", "operation.oracle"),
    source="(out, in) and (in, out) weights confused",
)
def transposed_output(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """The memory of W_o is read as if it were transposed."""
    *others, w_o = arrays
    transposed = np.swapaxes(w_o, -1, -2).reshape(*w_o.shape)
    return Formulas.multi_head_attention(correct, *(*others, transposed), **options)


@mutant(
    "10⁻² added to the output",
    replaces="multi_head_attention",
    operations=(MultiHeadAttention,),
    breaks=("multihead.one-head-is-attention", "pooling.linearity"),
    source="multi-head layers have biases unless told otherwise",
)
def output_bias(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """10⁻² is added to every element of the result."""
    result = Formulas.multi_head_attention(correct, *arrays, **options)
    return result + result.dtype.type(0.01)


@mutant(
    "biases of projections left out",
    replaces="project_heads_with_bias",
    operations=(BiasedMultiHeadAttention,),
    breaks=("multihead.biases-of-the-output", "operation.oracle"),
    source="onnxruntime/mobius#396",
)
def projections_without_bias(correct: Formulas, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Queries, keys and values have no bias; the output keeps its own."""
    return correct.project_heads(x, w) + b[:, None, :] * b.dtype.type(0)


@mutant(
    "bias of queries not scaled",
    replaces="biased_multi_head_attention",
    operations=(BiasedMultiHeadAttention,),
    breaks=("operation.oracle",),
    source="queries are divided by √p_q before their bias is added",
)
def unscaled_query_bias(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """The bias of queries is added after the division by √p_q."""
    *others, b_q, b_k, b_v, b_o = arrays
    larger = b_q * b_q.dtype.type(b_q.shape[-1] ** 0.5)
    return Formulas.biased_multi_head_attention(correct, *(*others, larger, b_k, b_v, b_o), **options)


@mutant(
    "bias of keys added to queries",
    replaces="biased_multi_head_attention",
    operations=(BiasedMultiHeadAttention,),
    breaks=("multihead.key-bias-cancels", "operation.oracle"),
    source="one bias read for two of the three parts of in_proj_bias",
)
def key_bias_of_queries(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """The bias of keys is added to the queries, too."""
    *others, b_q, b_k, b_v, b_o = arrays
    return Formulas.biased_multi_head_attention(correct, *(*others, b_q + b_k, b_k, b_v, b_o), **options)


@mutant(
    "last key without its bias",
    replaces="project_heads_with_bias",
    operations=(BiasedMultiHeadAttention,),
    breaks=("multihead.biases-of-the-output", "operation.oracle"),
    source="a kernel whose last row of a tile skips the epilogue",
)
def last_row_without_bias(correct: Formulas, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """The last of several projected rows has no bias."""
    added = np.arange(x.shape[-2]) < max(x.shape[-2] - 1, 1)
    projected = correct.project_heads(x, w)
    return projected + b[:, None, :] * added[:, None].astype(x.dtype)


@mutant(
    "output bias added twice",
    replaces="add_output_bias",
    operations=(BiasedMultiHeadAttention,),
    breaks=("multihead.biases-of-the-output", "operation.oracle"),
    source="Wenyueh/MinivLLM#80",
)
def output_bias_of_two_ranks(correct: Formulas, projected: Numbers, b: Numbers) -> Numbers:
    """Both of two ranks add b_o before their parts are summed."""
    return projected + b + b


@mutant(
    "bias of values added after pooling",
    replaces="biased_multi_head_attention",
    operations=(BiasedMultiHeadAttention,),
    breaks=("semantics.fully_masked",),
    source="W_o b_v + b_o computed in advance as one bias",
)
def value_bias_after_pooling(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """W_o b_v is added to all rows, also to those without an attendable key."""
    *others, w_o, b_q, b_k, b_v, b_o = arrays
    absent = b_v * b_v.dtype.type(0)
    result = Formulas.biased_multi_head_attention(correct, *(*others, w_o, b_q, b_k, absent, b_o), **options)
    return result + correct.project(b_v.reshape(1, b_v.shape[0] * b_v.shape[1]), w_o)[0]


@mutant(
    "gradient of the output bias averaged over rows",
    replaces="add_output_bias",
    operations=(BiasedMultiHeadAttention,),
    breaks=("operation.gradient",),
    source="a mean for a sum in the backward pass of a bias",
)
def averaged_bias_gradient(correct: Formulas, projected: Numbers, b: Numbers) -> Numbers:
    """The gradient of b_o is the mean over rows, not their sum."""
    result = Formulas.add_output_bias(correct, projected, b)
    if not isinstance(b, Tape):
        return result
    rows = max(int(np.prod(projected.shape[:-1])), 1)
    return Tape(result.value, [projected, b], lambda g: [g, g.reshape(-1, b.shape[0]).sum(0) / g.dtype.type(rows)])


@mutant(
    "heads without projection scaled",
    replaces="concat_heads_attention",
    operations=(ConcatHeadsAttention,),
    breaks=("operation.oracle",),
    source="S1's heads read as those of Vaswani 2017",
)
def scaled_heads(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """Scores are divided by √p_q, which S1's heads do not have."""
    query, key, value, w_q, *others = arrays
    scaled = correct.scale_scores(w_q, w_q.shape[-2])
    return Formulas.concat_heads_attention(correct, query, key, value, scaled, *others, **options)


@mutant(
    "columns of heads interleaved",
    replaces="concat_heads_attention",
    operations=(ConcatHeadsAttention,),
    breaks=("multihead.heads-add-up", "operation.oracle"),
    source="a reshape to (n, p, heads)",
)
def interleaved_heads(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """Heads are concatenated column by column: the first columns of all heads come first."""
    joined = Formulas.concat_heads_attention(correct, *arrays, **options)
    *_, w_v = arrays
    heads, width = w_v.shape[:2]
    apart = joined.reshape(*joined.shape[:-1], heads, width)
    return np.swapaxes(apart, -1, -2).reshape(*joined.shape)


@mutant(
    "one output vector a_v for all heads",
    replaces="multi_head_additive_attention",
    operations=(MultiHeadAdditiveAttention,),
    breaks=("multihead.heads-add-up", "operation.oracle"),
    source="the output layer of the scorer made once",
)
def shared_output_vector(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """Every head uses the last head's output vector a_v."""
    *others, a_v = arrays
    same = a_v[-1:] + a_v * a_v.dtype.type(0)
    return Formulas.multi_head_additive_attention(correct, *(*others, same), **options)


@mutant(
    "heads of every h-th feature",
    replaces="group_features",
    operations=(SplitHeads,),
    breaks=("multihead.head-column-order", "operation.oracle"),
    source="rearrange with (d h) in place of (h d)",
)
def every_other_feature(correct: Formulas, x: Numbers, heads: int) -> Numbers:
    """Head r has the features r, r + h, r + 2h, …."""
    return np.swapaxes(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -2)


@mutant(
    "split without exchanging axes",
    replaces="split_heads",
    operations=(SplitHeads,),
    breaks=("multihead.head-column-order", "operation.oracle"),
    source="view(B, H, L, D/H) in place of view(B, L, H, D/H).transpose(1, 2)",
)
def viewed_as_heads(correct: Formulas, x: Numbers, heads: int) -> Numbers:
    """The memory of (n, d) is read as (h, n, d/h) without exchanging axes."""
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


@mutant(
    "features that do not fill the heads dropped",
    replaces="call",
    operations=(SplitHeads,),
    breaks=("operation.rejection",),
    source="D // H where H does not divide D",
)
def remainder_dropped(correct: Library, operation: Operation, *args: Any, **kwargs: Any) -> Numbers:
    """If heads do not divide the width, the last features are lost without an error."""
    x, heads = correct.bind_arguments(operation, args, kwargs).values()
    if heads < 1 or x.ndim < 2 or x.shape[-1] < heads:
        return Library.call(correct, operation, x, heads)
    return Library.call(correct, operation, x[..., : x.shape[-1] // heads * heads], heads)


@mutant(
    "gradient of the split not transposed",
    replaces="split_heads",
    operations=(SplitHeads,),
    breaks=("operation.gradient",),
    source="a backward pass that reshapes and does not transpose",
)
def reshaped_gradient(correct: Formulas, x: Numbers, heads: int) -> Numbers:
    """The gradient (h, n, d/h) is reshaped to that of x without exchanging axes."""
    result = Formulas.split_heads(correct, x, heads)
    return Tape(result.value, [x], lambda g: [g.reshape(x.shape)]) if isinstance(x, Tape) else result


@mutant(
    "merged without exchanging axes",
    replaces="merge_heads",
    operations=(MergeHeads,),
    breaks=("multihead.head-column-order", "operation.oracle"),
    source="view(B, L, D) without transpose(1, 2)",
)
def viewed_as_rows(correct: Formulas, x: Numbers) -> Numbers:
    """The memory of (h, n, p) is read as (n, hp) without exchanging axes."""
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


@mutant(
    "merged feature by feature",
    replaces="merge_heads",
    operations=(MergeHeads,),
    breaks=("multihead.head-column-order", "operation.gradient"),
    source="rearrange with (d h) in place of (h d)",
)
def feature_by_feature(correct: Formulas, x: Numbers) -> Numbers:
    """Heads are merged feature by feature: first features of all heads, then second ones."""
    by_feature = np.moveaxis(x, -3, -1)
    return by_feature.reshape(*by_feature.shape[:-2], x.shape[-1] * x.shape[-3])


@mutant(
    "heads merged in reverse order",
    replaces="merge_heads",
    operations=(MergeHeads,),
    breaks=("multihead.head-column-order", "operation.oracle"),
    source="a list of heads that is popped",
)
def reversed_order(correct: Formulas, x: Numbers) -> Numbers:
    """Heads are merged from the last to the first."""
    return Formulas.merge_heads(correct, x[..., ::-1, :, :])
