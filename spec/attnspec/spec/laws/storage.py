"""Laws of memory layouts: strides, views and offsets."""

from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws.operation import takes_arrays


def has_queries_and_keys(operation: Operation) -> bool:
    """True if there are queries and rows for keys, outside the layers of a model."""
    in_model = bool(operation.counts) or any("." in size for size in operation.sizes)
    return bool(operation.attended and operation.queries) and not in_model


VIEWS_EQUAL_COPIES = law(
    "storage.views-equal-copies",
    "A view gives the result of its copy, whether it is packed, padded, strided, repeated, transposed, reversed or "
    "negated by a flag (PyTorch's `resolve_neg`), holds wide vectors or masks, or begins at an offset. This includes "
    "views whose rows lie so far apart that an offset needs more than 31 bits.",
    formula=r"f(\operatorname{view} x) = f(x),\ \text{also for strides} \ge 2^{31}",
    governs=takes_arrays,
)
