"""Laws of where arrays lie in memory, and of what is kept from one call to the next."""

from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation


def _takes_arrays(operation: Operation) -> bool:
    return bool(operation.leaves)


def _attends(operation: Operation) -> bool:
    """Whether queries meet rows for keys, outside the layers of a model."""
    in_model = bool(operation.counts) or any("." in size for size in operation.sizes)
    return bool(operation.attended and operation.queries) and not in_model


LAYOUTS = law(
    "storage.layouts",
    "Views count as their copies do: of packed, padded, repeated, exchanged and reversed arrays, and behind an offset.",
    formula=r"f(\operatorname{view} x) = f(x)",
    governs=_takes_arrays,
)
WIDE_LAYOUTS = law(
    "storage.wide-layouts",
    "Views of wide vectors and masks count as their copies do: strided, packed, padded, and repeated for every head, "
    "as a mask of each element is, too.",
    formula=r"f(\operatorname{view} x) = f(x),\ d \ge 16",
    governs=_attends,
)
DISTANCE = law(
    "storage.distance",
    "Rows may lie so far apart that an offset needs more than 31 bits.",
    formula=r"f(\operatorname{view} x) = f(x),\ \text{strides} \ge 2^{31}",
    governs=_takes_arrays,
)
REWRITTEN = law(
    "storage.rewritten-inputs",
    "Each array counts as it is when the call is made, whatever was in its place before and beside which others.",
    formula=r"f(x),\ x_i \leftarrow y_i,\ f(x):\ \text{second} = f(x_1, \ldots, y_i, \ldots)",
    governs=_takes_arrays,
)
OTHER_DTYPE = law(
    "storage.other-dtype",
    "A call is what it is alone after calls in another dtype with the same shapes.",
    formula=r"f(x_{16}), f(x_{32}), f(x_{16}):\ \text{each} = f^*",
    governs=lambda operation: bool(operation.floats),
)
