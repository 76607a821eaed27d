"""Judging a case whose backend has its own process: a crash or hang fails only one law."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from attnspec.conformance.explaining.finding import Explanation
from attnspec.conformance.judging.engine import Violated
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import HostEnded, PipelineFailed
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.incidents import STOP_AFTER, Recorder
from attnspec.conformance.running.in_process import InProcess
from attnspec.conformance.running.post_mortem import examined
from attnspec.conformance.running.probe import IMPORT_SECONDS


def ignore_signal(number: int, frame: object) -> None:
    """Ignore a signal.

    With ``SIG_IGN`` instead, calls of a backend would take a ``KeyboardInterrupt`` for the backend's own.
    """


@contextmanager
def heard() -> Iterator[None]:
    """Let the end of a backend's process interrupt this one, even if SIGINT is ignored."""
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, ignore_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


T = TypeVar("T")


@dataclass(frozen=True)
class Isolated(InProcess):
    """A case whose backend has its own process; crashes and hangs are recorded in the judge's memory."""

    backend: RemoteBackend

    def judged(self, extent: Extent) -> list[Result]:
        """Return the verdicts of the case, including those of laws that ended the backend's process.

        When the process ends, the case is judged again without the law that ended it. After a first hang, and where a
        call was wrongly assumed to succeed, that law is included. Violations seen before are kept.
        """
        violated: Violated = {}
        while True:
            try:
                with heard():
                    return self._judged(extent, violated)
            except PipelineFailed:
                extent.clear()
            except HostEnded as end:
                self._blame(end)

    def _blame(self, end: HostEnded) -> None:
        """Record the check that ended the backend's process, and start a new process."""
        incidents, case = self.backend.incidents, self.case
        hung = end.reason is Reason.HUNG
        again = hung and incidents.tried_again(case.operation, case.dtype)
        if not again and incidents.record(case.operation, case.dtype, hung=hung, left=end.left) is None:
            raise BackendError(f"backend {self.contract.origin!r}: {end.words}, and no law can be blamed") from end
        self._restart()

    def _restart(self) -> None:
        self.backend.restart(IMPORT_SECONDS)

    @contextmanager
    def marking(self) -> Iterator[Recorder]:
        """Yield a recorder, called before every check, that stores the check and starts its timer."""
        remote = self.backend
        # A restarted backend has another host.
        yield Recorder(remote.incidents, self.case.operation, self.case.dtype, lambda: remote.host.begin())

    def containment(self) -> Containment:
        """Return a wrapper that survives the end of the backend's process and restarts it.

        After the first end it skips further steps: a process that hangs takes long to end.
        """
        ends: list[str] = []

        def contain(stage: str, step: Callable[[], T], otherwise: T, /) -> tuple[T, str]:
            if ends:
                return otherwise, ends[0]
            while True:
                try:
                    with heard():
                        return contained(stage, step, otherwise)
                except PipelineFailed:
                    continue
                except HostEnded as end:
                    _, restarting = contained("starting the backend anew", self._restart, None)
                    ends.append(joined(f"the backend {end.words} while attnspec was {stage}", restarting))
                    return otherwise, ends[0]

        return contain

    def _judged(self, extent: Extent, violated: Violated) -> list[Result]:
        case, contract, incidents = self.case, self.contract, self.backend.incidents
        recorded = incidents.verdicts(case.operation, case.dtype)
        examine = partial(examined, incidents, contract.origin, case, self.settings)
        reason = incidents.given_up(case.operation, case.dtype)
        if reason is not None:
            recorded = examine()
            message = f"{UNJUDGED}the operation was stopped after it had {reason} at {STOP_AFTER} laws"
            return [
                recorded.get(law) or Result(case.operation, law, case.dtype, Status.FAILED, reason, message)
                for law in case.laws
            ]
        results = self.results(recorded, extent=extent, violated=violated)
        if recorded:
            recorded, _ = contained("looking for the input that ended the process", examine, recorded)
        return [recorded.get(r.law, r) for r in results]

    def explanation(self, failed: Sequence[Result], *, diagnosable: bool = True) -> Explanation:
        """Explain the violations; name no defect if the backend's process ended at this case."""
        ended = self.backend.incidents.verdicts(self.case.operation, self.case.dtype)
        return super().explanation(failed, diagnosable=diagnosable and not ended)
