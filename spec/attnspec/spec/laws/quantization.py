"""Law of quantised operands: their values are codes times scales."""

from attnspec.spec.contract.law import law
from attnspec.spec.laws.storage import has_queries_and_keys

OPERANDS_ARE_EXACT = law(
    "quantization.operands-are-exact",
    "A call with codes and scales gives the formula's result for the exact products of codes and scales, in every "
    "format that the backend declares.",
    formula=r"f(c, s) = f^*(s_{\lfloor i / b \rfloor}\, c_i)",
    governs=has_queries_and_keys,
)
