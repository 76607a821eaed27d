"""The start of a diagnosis: from a judged case, or from one result with known inputs."""

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from attnspec.conformance.explaining.diagnosing import Call, diagnosed
from attnspec.conformance.explaining.finding import Diagnosis, violated_by_numbers
from attnspec.conformance.explaining.probes import Probe, called, gathered, judged_by
from attnspec.conformance.explaining.recording import Watch, recorded
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.profiles import FORMULA, Profile
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.operation import OPERATIONS

FIRST = 16
"""Examples that are always tried; more follow until a number is wrong."""

FURTHER = 32
"""Further examples, which distinguish between candidates."""

SECONDS = 2.5
"""Processor seconds after which a diagnosis is given up; half are for calls of backend and oracle."""


@dataclass(frozen=True)
class Inquiry:
    """Probes of a case with possibly wrong numbers, and means to get more; ``start`` is a time."""

    subject: Subject
    probes: Sequence[Probe]
    further: Sequence[Arguments]
    call: Call
    start: float

    def diagnosis(self, without: Collection[str] = ()) -> Diagnosis | None:
        """Return the diagnosis, without the known defects of these names."""
        until = self.start + SECONDS
        return diagnosed(self.subject, self.probes, further=self.further, call=self.call, until=until, without=without)


def inquiry(
    backend: object,
    contract: Contract,
    case: Case,
    profile: Profile,
    results: Iterable[Result],
    *,
    seed: int = 0,
    device: str = "cpu",
    watch: Watch = lambda law, given: nullcontext(),
) -> Inquiry | None:
    """Call a backend on its judged examples; if all are right, repeat the violated laws' calls.

    None if no law of numbers failed, or if the backend crashed or hung. ``watch`` is entered with a law and an input
    around every call of the backend.
    """
    laws = violated_by_numbers(results)
    if not laws:
        return None
    start = time.process_time()
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device, profile)
    examples = corners(
        subject.operation,
        subject.limits,
        seed=stable_seed(seed, case.operation, case.dtype),
        most=subject.effort.corners + FURTHER,
        work=subject.effort.work,
    )
    tried, further = examples[: subject.effort.corners], examples[subject.effort.corners :]
    probes = _asked(subject, tried, watch, start + SECONDS / 2)
    if not any(probe.wrong for probe in probes):
        probes += recorded(subject, laws, tried, watch, start + SECONDS / 2)

    def call(arguments: Arguments) -> Results | None:
        with watch(FORMULA, f"of sizes {arguments.sizes}"):
            return called(subject, arguments)

    others = [subject.arguments(example) for example in further]
    return Inquiry(subject, probes, others, call, start)


def _asked(subject: Subject, examples: Sequence[Example], watch: Watch, until: float) -> list[Probe]:
    """Return probes of the first examples, and of further ones until one is wrong."""
    probes: list[Probe] = []
    for i, example in enumerate(examples):
        if time.process_time() > until or (i >= FIRST and any(probe.wrong for probe in probes)):
            break
        with watch(FORMULA, example):
            probes += gathered(subject, subject.arguments(example))
    return probes


def diagnosis_of_result(
    subject: Subject, arguments: Arguments, found: Results, *, without: Collection[str] = ()
) -> Diagnosis | None:
    """Return the diagnosis of one result; None also if other inputs could distinguish the matching defects."""
    probe = judged_by(subject, arguments, found)
    if probe is None:
        return None
    operation, effort = subject.operation, subject.effort
    further = corners(operation, subject.limits, seed=0, most=FURTHER, work=effort.work)
    return diagnosed(
        subject,
        [probe],
        further=[subject.arguments(example) for example in further],
        until=time.process_time() + SECONDS,
        without=without,
    )
