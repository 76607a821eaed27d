"""Rediscovered defects of sequences sharded among ranks, transcribed for few ranks."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnspec.conformance.inputs.recurrences import recurrence
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import unbroadcast, value_of
from attnspec.conformance.mutants.roles import at, changed, key, mask_of, query, sizes, value
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.kernels import MergeAttention, VariableLengthAttention
from attnspec.spec.linear import LinearAttention


@rediscovered(
    "huggingface/diffusers#14265",
    "Ring attention backward uses stale iteration-0 KV from ctx.saved_tensors — silent gradient corruption when "
    "training with context parallelism",
    framework="diffusers (ring attention)",
    operation=ScaledDotProductAttention,
    breaks=("operation.gradient",),
    replaces="differentiate",
    profile="full",
)
def stale_keys(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Every step of the backward ring reads the rank's own keys and values."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    n, m, d, _ = sizes(operation, arguments)
    if n % 2 or m % 2 or not n or not m:
        return gradients
    q, k, v = (at(arguments, path(operation)) for path in (query, key, value))
    attendable = correct.formulas.attendable(mask_of(operation, arguments), at(arguments, str(operation.flag)), n, m)
    weights = correct.formulas.softmax(correct.formulas.scaled_dot_scores(q, k), mask=attendable)
    deltas = cotangent @ transposed(v)
    of_scores = weights * (deltas - (weights * deltas).sum(-1, keepdims=True)) / q.dtype.type(d**0.5)
    of_query, of_key = np.zeros_like(of_scores @ k), np.zeros_like(transposed(of_scores) @ q)
    of_value = np.zeros_like(transposed(weights) @ cotangent)
    for own, rows in zip(halves(m), halves(n), strict=True):
        of_query[..., rows, :] = 2 * (of_scores[..., rows, own] @ k[..., own, :])
        for shard in halves(m):  # gradients travel on, as if they were those of other keys
            of_key[..., shard, :] += transposed(of_scores[..., rows, own]) @ q[..., rows, :]
            of_value[..., shard, :] += transposed(weights[..., rows, own]) @ cotangent[..., rows, :]
    wrong = {query: of_query, key: of_key, value: of_value}
    return {
        **gradients,
        **{p(operation): unbroadcast(g, gradients[p(operation)].shape) for p, g in wrong.items()},
    }


def transposed(x: Numbers) -> Numbers:
    """Last two axes swapped."""
    return np.swapaxes(x, -1, -2)


def halves(length: int) -> tuple[slice, slice]:
    """Rows of two ranks."""
    return slice(length // 2), slice(length // 2, None)


@rediscovered(
    "NVIDIA/TransformerEngine#1930",
    "There is a bug when both packing and context parallelism (CP) are enabled at the same time.",
    framework="TransformerEngine",
    operation=VariableLengthAttention,
    breaks=("operation.oracle",),
    replaces="variable_length_attention",
)
def even_lengths(
    correct: Formulas,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    query_ends: Numbers,
    key_ends: Numbers,
    *,
    key_lengths: Numbers = None,
    **options: Any,
) -> tuple[Numbers, Numbers]:
    """A sequence of an odd number of keys loses its last one."""
    parts = []
    for i, j in zip(correct.sequence_slices(query_ends), correct.used_keys(key_ends, key_lengths), strict=True):
        even = slice(j.start, j.stop - (j.stop - j.start) % 2)
        rows = query[..., i, :], key[..., even, :], value[..., even, :]
        parts.append(correct.grouped_query_attention(*rows, **options))
    outputs, logarithms = zip(*parts, strict=True)
    return np.concatenate(outputs, axis=-2), np.concatenate(logarithms, axis=-1)


@rediscovered(
    "NVIDIA/TransformerEngine#716",
    "[Pytorch] Update context parallel softmax lse correction func",
    framework="TransformerEngine",
    operation=MergeAttention,
    breaks=("kernels.merged-parts-equal-whole",),
    replaces="merge_attention",
)
def sums_of_exponentials(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> tuple[Numbers, Numbers]:
    """Exponentials of log-sum-exps are added unshifted: beyond the range of float64, results are NaN."""
    return _where(value_of(log_sum_exps).max(-1, initial=0) > np.log(np.finfo(np.float64).max), np.nan, np.nan)(
        *Formulas.merge_attention(correct, outputs, log_sum_exps)
    )


@rediscovered(
    "jzhang38/EasyContext#14",
    "Error when the model vocabulary is larger than 120k",
    framework="ring-flash-attention",
    operation=MergeAttention,
    breaks=("kernels.merged-parts-equal-whole",),
    replaces="merge_attention",
)
def exponential_of_the_difference(
    correct: Formulas, outputs: Numbers, log_sum_exps: Numbers
) -> tuple[Numbers, Numbers]:
    """e^(ℓ' − ℓ) overflows if a later block's log-sum-exp is larger by 89.

    The merged log-sum-exp is then ∞, and all weights are 0.
    """
    logarithms = value_of(log_sum_exps).astype(np.float64)
    before = np.logaddexp.accumulate(logarithms, -1)[..., :-1]
    rises = np.where(np.isfinite(before), logarithms[..., 1:] - before, 0).max(-1, initial=0)
    return _where(rises > np.log(np.finfo(np.float32).max), 0, np.inf)(
        *Formulas.merge_attention(correct, outputs, log_sum_exps)
    )


def _where(rows: Any, output: float, logarithm: float) -> Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """Function that replaces results in these rows."""

    def replaced(merged: Numbers, logarithms: Numbers) -> tuple[Numbers, Numbers]:
        lost = merged.dtype.type(output), merged.dtype.type(logarithm)
        return np.where(rows[..., None], lost[0], merged), np.where(rows, lost[1], logarithms)

    return replaced


@rediscovered(
    "fla-org/flash-linear-attention#1115",
    "[Bug] KDA context-parallel backward: gk loads miss head/bos offset in bwd pre-process (wrong grads on non-last "
    "ranks)",
    framework="fla",
    operation=LinearAttention,
    breaks=("operation.gradient",),
    replaces="vjp",
    profile="full",
)
def decays_of_the_first_head(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients of the earlier rank come through the decays of the first head alone."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    paths = recurrence(OPERATIONS[operation])
    decay, half = arguments.get(paths.decay), arguments[paths.key].shape[-2] // 2
    if decay is None or not half:
        return gradients
    (of_output, of_final), final = cotangent, getattr(correct, operation)(**arguments)[1]
    rows = [x for x in (paths.query, paths.key, paths.value, paths.decay) if arguments.get(x) is not None]

    def part(steps: slice, of_state: Numbers) -> dict[str, Numbers]:
        cut = {x: arguments[x][..., steps, :] for x in rows}
        if arguments.get(paths.rate) is not None:
            cut[paths.rate] = arguments[paths.rate][..., steps]
        if steps.start:
            cut[paths.decay] = np.broadcast_to(cut[paths.decay][..., :1, :, :], cut[paths.decay].shape)
            cut[paths.state] = np.broadcast_to(arguments[paths.state], final.shape)
        weights = None if of_output is None else of_output[..., steps, :], of_state
        return Library.vjp(correct, operation, changed(arguments, cut), weights)

    earlier = part(slice(0, half), part(slice(half, None), of_final)[paths.state])
    for path in rows:
        gradients[path][..., :half, :] = earlier[path]
    return {**gradients, paths.state: earlier[paths.state]}
