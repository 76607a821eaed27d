"""One explanation of the violations of a case: what only has to be declared, and the known defect behind the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnspec.conformance.explaining.finding import Diagnosis, violated_by_numbers
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.explaining.undeclared import undeclared, unexplained
from attnspec.conformance.explaining.watching import Watch, unwatched
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, Mark, judge
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import Profile
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.subject import Subject
from attnspec.spec.contract.operation import OPERATIONS


@dataclass(frozen=True)
class Explanation:
    """Explanation of the violations of a case.

    ``undeclared`` is what only has to be declared, as plain JSON, and ``diagnosis`` the known defect behind the rest.
    ``note`` says what kept either from being found: an error of attnspec, or the end of the backend's process.
    """

    undeclared: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The explanation as plain JSON, without the note, which the verdicts have."""
        diagnosis = None if self.diagnosis is None else self.diagnosis.as_json()
        return {"undeclared": dict(self.undeclared), "diagnosis": diagnosis}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Explanation":
        """The explanation that plain JSON describes."""
        diagnosis = None if data["diagnosis"] is None else Diagnosis.from_json(data["diagnosis"])
        return cls(data["undeclared"], diagnosis)


def explained(
    backend: Any,
    contract: Contract,
    case: Case,
    profile: Profile,
    failed: Sequence[Result],
    *,
    seed: int = 0,
    device: str = "cpu",
    mark: Mark = lambda law, given: None,
    watch: Watch = unwatched,
    contain: Containment = contained,
    declarable: bool = True,
    diagnosable: bool = True,
) -> Explanation:
    """Explain the violations of a case: first by declarations under which they vanish, then by a known defect.

    ``mark`` is called with a law and its input before each check, and ``watch`` is entered with them around other calls
    of the backend. ``contain`` catches the errors of a step. Without ``declarable`` no declaration is looked for,
    without ``diagnosable`` no defect.
    """

    def to_declare() -> Mapping[str, Any]:
        subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device)
        judging = partial(judge, backend, profile=profile, seed=seed, device=device, mark=mark, stop_at_first=True)
        with watch(failed[0].law, "looking for what has to be declared"):
            return undeclared(judging, contract, case, failed, lambda: refusals(subject, mark)).as_json()

    def diagnosis() -> Diagnosis | None:
        chosen, left = unexplained(contract, case, failed, declared)
        if not violated_by_numbers(left):
            return None
        # It loads all mutants, which no run needs that finds nothing wrong.
        from attnspec.conformance.explaining.inquiry import inquiry

        begun = inquiry(backend, chosen, case, profile, left, seed=seed, device=device, watch=watch)
        return None if begun is None else begun.diagnosis()

    declared: Mapping[str, Any] = {}
    found, declaring, diagnosing = None, "", ""
    if declarable:
        declared, declaring = contain(f"looking for what {case.id} has to declare", to_declare, declared)
    if diagnosable:
        found, diagnosing = contain(f"diagnosing {case.id}", diagnosis, None)
    return Explanation(declared, found, joined(declaring, diagnosing))
