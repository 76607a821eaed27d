"""Candidates of a diagnosis that misread codes or scales of some quantised operands."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from attnspec.conformance.explaining.candidates import Candidate, computation_by, copy_of
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.mutants import MUTANTS


def misreading_candidates(subject: Subject, first: Probe) -> Iterator[Candidate]:
    """Yield the mutants that misread quantised operands, for each of the wrong probe's operands and several together.

    They are right in calls with other formats, since a backend reads each format by code of its own.
    """
    if first.cotangents is not None:
        return
    formats = _formats(first.arguments)
    groups = [group for count in range(1, len(formats) + 1) for group in combinations(formats, count)]
    for mutant in MUTANTS.values() if formats else ():
        for group in groups if mutant.operand_formats else ():
            where = "" if len(group) == len(formats) else f", in {' and '.join(group)}"
            sentence = f"The numbers are those of a known defect, “{mutant.name}”{where}: {mutant.statement}"
            passed = partial(_codes_of_group, formats, group)
            yield Candidate(mutant.name, sentence, computation_by(subject, mutant.backend, passed=passed))


def _codes_of_group(formats: dict[str, Any], group: Sequence[str], arguments: Arguments, path: str) -> Any:
    """Return what a candidate gets: codes and scales of its operands, numbers in place of the others."""
    if path in group and _formats(arguments) == formats:
        return arguments.quantized[path]
    return copy_of(arguments[path])


def _formats(arguments: Arguments) -> dict[str, Any]:
    """Return by path what tells formats apart: the dtype of codes, and the shapes of codes and scales."""
    return {path: (x.codes.dtype, x.codes.shape, x.scales.shape) for path, x in arguments.quantized.items()}
