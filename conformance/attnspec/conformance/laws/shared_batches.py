"""Check of arrays that batch elements or heads share, in every way to drop dimensions."""

from collections.abc import Iterator, Mapping

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import checks
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.spec.contract.tree import Leaf
from attnspec.spec.laws import operation as law
from attnspec.spec.laws.sizes import shares

SAME = 3
"""Batch elements, heads and queries: equal, so that confusing dimensions does not raise."""

KEYS = 5

Index = tuple[int | slice, ...]

SHARED: Mapping[str, Index] = {
    "(1, h, …)": (slice(1),),
    "(b, 1, …)": (slice(None), slice(1)),
    "(h, …)": (0,),
    "without batch": (0, 0),
}
"""Indices that cut arrays of batch (b, h) to fewer dimensions or to size 1."""


@checks(law.BROADCASTING, once=True, at_leading=True, governs=shares)
def shared(subject: Subject, arguments: Arguments, rng: np.random.Generator) -> bool:
    """Drop batch dimensions of masks, keys and values, queries, or all arrays but masks."""
    limits = subject.limits
    batch = (SAME, SAME)[: limits.max_batch_dims]
    if not limits.broadcasting or not batch:
        return False
    whole = sample(subject, rng, batch, queries=SAME, keys=KEYS, heads=2, features=4, whole=True)
    tried = False
    for what, given in _calls(whole):
        if subject.in_domain(given):
            subject.follows_formula(given, f"with {what},")
            tried = True
    return tried


def _calls(whole: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Calls whose masks, other arrays (unmasked), or all but the masks have fewer dimensions."""
    operation, bare = whole.operation, whole.without_masks()
    itself = operation.attends_to_itself
    masks = list(operation.masks.values())
    kinds: list[tuple[str, Arguments, list[Leaf]]] = [
        ("masks", whole, masks),
        ("keys and values", bare, [] if itself else list(operation.attended)),
        ("queries", bare, [] if itself else list(operation.queries)),
    ]
    for words, given, leaves in kinds:
        there = {leaf.path: given.array(leaf.path) for leaf in leaves if given[leaf.path] is not None and leaf.batched}
        for shape, index in SHARED.items() if there else ():
            if len(index) <= len(whole.batch):
                yield f"{words} {shape}", given.replaced({path: x[index].copy() for path, x in there.items()})
    if whole.batch and any(whole[mask.path] is not None and mask.batched for mask in masks):
        first = (0,) * len(whole.batch)
        arrays = {leaf.path: x[first].copy() for leaf, x in whole.floats if leaf.batched}
        yield "only the masks batched", whole.replaced(arrays)
