"""Start of a diagnosis, from a judged case, or from one result with its inputs."""

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from attnspec.conformance.explaining.diagnosing import CallBackend, diagnosis_of_probes
from attnspec.conformance.explaining.explanations import Diagnosis, violated_by_numbers
from attnspec.conformance.explaining.law_calls import Watch, calls_of_violated_laws
from attnspec.conformance.explaining.probes import Probe, probe_in_domain, probes_of_call, results_or_none
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.attempt import stable_seed
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import FORMULA, Profile
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.spec.contract.operation import OPERATIONS

ALWAYS_TRIED = 16
"""Number of examples that are always tried; more are tried only until a number is wrong."""

FURTHER_EXAMPLES = 32
"""Number of further examples, which distinguish between candidates."""

SECONDS = 2.5
"""Processor seconds after which a diagnosis is given up; half of them are for the first calls of the backend."""


@dataclass(frozen=True)
class Inquiry:
    """A diagnosis to be made: probes of a case, and arguments and a function to make more.

    ``start`` is the ``time.process_time`` from which the diagnosis' time counts.
    """

    subject: Subject
    probes: Sequence[Probe]
    further: Sequence[Arguments]
    call: CallBackend
    start: float

    def diagnosis(self, without: Collection[str] = ()) -> Diagnosis | None:
        """Return the diagnosis, without the known defects of these names."""
        deadline = self.start + SECONDS
        return diagnosis_of_probes(
            self.subject, self.probes, further=self.further, call=self.call, deadline=deadline, without=without
        )


def inquiry(
    backend: object,
    contract: Contract,
    case: Case,
    profile: Profile,
    results: Iterable[Result],
    *,
    seed: int = 0,
    device: str = "cpu",
    watch: Watch = lambda law, law_input: nullcontext(),
) -> Inquiry | None:
    """Call a backend again on examples or, if these are right, as violated laws do.

    Return None if no law failed by wrong numbers, or if the backend crashed or hung. ``watch`` is a context around
    every call of the backend, entered with the law and the input.
    """
    laws = violated_by_numbers(results)
    if not laws:
        return None
    start = time.process_time()
    subject = Subject(backend, contract, OPERATIONS[case.operation], case.dtype, device, profile)
    count, case_seed = subject.effort.corners, stable_seed(seed, case.operation, case.dtype)
    most, work = count + FURTHER_EXAMPLES, subject.effort.work
    examples = corners(subject.operation, subject.limits, seed=case_seed, most=most, work=work)
    probes = _probes_of_examples(subject, examples[:count], watch, start + SECONDS / 2)
    if not any(probe.wrong for probe in probes):
        probes += calls_of_violated_laws(subject, laws, examples[:count], watch, start + SECONDS / 2)

    def call(arguments: Arguments) -> Results | None:
        with watch(FORMULA, f"of sizes {arguments.sizes}"):
            return results_or_none(subject, arguments)

    return Inquiry(subject, probes, [subject.arguments(example) for example in examples[count:]], call, start)


def _probes_of_examples(subject: Subject, examples: Sequence[Example], watch: Watch, deadline: float) -> list[Probe]:
    """Return probes of ``ALWAYS_TRIED`` examples, and of more until a probe is wrong."""
    probes: list[Probe] = []
    for i, example in enumerate(examples):
        if time.process_time() > deadline or (i >= ALWAYS_TRIED and any(probe.wrong for probe in probes)):
            break
        with watch(FORMULA, example):
            probes += probes_of_call(subject, subject.arguments(example))
    return probes


def diagnosis_of_result(
    subject: Subject, arguments: Arguments, results: Results, *, without: Collection[str] = ()
) -> Diagnosis | None:
    """Return the diagnosis of one result; None also if several defects fit that differ on other inputs."""
    probe = probe_in_domain(subject, arguments, results)
    if probe is None:
        return None
    work = subject.effort.work
    examples = corners(subject.operation, subject.limits, seed=0, most=FURTHER_EXAMPLES, work=work)
    further, deadline = [subject.arguments(example) for example in examples], time.process_time() + SECONDS
    return diagnosis_of_probes(subject, [probe], further=further, deadline=deadline, without=without)
