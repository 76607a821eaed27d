"""Check of arrays shared by batch or heads: dimensions absent or of size 1. Options of ``@checks``: see ``Check``."""

from collections.abc import Iterator, Mapping

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import operation as law
from attnspec.spec.laws.sizes import may_share_batches

EQUAL_SIZE = 3
"""Number of batch elements, heads and queries: equal, so that confusing them raises nothing."""

KEYS = 5

Index = tuple[int | slice, ...]

SHARED_INDICES: Mapping[str, Index] = {
    "(1, h, …)": (slice(1),),
    "(b, 1, …)": (slice(None), slice(1)),
    "(h, …)": (0,),
    "without batch": (0, 0),
}
"""Indices that cut arrays with batch (b, h) to fewer dimensions or to size 1."""


@checks(law.BROADCAST_EQUALS_REPEAT, once=True, leading_dtype_only=True, governs=may_share_batches)
def shared(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Drop batch dimensions of masks, of keys and values, of queries, of all but masks."""
    limits = subject.limits
    batch = (EQUAL_SIZE, EQUAL_SIZE)[: limits.max_batch_dims]
    if not limits.broadcasting or not batch:
        return False
    sampled = sample(subject, rng, batch, queries=EQUAL_SIZE, keys=KEYS, heads=2, features=4, whole=True)
    tried = False
    for label, shared in _broadcast_calls(sampled):
        if subject.in_domain(shared):
            subject.follows_formula(shared, f"with {label},")
            tried = True
    return tried


def _broadcast_calls(whole: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Labels and calls in which some arrays have fewer batch dimensions."""
    operation, unmasked = whole.operation, whole.without_masks()
    self_attention = operation.attends_to_itself
    masks = list(operation.masks.values())
    kinds: list[tuple[str, Arguments, list[Leaf]]] = [
        ("masks", whole, masks),
        ("keys and values", unmasked, [] if self_attention else list(operation.attended)),
        ("queries", unmasked, [] if self_attention else list(operation.queries)),
    ]
    for name, call, leaves in kinds:
        present = {leaf.path: call.array(leaf.path) for leaf in leaves if call[leaf.path] is not None and leaf.batched}
        for shape, index in SHARED_INDICES.items() if present else ():
            if len(index) <= len(whole.batch):
                yield f"{name} {shape}", call.replaced({path: x[index].copy() for path, x in present.items()})
    if whole.batch and any(whole[mask.path] is not None and mask.batched for mask in masks):
        first = (0,) * len(whole.batch)
        arrays = {leaf.path: x[first].copy() for leaf, x in whole.floats if leaf.batched}
        yield "only the masks batched", whole.replaced(arrays)
