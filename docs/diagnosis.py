"""Generator of ``docs/diagnosis.md``: ``python docs/diagnosis.py`` diagnoses all wrong backends in three hours.

``docs/diagnosis.json`` keeps finished outcomes; the command continues from it, and starts anew without it.
"""

import json
import random
import runpy
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import typer

from attnspec.conformance.explaining.explanations import Diagnosis
from attnspec.conformance.explaining.inquiry import Inquiry, inquiry
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import FORMULA, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import map_tree

ROOT = Path(__file__).parents[1]
PAGE, KEPT = (Path(__file__).with_suffix(suffix) for suffix in (".md", ".json"))
OTHERS = runpy.run_path(str(ROOT / "tests" / "conformance" / "mistaken.py"))
MISTAKEN: Mapping[str, Any] = OTHERS["MISTAKEN"]
RIGHT: Mapping[str, Sequence[str]] = OTHERS["RIGHT_DIAGNOSES"]
FACTORS = ("2", "0.5", "0.99")

DEFINED = (
    "1/√d of six digits",
    "Gaussian scores without ½",
    "GRU sequences reset after the product",
    "causal aligned at the bottom right",
    "causal aligned top left, declared bottom right",
    "dot products accumulated in float16",
    "float64 computed in float32",
    "fully masked rows are NaN",
    "fully masked rows are uniform",
    "gradient of the state halved",
    "gradient of the values too small by 10⁻⁵",
    "kernel of twice the width",
    "means without values are NaN",
    "weights rounded to bfloat16",
    "reset gate after the product",
    "reset gate before the product, declared after",
    "attention scores 0.1 % too large",
    "scores rounded to bfloat16",
    "scores stored in float16, not declared",
    "tanh rounded to 11 bits, undeclared",
)
"""Mutants that are, by definition, a choice, a factor or a precision class. A diagnosis that names it is right."""

Outcome = Mapping[str, Any]
"""Outcome of diagnosing one backend.

``seen``: True if a number was wrong on the inputs of the diagnosis. ``found``: the diagnosis. ``alone``: diagnoses
without the backend's own entry; each next one also leaves out the mutants named before, until none is named.
``scaled``: for each factor, the diagnosis of the backend with results times the factor.
"""


class Scaled:
    """Wrapper of a backend that multiplies its results and gradients by a factor."""

    def __init__(self, backend: Any, operation: str, factor: float) -> None:
        for name in ("name", "limits", "semantics", "precision", "from_numpy", "to_numpy"):
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

        def times(_: str, x: Any) -> Any:
            return x if np.asarray(x).dtype.kind in "biu" else (x * factor).astype(x.dtype)

        setattr(
            self, operation, lambda *args, **options: map_tree(getattr(backend, operation)(*args, **options), times)
        )
        if callable(getattr(backend, "vjp", None)):
            self.vjp = lambda *args: map_tree(backend.vjp(*args), times)


def start_inquiry(name: str, factor: str = "") -> Inquiry:
    """Start the inquiry into a mutant, a rediscovered defect, or a mistaken implementation (``mistaken.py``)."""
    entry: Any = MUTANTS.get(name) or REDISCOVERED.get(name)
    backend = MISTAKEN[name] if entry is None else entry.backend()
    operation, dtype, laws = (
        (backend.operation, backend.dtype, (FORMULA,))
        if entry is None
        else (entry.operations[0], entry.dtype, broken_laws(name))
    )
    contract = Contract.of(backend)
    candidates = cases(contract, operations=(operation,))
    case = next((c for c in candidates if c.dtype == dtype), candidates[0])
    results = [Result(operation, law, case.dtype, Status.FAILED, Reason.VALUE) for law in laws]
    if factor:
        backend = Scaled(backend, operation, float(factor))
    profile = PROFILES["quick" if entry is None else entry.profile]
    started = inquiry(backend, contract, case, profile, results)
    if started is None:
        raise ValueError(f"{name}: expected a violated law that compares numbers; got {laws}")
    return started


