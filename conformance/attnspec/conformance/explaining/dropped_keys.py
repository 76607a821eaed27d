"""Candidates of a diagnosis that ignore the first or the last keys."""

from collections.abc import Callable, Iterator

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable, with_explicit_mask
from attnspec.conformance.judging.subject import Results, Subject

TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of keys in a tile."""


def dropped_keys_candidates(subject: Subject, first: Probe) -> Iterator[Candidate]:
    """Yield candidates that ignore a tile of keys, or those beyond the last whole tile."""
    operation, m = subject.operation, first.arguments.keys_count or 0
    if operation.mask is None or operation.attends_to_itself:
        return
    for count in sorted({*TILES, *(m % tile for tile in TILES)} & {*range(1, m)}):
        keys = "key is" if count == 1 else f"{count} keys are"
        for end in ("last", "first"):
            yield Candidate(f"{end} {count} keys ignored", f"The {end} {keys} ignored.", _without(subject, end, count))


def _without(subject: Subject, end: str, count: int) -> Callable[[Probe, Arguments], Results | None]:
    """Return a function that computes results without these keys, unless there are no others."""

    def compute(probe: Probe, arguments: Arguments) -> Results | None:
        if probe.cotangents is not None:
            return None
        m = arguments.keys_count or 0
        kept: Numbers = np.arange(m) < m - count if end == "last" else np.arange(m) >= count
        if m <= count:
            return subject.oracle_values(arguments)
        allowed = attendable(arguments, semantics=subject.semantics)
        explicit = with_explicit_mask(arguments, semantics=subject.semantics)
        return subject.oracle_values(explicit.with_mask(allowed & kept))

    return compute
