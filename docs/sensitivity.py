"""Generator of the page on smallest convicted errors: ``python docs/sensitivity.py pytorch``, some minutes."""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnspec.conformance import load
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.checks import Check, Function
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, cases
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.attention import ensemble_gradient, ensemble_scale
from attnspec.conformance.laws.pooling import ensemble_gain
from attnspec.conformance.laws.single_keys import ensemble_keys
from attnspec.conformance.laws.spreads import ensemble_mean, ensemble_spread
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS

HEAD = """# Smallest convicted errors

The smallest relative error of gain, of the scale of the scores, and of gain of a gradient that `full` convicts in the
backend `{}`: the limit of the filter and what it estimated there, added up. The second number of a cell is the
largest over masked, causal, long and wide inputs; of gradients it is that of the argument where most is needed.
Made by `python docs/sensitivity.py {}`. How limits come about: [ensembles.md](ensembles.md).
"""
FILTERS = (ensemble_gain, ensemble_scale, ensemble_gradient)

SPREADS_HEAD = """
## Errors together

The root mean square and the mean of error/σ, as they were found, and in brackets their limits: with few keys, and with
133. The last two columns have the error in the weight of a single key that is convicted, as a fraction of the mean
weight, the largest over the keys that are tried: among 133 keys, of which none or 5 are masked, and among 2,049.
"""
SPREADS = (ensemble_spread, ensemble_mean, ensemble_keys)

Estimates = Mapping[str, tuple[float, float]]
"""Estimate and its limit, by the name of the input or gradient."""


def judged(contract: Contract, function: Function) -> Iterator[tuple[Check, Case]]:
    """Yield the check of a function, with every case that it concerns."""
    (check,) = (c for some in CHECKS.values() for c in some if c.function is function)
    for case in cases(contract, laws=(check.law.id,)):
        if check.concerns(OPERATIONS[case.operation]):
            yield check, case


def estimates(backend: Any, contract: Contract, check: Check, case: Case) -> Estimates:
    """Estimates of a check by input or gradient; empty where nothing was judged."""
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    attempt(subject, check, subject.arguments(example), 0)
    return subject.estimates


def smallest(backend: Any, contract: Contract, check: Check, case: Case) -> list[float]:
    """Smallest errors that a check convicts, for each input or gradient; empty where nothing was judged."""
    return [abs(estimate) + limit for estimate, limit in estimates(backend, contract, check, case).values()]


def page(name: str) -> str:
    """Return the whole page."""
    backend = load(name)
    contract = Contract.of(backend)
    cells: dict[tuple[str, str], dict[Function, list[float]]] = {}
    for function in FILTERS:
        for check, case in judged(contract, function):
            cells.setdefault((case.operation, case.dtype), {})[function] = smallest(backend, contract, check, case)
    rows = ["| operation | dtype | gain | scale | gradient |", "|---|---|---|---|---|"]
    for operation, dtype in in_order(cells):
        found = [cells[operation, dtype].get(function, []) for function in FILTERS]
        rows.append(f"| `{operation}` | {dtype} | {' | '.join(map(cell, found))} |")
    return "\n".join([HEAD.format(name, name), *rows, SPREADS_HEAD, *spreads(backend, contract)]) + "\n"


def in_order(found: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort pairs of operation and dtype into the order of the specification."""
    return [(operation, dtype) for operation in OPERATIONS for dtype in DEFAULTS if (operation, dtype) in found]


def cell(found: list[float]) -> str:
    """Cell with the first and the largest number."""
    return f"{found[0]:.1e}, {max(found):.1e}" if found else "–"


def spreads(backend: Any, contract: Contract) -> list[str]:
    """Rows of the second table."""
    found: dict[tuple[str, str], dict[Function, Estimates]] = {}
    for function in SPREADS:
        for check, case in judged(contract, function):
            found.setdefault((case.operation, case.dtype), {})[function] = estimates(backend, contract, check, case)
    rows = ["| operation | dtype | root mean square | mean | key of 133 | key of 2,049 |", "|---|---|---|---|---|---|"]
    for operation, dtype in in_order(found):
        of_law = [found[operation, dtype].get(function, {}) for function in SPREADS]
        shown = [", ".join(f"{x:.2f} ({limit:.2f})" for x, limit in some.values()) or "–" for some in of_law[:2]]
        keys = {what: abs(x) + limit for what, (x, limit) in of_law[2].items() if "zeros" not in what}
        many = [x for what, x in keys.items() if what.endswith(" of 2049")]
        few = [x for what, x in keys.items() if not what.endswith(" of 2049")]
        shown += [f"{max(some):.1e}" if some else "–" for some in (few, many)]
        rows.append(f"| `{operation}` | {dtype} | {' | '.join(shown)} |")
    return rows


if __name__ == "__main__":
    print(page(*sys.argv[1:]), end="")
