"""Make ``docs/diagnosis.md``: ``python docs/diagnosis.py`` diagnoses every mutant and many others, in half an hour."""

import json
import runpy
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from attnspec.conformance.diagnosis.entry import NUMBERS, diagnosis_of_case
from attnspec.conformance.diagnosis.finding import Diagnosis
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.rediscovered import REDISCOVERED
from attnspec.conformance.running.trials import Failure, Task, perform
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import mapped

ROOT = Path(__file__).parents[1]
OTHERS = runpy.run_path(str(ROOT / "tests" / "conformance" / "mistaken.py"))
MISTAKEN: Mapping[str, Any] = OTHERS["MISTAKEN"]
RIGHT: Mapping[str, Sequence[str]] = OTHERS["RIGHT"]
FACTORS = (2.0, 0.5, 0.99)


class Scaled:
    """A backend whose results and gradients are multiplied by a factor."""

    def __init__(self, backend: Any, operation: str, factor: float) -> None:
        self.name, self.limits = backend.name, backend.limits
        for name in ("semantics", "precision", "from_numpy", "to_numpy"):
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

        def times(tree: Any) -> Any:
            return mapped(
                tree, lambda _, x: (x * factor).astype(x.dtype) if np.asarray(x).dtype.kind not in "biu" else x
            )

        setattr(self, operation, lambda *args, **options: times(getattr(backend, operation)(*args, **options)))
        if callable(getattr(backend, "vjp", None)):
            self.vjp = lambda *args: times(backend.vjp(*args))


@dataclass(frozen=True)
class Outcome:
    """What became of one backend.

    ``alone`` are the diagnoses with its own entry left out, then with those named before left out too, until there is
    none. ``scaled`` are those with a factor on top.
    """

    name: str
    of_numbers: bool
    found: Diagnosis | None = None
    alone: list[Diagnosis] = field(default_factory=list)
    scaled: dict[str, Diagnosis | None] = field(default_factory=dict)


def of_mutant(name: str, factors: Collection[float]) -> Outcome:
    """Convict a mutant, and diagnose it."""
    mutant = MUTANTS[name]
    failures = [f for f in perform(Task(mutant, mutant.profile, 0)).failures if f.reason in NUMBERS]
    return _diagnosed(name, mutant, failures, factors, alone=True) if failures else Outcome(name, False)


def of_other(name: str) -> Outcome:
    """The same of a rediscovered defect, or of an implementation with a mistake."""
    if name in MISTAKEN:
        backend = MISTAKEN[name]
        contract = Contract.of(backend)
        (case,) = cases(contract, operations=(backend.operation,))
        results = judge(backend, contract, case, PROFILES["quick"], stop_at_first=True)
        failures = [
            Failure(r.operation, r.dtype, r.law, str(r.reason), "")
            for r in results
            if r.status is Status.FAILED and r.reason in NUMBERS
        ]
        return _diagnosed(name, backend, failures, FACTORS) if failures else Outcome(name, False)
    defect = REDISCOVERED[name]
    failures = [f for f in perform(Task(defect, defect.profile, 0)).failures if f.reason in NUMBERS]
    return _diagnosed(name, defect, failures, FACTORS) if failures else Outcome(name, False)


def _diagnosed(
    name: str, subject: Any, failures: Sequence[Failure], factors: Collection[float], *, alone: bool = False
) -> Outcome:
    operation, dtype = failures[0].operation, failures[0].dtype
    profile = PROFILES[subject.profile if isinstance(subject, Mutant) else "quick"]
    results = [Result(f.operation, f.law, f.dtype, Status.FAILED, f.reason) for f in failures if f.dtype == dtype]

    def diagnosis(factor: float | None = None, without: Collection[str] = ()) -> Diagnosis | None:
        backend = subject.backend() if isinstance(subject, Mutant) else subject
        contract = Contract.of(backend)
        if factor is not None:
            backend = Scaled(backend, operation, factor)
        (case,) = [c for c in cases(contract, operations=(operation,)) if c.dtype == dtype]
        return diagnosis_of_case(backend, contract, case, profile, results, without=without)

    chain: list[Diagnosis] = []
    left_out = {name}
    while alone and (found := diagnosis(without=left_out)) is not None:
        chain.append(found)
        if found.same and left_out.issuperset(found.same):
            break
        if not found.same or not set(found.same) <= set(MUTANTS):
            break
        left_out.update(found.same)
    floats = OPERATIONS[operation].float_result
    return Outcome(
        name, True, diagnosis(), chain, {f"{factor:g}": diagnosis(factor) for factor in factors} if floats else {}
    )


def measured(names: Sequence[str], workers: int) -> Iterable[Outcome]:
    """The outcomes of mutants, each with one of the factors in turn, and of all others with every factor."""
    own = [name for name in names if name in MUTANTS]
    others = [name for name in names if name not in MUTANTS]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        first = [pool.submit(of_mutant, name, FACTORS[i % 3 : i % 3 + 1]) for i, name in enumerate(own)]
        for task in [*first, *(pool.submit(of_other, name) for name in others)]:
            yield task.result()


def main() -> None:
    """Diagnose everything, keep what was found beside the page, and write the page."""
    names = sys.argv[1:] or [*MUTANTS, *REDISCOVERED, *MISTAKEN]
    kept = Path(__file__).with_suffix(".json")
    found = []
    for outcome in measured(names, 2):
        found.append(asdict(outcome))
        kept.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
