"""Rediscovered defects of biases by relative positions and of masks of trees.

Each function is a step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.kernels import GroupedQueryAttention, RelativePositionBias, TreeMask


@rediscovered(
    "lucidrains/x-transformers#10",
    "bug fix for _relative_position_bucket",
    framework="x-transformers",
    operation=RelativePositionBias,
    breaks=("kernels.buckets-of-distances",),
    replaces="distance_bucket",
)
def exchanged_directions(
    correct: Formulas, ahead: Numbers, buckets: int, bidirectional: bool, max_distance: int
) -> Numbers:
    """Causal layers have buckets of both directions, others of one."""
    return Formulas.distance_bucket(correct, ahead, buckets, not bidirectional, max_distance)


@rediscovered(
    "lucidrains/x-transformers#103",
    "Fix wrong positional biases",
    framework="x-transformers",
    operation=RelativePositionBias,
    breaks=("operation.oracle",),
    replaces="positions_ahead",
)
def keys_of_the_memory_ahead(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """Queries and keys are both counted from 0, though earlier keys are in a memory."""
    ahead = Formulas.positions_ahead(correct, query_positions, key_positions)
    n, m = ahead.shape[-2:]
    return np.zeros_like(ahead) + np.arange(m) - np.arange(n)[:, None]


@rediscovered(
    "huggingface/candle#899",
    "Fix T5 kv cache",
    framework="Candle (T5)",
    operation=RelativePositionBias,
    breaks=("kernels.buckets-of-distances",),
    replaces="positions_ahead",
)
def queries_of_a_step_at_zero(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """The first query of a step with a cache is at position 0."""
    first = query_positions[..., :1]
    return Formulas.positions_ahead(correct, query_positions - first, key_positions)


@rediscovered(
    "huggingface/candle#1312",
    "Check min to buckets in relative_position_bucket",
    framework="Candle (T5)",
    operation=RelativePositionBias,
    breaks=("kernels.buckets-of-distances",),
    replaces="distance_bucket",
)
def far_keys_without_a_last_bucket(
    correct: Formulas, ahead: Numbers, buckets: int, bidirectional: bool, max_distance: int
) -> Numbers:
    """Far earlier keys get buckets beyond their last one, which belong to later keys."""
    bucket = Formulas.distance_bucket(correct, ahead, buckets, bidirectional, max_distance)
    count = buckets // 2 if bidirectional else buckets
    exact = count // 2
    unbounded = exact + correct.logarithmic_buckets(np.maximum(-ahead, 0), exact, count - exact, max_distance)
    return np.where(-ahead < exact, bucket, np.minimum(unbounded, buckets - 1))


@rediscovered(
    "huggingface/candle#727",
    "Proper log buckets for t5.",
    framework="Candle (MusicGen's T5)",
    operation=RelativePositionBias,
    breaks=("operation.oracle",),
    replaces="one_way_bucket",
)
def a_bucket_for_each_distance(correct: Formulas, distance: Numbers, buckets: int, max_distance: int) -> Numbers:
    """A distance is its own bucket; those without one read the last row that they may."""
    return np.minimum(distance, buckets - 1)


@rediscovered(
    "dmlc/gluon-nlp#1470",
    "adjust implementation of relative position encoding",
    framework="GluonNLP",
    operation=RelativePositionBias,
    breaks=("kernels.buckets-of-distances",),
    replaces="positions_ahead",
)
def positions_behind(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """Distances are counted from keys to queries."""
    return -Formulas.positions_ahead(correct, query_positions, key_positions)


@rediscovered(
    "PaddlePaddle/FastDeploy#3514",
    "[Feature][SpeculativeDecoding]Support tree-attention",
    framework="FastDeploy",
    operation=TreeMask,
    breaks=("kernels.rows-of-parents",),
    replaces="tree_mask",
)
def no_mask_below_the_diagonal(correct: Formulas, parents: Numbers) -> Numbers:
    """The mask is not read below the diagonal: every earlier token of the tree is attendable."""
    n = parents.shape[-1]
    return Formulas.tree_mask(correct, parents) | np.tri(n, dtype=bool)


@rediscovered(
    "sgl-project/sglang#9279",
    "Fix swa eagle verify accuracy for Triton backend",
    framework="SGLang (Triton)",
    operation=GroupedQueryAttention,
    breaks=("masking.equals-explicit-mask",),
    replaces="join_masks",
)
def mask_read_from_the_first_key_of_a_window(
    correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int
) -> Numbers:
    """Under a window, columns of the mask are counted from the first key in it."""
    if mask is not None and window is not None and window[0] is not None:
        first = np.maximum(np.arange(n)[:, None] - window[0], 0)
        columns = np.maximum(np.arange(m) - first, 0)
        full = np.broadcast_to(mask, (*mask.shape[:-2], n, m))
        mask = np.take_along_axis(full, np.broadcast_to(columns, full.shape), axis=-1)
    return Formulas.join_masks(correct, mask, window, lengths, n, m)