def broken_laws(name: str) -> tuple[str, ...]:
    """Return the laws that a mutant or defect breaks; by default the formula's law."""
    return (MUTANTS[name] if name in MUTANTS else REDISCOVERED[name]).breaks or (FORMULA,)


def outcome(name: str) -> dict[str, Any]:
    """Diagnose one backend."""
    started = start_inquiry(name)
    diagnosis, chain_without, left_out = started.diagnosis(), list[Diagnosis](), {name}
    while name in MUTANTS:
        alone = replace(started, start=time.process_time()).diagnosis(without=left_out)
        chain_without += [] if alone is None else [alone]
        if alone is None or not set(alone.same) & (set(MUTANTS) - left_out):
            break
        left_out.update(alone.same)
    has_factors = name not in MUTANTS and OPERATIONS[started.subject.operation.name].float_result
    scaled = {factor: start_inquiry(name, factor).diagnosis() for factor in FACTORS} if has_factors else {}
    return {
        "seen": any(probe.wrong for probe in started.probes),
        "found": _json(diagnosis),
        "alone": [x.as_json() for x in chain_without],
        "scaled": {factor: _json(x) for factor, x in scaled.items()},
    }


def _json(diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    return None if diagnosis is None else diagnosis.as_json()


# The page -------------------------------------------------------------------------------------------------------------

HEAD = """# Diagnosis

Diagnoses by `attnspec check` of backends whose defect is known. A diagnosis names a known defect only if its numbers
equal those of the backend, within the budgets, on every input that was compared, also on inputs on which the backend is
right: [how](verdicts.md#diagnosis).

Each mutant is tried on its first operation, in the profile that kills it at seed 0, with its assigned laws as the
violated laws. Made by `python docs/diagnosis.py`; the outcomes are in [diagnosis.json](diagnosis.json).
"""

ALONE = """
## Without its own entry

Each mutant again, with its own entry left out of the known defects. Some mutants are one defect under several names,
since each chapter has its own: a twin, with the same numbers on all inputs, is then named instead. Without the twins,
few mutants get a name: a choice, a factor or a precision class with the same numbers on all inputs. Most of them are
that by definition.
"""

OTHER = """
## Written without the mutants

Defects of libraries as they were reported (`nox -s rediscovery` lists them), and implementations with a mistake of
their own (`tests/conformance/mistaken.py`, which lists the right diagnoses). If results are also multiplied by a
factor, the diagnosis must be another one, or none.
"""


def page(outcomes: Mapping[str, Outcome]) -> str:
    """Return the whole page."""
    own = {name: x for name, x in outcomes.items() if name in MUTANTS}
    others = {name: x for name, x in outcomes.items() if name not in MUTANTS}
    return "\n".join([HEAD, *of_mutants(own), ALONE, *of_alone(own), OTHER, *of_others(others)]) + "\n"


def of_mutants(own: Mapping[str, Outcome]) -> list[str]:
    """Return lines: the share of mutants named, those named otherwise, and those missed."""
    wrong = {name: x for name, x in own.items() if x["seen"]}
    named = {name: x for name, x in own.items() if x["found"]}
    otherwise = {name: x for name, x in named.items() if name not in x["found"]["same"]}
    missed = [name for name, x in wrong.items() if not x["found"]]
    sample = "" if len(own) == len(MUTANTS) else f", a random sample of {len(MUTANTS)}"
    return [
        f"Of {len(own)} mutants{sample}, {len(wrong)} gave wrong numbers on the compared inputs. "
        f"{len(named)} are named, {share(len(named), len(wrong))} of these and {share(len(named), len(own))} of all: "
        f"{len(named) - len(otherwise)} by their own entry or one with the same numbers on all inputs, the others as:",
        "",
        *table("mutant", "named otherwise"),
        *(row(name, x["found"]["sentence"]) for name, x in sorted(otherwise.items())),
        "",
        f"Not named although wrong numbers were seen: {', '.join(sorted(missed)) or 'none'}.",
    ]


def of_alone(own: Mapping[str, Outcome]) -> list[str]:
    """Return lines: the diagnoses of mutants whose own entry is left out."""
    alone = {name: x["alone"] for name, x in own.items() if x["alone"]}
    beyond = {name: chain for name, chain in alone.items() if not names_a_mutant(chain[-1])}
    other = [name for name in beyond if name not in DEFINED]
    return [
        f"{len(alone)} of {len(own)} get a name, {share(len(alone), len(own))}; "
        f"without their twins {len(beyond)}, {share(len(beyond), len(own))}: {len(beyond) - len(other)} are by "
        f"definition what the diagnosis says, {len(other)}, {share(len(other), len(own))}, are something else: "
        f"{', '.join(sorted(other)) or 'none'}.",
        "",
        *table("mutant", "named in its place", "without these"),
        *(
            row(name, chain_text(chain), chain_text([chain[-1]]) if name in beyond else "none")
            for name, chain in sorted(alone.items())
        ),
    ]


def names_a_mutant(diagnosis: Mapping[str, Any]) -> bool:
    """Return whether a diagnosis names a mutant."""
    return bool(set(diagnosis["same"]) & set(MUTANTS))


def chain_text(chain: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a chain of diagnoses: names of mutants, or sentences."""
    return "; ".join(", ".join(x["same"]) if names_a_mutant(x) else x["sentence"] for x in chain)


def is_right_diagnosis(name: str, diagnosis: Mapping[str, Any]) -> bool:
    """Return whether `RIGHT` lists a diagnosis for an implementation."""
    return any(x in diagnosis["same"] or diagnosis["sentence"].startswith(x) for x in RIGHT.get(name, ()))


def of_others(others: Mapping[str, Outcome]) -> list[str]:
    """Return lines: the share of right diagnoses of other backends, and their table."""
    named = {name: x for name, x in others.items() if x["found"]}
    good = [name for name, x in named.items() if is_right_diagnosis(name, x["found"])]
    scaled = [(x["found"], y) for x in others.values() for y in x["scaled"].values()]
    same = sum(bool(x and y and x["sentence"] == y["sentence"]) for x, y in scaled)
    return [
        f"Of {len(others)}, {len(good)} are named rightly, {share(len(good), len(others))}, and "
        f"{len(named) - len(good)} wrongly; of {len(scaled)} with a factor on top, {same} have the same diagnosis.",
        "",
        *table("implementation", "diagnosis", "right", *(f"times {factor}" for factor in FACTORS)),
        *(
            row(
                name,
                x["found"]["sentence"] if x["found"] else "none",
                "" if not x["found"] else "yes" if name in good else "no",
                *(y["sentence"] if (y := x["scaled"].get(factor)) else "none" for factor in FACTORS),
            )
            for name, x in sorted(others.items())
        ),
    ]


def share(part: int, whole: int) -> str:
    """Return a share in per cent, as text."""
    return f"{part / max(whole, 1):.1%}".replace("%", " %")


def table(*titles: str) -> list[str]:
    """Return the header lines of a Markdown table."""
    return [row(*titles), "|" + "---|" * len(titles)]


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# The command ----------------------------------------------------------------------------------------------------------


def main(workers: int = 2, minutes: float = 60.0, write: bool = True) -> None:
    """Diagnose the remaining backends until ``minutes`` have passed, and write the page."""
    outcomes: dict[str, Outcome] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    others, mutants = [*REDISCOVERED, *MISTAKEN], [*MUTANTS]
    # Shuffled, so that the mutants of an interrupted run are a random sample.
    random.Random(0).shuffle(mutants)
    end = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        tasks = {pool.submit(outcome, name): name for name in [*others, *mutants] if name not in outcomes}
        for task in as_completed(tasks):
            outcomes[tasks[task]] = task.result()
            KEPT.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            if time.monotonic() > end:
                pool.shutdown(cancel_futures=True)
                break
    if write:
        PAGE.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
