"""Candidates of a diagnosis that misread codes or scales of some quantised operands."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate, copy_of
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.reference import choosing
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import map_tree


def misreading_candidates(subject: Subject, first: Probe) -> Iterator[Candidate]:
    """Yield the mutants that misread quantised operands, for one operand and for several.

    They are right in calls with other formats, since a backend reads each format by code of its own.
    """
    formats = _formats(first.arguments)
    groups = [group for count in range(1, len(formats) + 1) for group in combinations(formats, count)]
    for mutant in MUTANTS.values() if formats else ():
        for group in groups if mutant.operand_formats else ():
            sentence = f"The numbers are those of a known defect, “{mutant.name}”: {mutant.statement}"
            compute = _misreading(subject, mutant, group, formats)
            yield Candidate(mutant.name, sentence, compute, group)


def _misreading(
    subject: Subject, mutant: Mutant, group: Sequence[str], formats: dict[str, Any]
) -> Callable[[Probe, Arguments], Results]:
    """Return a function that computes probes by a mutant of these operands."""
    operation = subject.operation

    def compute(probe: Probe, arguments: Arguments) -> Results:
        exact = probe.arguments
        operands = exact.quantized if _formats(exact) == formats else {}

        def passed(path: str) -> Any:
            return operands[path] if path in group and path in operands else copy_of(arguments[path])

        backend = mutant.backend()
        prepare = backend.prepare

        def prepare_changed(operation: Operation, inputs: Any) -> dict[str, Any]:
            """Prepare the operands, and change them as ``arguments`` differ from the probe's."""

            def changed(path: str, x: Any) -> Any:
                if path not in group or path not in operands:
                    return x
                old, new = exact.array(path), arguments.array(path)
                return x * np.divide(new, old, out=np.ones(old.shape), where=old != 0).astype(x.dtype)

            return dict(map_tree(prepare(operation, inputs), changed))

        if arguments is not exact:
            backend.prepare = prepare_changed  # type: ignore[method-assign,assignment]
        with choosing(**subject.choices):
            result = getattr(backend, operation.name)(**arguments.passed_as(passed))
        return {leaf.path: np.asarray(x) for leaf, x in results(operation, result)}

    return compute


def _formats(arguments: Arguments) -> dict[str, Any]:
    """Return by path what tells formats apart: the dtype of codes, and the shapes of codes and scales."""
    return {path: (x.codes.dtype, x.codes.shape, x.scales.shape) for path, x in arguments.quantized.items()}
