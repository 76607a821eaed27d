"""Declared limits as text: those that differ from the defaults, and the inputs that they exclude."""

from collections.abc import Iterable, Iterator
from dataclasses import fields

from attnspec.conformance.inputs.heads import divided_sizes
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation

ELSEWHERE = ("dtypes", "devices", "dtypes_by_operation", "features")
"""Limits that reports print elsewhere."""


def non_default_limits(limits: Limits) -> Iterator[str]:
    """Yield the limits that differ from the defaults, except dtypes, devices and features."""
    for f in fields(limits):
        value = getattr(limits, f.name)
        if f.name in ELSEWHERE or value == f.default:
            continue
        if f.name == "operand_formats":
            yield f"operand formats of {' and '.join(name for name, _ in value)}"
        elif f.name != "gradients":
            yield f"{f.name.replace('_', ' ')} {value}"
        elif value:  # the report has a remark of its own for a backend without gradients
            yield f"gradients of {' and '.join(value)}"


def excluded_inputs(limits: Limits, operations: Iterable[Operation]) -> Iterator[str]:
    """Yield the inputs that the limits exclude, except greater lengths, dtypes, devices and features."""
    judged = tuple(operations)
    if not judged:
        return
    if limits.head_sizes is not None:
        yield f"sizes of features other than {', '.join(map(str, limits.head_sizes))}"
    if limits.multiple_of > 1:
        yield f"lengths that are no multiples of {limits.multiple_of}"
    if limits.min_length:
        yield f"lengths below {limits.min_length}"
    if limits.max_batch_dims < Limits.max_batch_dims:
        batch_dims = limits.max_batch_dims
        yield f"batches of more than {batch_dims} dimension{'s' * (batch_dims > 1)}" if batch_dims else "batches"
    if limits.min_batch:
        yield f"dimensions of a batch below {limits.min_batch}"
    if not limits.broadcasting:
        yield "batches that broadcast"
    if limits.divided_heads and any(divided_sizes(o).heads for o in judged):
        yield "heads that do not divide the width"
    always = [choice for choice in limits.always if any(choice in o.features for o in judged)]
    if always:
        yield f"calls without {' and '.join(always)}"
    if not limits.mask and any(leaf.optional for o in judged for leaf in o.masks.values()):
        yield "masks"
    if not limits.causal and any(o.flag for o in judged):
        yield "the causal flag"
    if limits.contiguous_only:
        yield "arrays that are not contiguous"
    without = [o.name for o in judged if o.differentiable and not limits.gives_gradients(o.name)]
    if without and limits.gradients:
        yield f"gradients of {', '.join(without)}"
