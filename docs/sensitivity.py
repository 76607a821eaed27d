"""Generator of the page on smallest convicted errors: ``python docs/sensitivity.py pytorch``, some minutes."""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnspec.conformance import load
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.cases import Case, cases
from attnspec.conformance.judging.checks import Check, Function
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.attention import ensemble_scale, unbiased_gradient
from attnspec.conformance.laws.pooling import ensemble_gain
from attnspec.conformance.laws.single_keys import no_lost_or_extra_keys
from attnspec.conformance.laws.spreads import ensemble_mean, rounding_spread
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS

HEAD = """# Smallest convicted errors

The smallest relative errors that `full` convicts in the backend `{}`: of the gain, of the scale of the scores, and of
the gain of a gradient. Each is the limit of a check plus the error that it estimated. The second number of a cell is
the largest over masked, causal, long and wide inputs; for gradients, over the arguments. Where a row has only –, errors
below a rounding to its dtype are not seen.
Made by `python docs/sensitivity.py {}`. How limits come about: [ensembles.md](ensembles.md).
"""
FILTERS = (ensemble_gain, ensemble_scale, unbiased_gradient)

SPREADS_HEAD = """
## Errors together

The root mean square and the mean of error/σ, with their limits in brackets, for few keys and for 133. The last two
columns are the smallest convicted error in the weight of a single key, as a fraction of the mean weight, the largest
over the tried keys: among 133 keys, of which 0 or 5 are masked, and among 2,049.
"""
SPREADS = (rounding_spread, ensemble_mean, no_lost_or_extra_keys)

Estimates = Mapping[str, tuple[float, float]]
"""For each input or gradient, the estimate of the error and the limit above which it convicts."""


def judged(contract: Contract, function: Function) -> Iterator[tuple[Check, Case]]:
    """Yield the check that runs a function, with every case that it concerns."""
    (check,) = (c for some in CHECKS.values() for c in some if c.function is function)
    for case in cases(contract, laws=(check.law.id,)):
        if check.concerns(OPERATIONS[case.operation]):
            yield check, case


def estimates(backend: Any, contract: Contract, check: Check, case: Case) -> Estimates:
    """Return the estimates of a check by input or gradient; empty if nothing was judged."""
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    attempt(subject, check, subject.arguments(example), 0)
    return subject.estimates


def smallest(backend: Any, contract: Contract, check: Check, case: Case) -> list[float]:
    """Return the smallest error that a check convicts, for each input or gradient."""
    return [abs(estimate) + limit for estimate, limit in estimates(backend, contract, check, case).values()]


def page(name: str) -> str:
    """Return the whole page."""
    backend = load(name)
    contract = Contract.of(backend)
    cells: dict[tuple[str, str], dict[Function, list[float]]] = {}
    for function in FILTERS:
        for check, case in judged(contract, function):
            cells.setdefault((case.operation, case.dtype), {})[function] = smallest(backend, contract, check, case)
    # Operations without filters have rows, too: errors below a rounding are hidden there.
    for case in cases(contract, laws=("operation.oracle",)):
        if OPERATIONS[case.operation].float_result:
            cells.setdefault((case.operation, case.dtype), {})
    rows = ["| operation | dtype | gain | scale | gradient |", "|---|---|---|---|---|"]
    for operation, dtype in in_order(cells):
        errors = [cells[operation, dtype].get(function, []) for function in FILTERS]
        rows.append(f"| `{operation}` | {dtype} | {' | '.join(map(cell, errors))} |")
    return "\n".join([HEAD.format(name, name), *rows, SPREADS_HEAD, *spreads(backend, contract)]) + "\n"


def in_order(pairs: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort pairs of operation and dtype into the order of the specification."""
    return [(operation, dtype) for operation in OPERATIONS for dtype in DEFAULTS if (operation, dtype) in pairs]


def cell(errors: list[float]) -> str:
    """Return a cell with the first and the largest number."""
    return f"{errors[0]:.1e}, {max(errors):.1e}" if errors else "–"


def spreads(backend: Any, contract: Contract) -> list[str]:
    """Return the rows of the table of `SPREADS`."""
    by_case: dict[tuple[str, str], dict[Function, Estimates]] = {}
    for function in SPREADS:
        for check, case in judged(contract, function):
            by_case.setdefault((case.operation, case.dtype), {})[function] = estimates(backend, contract, check, case)
    rows = ["| operation | dtype | root mean square | mean | key of 133 | key of 2,049 |", "|---|---|---|---|---|---|"]
    for operation, dtype in in_order(by_case):
        of_function = [by_case[operation, dtype].get(function, {}) for function in SPREADS]
        cells = [", ".join(f"{x:.2f} ({limit:.2f})" for x, limit in some.values()) or "–" for some in of_function[:2]]
        keys = {key: abs(x) + limit for key, (x, limit) in of_function[2].items() if "zeros" not in key}
        among_2049 = [x for key, x in keys.items() if key.endswith(" of 2049")]
        among_133 = [x for key, x in keys.items() if not key.endswith(" of 2049")]
        cells += [f"{max(some):.1e}" if some else "–" for some in (among_133, among_2049)]
        rows.append(f"| `{operation}` | {dtype} | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    print(page(*sys.argv[1:]), end="")
