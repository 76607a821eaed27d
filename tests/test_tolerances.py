"""Our own tests have no tolerances: numbers are within budgets (``tests/budgets.py``) or equal bit for bit."""

import re
from collections import Counter

from .modules import ROOT

TOLERANCE = re.compile(r"\b(?:assert_close|assert_allclose|allclose|isclose|approx)\(|\b[ra]tol\b")
REMAINING = {
    "tests/backends/test_additive_calls.py": 2,
    "tests/backends/test_cuda_groups.py": 3,
    "tests/backends/test_direct_kernels.py": 1,
    "tests/backends/test_few.py": 1,
    "tests/backends/test_grouped_kernels.py": 4,
    "tests/backends/test_jax_native.py": 5,
    "tests/backends/test_onnx_native.py": 3,
    "tests/backends/test_paired_formula.py": 5,
    "tests/backends/test_paired_groups.py": 1,
    "tests/backends/test_planned_parts.py": 1,
    "tests/backends/test_plans.py": 3,
    "tests/benchmarks/test_benchmarks.py": 1,
    "tests/benchmarks/test_results.py": 6,
    "tests/conformance/test_escapes.py": 1,
    "tests/conformance/test_judged_gradients.py": 3,
    "tests/conformance/test_lazy_budgets.py": 1,
    "tests/conformance/test_mutants.py": 5,
    "tests/conformance/test_sensitivity.py": 1,
    "tests/reference/test_budget.py": 5,
    "tests/reference/test_edges.py": 8,
    "tests/reference/test_torch_recurrent.py": 1,
    "tests/reference/test_worked_examples.py": 4,
    "tests/spec/test_errata.py": 1,
}
"""Lines with a tolerance that are not yet compared by budgets; numbers here only go down.

Numbers that no operation gives stay: exponents of growth, shares of time and costs (``benchmarks``, ``test_plans``),
estimates from samples, finite differences and wrong results (``conformance``), and lines whose tolerance counts
roundings (``test_edges``, ``test_worked_examples``, ``test_additive_calls``, functions in ``test_grouped_kernels``).
``test_jax_native`` and ``test_cuda_groups`` wait for machines with JAX and CUDA. The others compare results of
operations, and should go.
"""


def found() -> Counter[str]:
    """Lines with a tolerance, by file."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    lines = [(x.relative_to(ROOT).as_posix(), line) for x in files for line in x.read_text("utf-8").splitlines()]
    return Counter(name for name, line in lines if TOLERANCE.search(line) and not name.endswith("test_tolerances.py"))


def test_no_test_gains_a_tolerance_and_those_that_lose_one_say_so() -> None:
    assert found() == REMAINING
