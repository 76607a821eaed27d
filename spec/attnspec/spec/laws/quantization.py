"""Law of quantised operands: their values are codes times scales."""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws.storage import has_queries_and_keys


def attends(operation: Operation) -> bool:
    """True if queries attend to keys, in rows of their own or in pages."""
    return has_queries_and_keys(operation) or bool(operation.sizes_of(Axis.PAGE))


OPERANDS_ARE_EXACT = law(
    "quantization.operands-are-exact",
    "A call with codes and scales gives the formula's result for the exact products of codes and scales, in every "
    "format that the backend declares.",
    formula=r"f(c, s) = f^*(s_{\lfloor i / b \rfloor}\, c_i)",
    governs=attends,
)
