"""Rediscovered defects of sequences sharded among ranks, transcribed for two ranks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import unbroadcast
from attnspec.conformance.mutants.roles import at, key, mask_of, query, sizes, value
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import VariableLengthAttention


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
