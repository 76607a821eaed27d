"""Make ``docs/sensitivity.md``: ``python docs/sensitivity.py pytorch > docs/sensitivity.md`` takes some minutes."""

import sys
from typing import Any

from attnspec.conformance import load
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, cases
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import data_dtype
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.laws.attention import ENSEMBLE_GRADIENT, ENSEMBLE_SCALE
from attnspec.spec.laws.pooling import ENSEMBLE_GAIN

HEAD = """# Smallest convicted errors

The smallest relative error of gain, of the scale of the scores, and of gain of a gradient that `full` convicts in the
backend `{}`: the limit of the filter and what it estimated there, added up. The second number of a cell is the
largest over masked, causal, long and wide inputs; of gradients it is that of the argument where most is needed.
Made by `python docs/sensitivity.py {}`. How limits come about: [precision.md](precision.md).
"""
LAWS = (ENSEMBLE_GAIN, ENSEMBLE_SCALE, ENSEMBLE_GRADIENT)


def smallest(backend: Any, contract: Contract, case: Case) -> list[float]:
    """What is convicted by a law, on every input or in every gradient in turn; nothing where nothing was judged."""
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, "cpu")
    (example,) = corners(subject.operation, subject.limits, seed=0, most=1, work=subject.effort.work)[:1]
    (law,) = case.laws
    attempt(subject, CHECKS[law], example.arguments(subject.operation, data_dtype(subject)), 0)
    return [abs(estimate) + limit for estimate, limit in subject.estimates.values()]


def page(name: str) -> str:
    """The whole page."""
    backend = load(name)
    contract = Contract.of(backend)
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for law in LAWS:
        for case in cases(contract, laws=(law.id,)):
            cells.setdefault((case.operation, case.dtype), {})[law.id] = smallest(backend, contract, case)
    rows = ["| operation | dtype | gain | scale | gradient |", "|---|---|---|---|---|"]
    order = [(operation, dtype) for operation in OPERATIONS for dtype in DEFAULTS if (operation, dtype) in cells]
    for operation, dtype in order:
        found = [cells[operation, dtype].get(law.id, []) for law in LAWS]
        rows.append(f"| `{operation}` | {dtype} | {' | '.join(map(cell, found))} |")
    return "\n".join([HEAD.format(name, name), *rows]) + "\n"


def cell(found: list[float]) -> str:
    """The first and the largest number."""
    return f"{found[0]:.1e}, {max(found):.1e}" if found else "–"


if __name__ == "__main__":
    print(page(*sys.argv[1:]), end="")
