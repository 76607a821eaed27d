"""Judging of a case in two processes: a crash or hang fails one law."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from attnspec.conformance.explaining.explanations import Explanation
from attnspec.conformance.judging.engine import ViolatedLaws
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import HostEnded, PipelineFailed, Redeclared
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.incidents import STOP_AFTER, Recorder
from attnspec.conformance.running.in_process import InProcess
from attnspec.conformance.running.post_mortem import with_crashing_inputs
from attnspec.conformance.running.probe import IMPORT_SECONDS


def ignore_signal(number: int, frame: object) -> None:
    """Ignore a signal.

    With ``SIG_IGN`` instead, ``call_safely`` would take a ``KeyboardInterrupt`` for an exception of the backend.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let :class:`HostEnded`, a ``KeyboardInterrupt``, pass through ``call_safely`` even if SIGINT is ignored."""
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
    """A case whose backend has its own process; this one records crashes and hangs."""

    backend: RemoteBackend

    def judged(self, extent: Extent) -> list[Result]:
        """Return the verdicts of the case, including those of laws that ended the backend's process.

        When the process ends, the case is judged again without the law that ended it; after the first hang of a law,
        and after a failed pipelined step, with it. Violations found before are kept.
        """
        violated: ViolatedLaws = {}
        health, remote = self.contract.health, self.backend
        health.restart, health.ended = self._restarted, (HostEnded,)
        self._survive(health.start_case)
        while True:
            try:
                with interruptible():
                    return self._judged(extent, violated)
            except PipelineFailed:
                extent.clear()
                # The step may have failed because an earlier call broke the process.
                self._survive(lambda: None if health.answers() else remote.restart(IMPORT_SECONDS))
            except HostEnded as end:
                self._blame(end)

    def _restarted(self) -> str:
        """Restart the backend's process; return why it cannot be used, if so."""
        try:
            self.backend.restart(IMPORT_SECONDS)
        except BackendError as error:
            return f"its process cannot be restarted: {error}"
        return ""

    def _survive(self, step: Callable[[], None]) -> None:
        """Do a step between two checks; restart the backend's process if it ends."""
        try:
            with interruptible():
                step()
        except (HostEnded, PipelineFailed):
            self.backend.restart(IMPORT_SECONDS)

    def _blame(self, end: HostEnded) -> None:
        """Blame the check at which the backend's process ended, and start a new process."""
        incidents, case = self.backend.incidents, self.case
        again = end.reason is Reason.HUNG and incidents.retry_after_hang(case.operation, case.dtype)
        if not again and incidents.record(case.operation, case.dtype, hung_after=end.hung_after, left=end.left) is None:
            why = f"{end.description}, and no law can be blamed"
            raise BackendError(f"backend {self.contract.origin!r}: {why}") from end
        self.backend.restart(IMPORT_SECONDS)

    @contextmanager
    def marking(self) -> Iterator[Recorder]:
        """Yield a recorder: it stores every check, to be blamed, and starts its clock."""
        remote = self.backend
        remote.host.start_case()
        # Looked up at every check: a restarted backend has another host.
        yield Recorder(remote.incidents, self.case.operation, self.case.dtype, lambda: remote.host.start_check())

    def containment(self) -> Containment:
        """Return a wrapper of steps that survives, and repairs, the end of the backend's process.

        After the first end it skips all further steps, since each may hang, which takes long.
        """
        ends: list[str] = []
        remote = self.backend

        def contain(stage: str, step: Callable[[], T], otherwise: T, /) -> tuple[T, str]:
            if ends:
                return otherwise, ends[0]
            while True:
                try:
                    with interruptible():
                        return contained(stage, step, otherwise)
                except PipelineFailed:
                    continue
                except (HostEnded, Redeclared) as end:
                    _, restarting = contained("restarting the backend", lambda: remote.restart(IMPORT_SECONDS), None)
                    ends.append(joined(f"the backend {end.description} while attnspec was {stage}", restarting))
                    return otherwise, ends[0]

        return contain

    def _judged(self, extent: Extent, violated: ViolatedLaws) -> list[Result]:
        case, contract, incidents = self.case, self.contract, self.backend.incidents
        recorded = incidents.verdicts(case.operation, case.dtype)
        examine = partial(with_crashing_inputs, incidents, contract.origin, case, self.settings)
        reason = incidents.stop_reason(case.operation, case.dtype)
        if reason is not None:
            recorded = examine()
            message = f"{UNJUDGED}the operation was stopped after it had {reason} at {STOP_AFTER} laws"
            return [
                recorded.get(law) or Result(case.operation, law, case.dtype, Status.FAILED, reason, message)
                for law in case.laws
            ]
        results = self.results(recorded, extent=extent, violated=violated)
        if recorded:
            recorded, _ = contained("searching the smallest input that ends the process", examine, recorded)
        return [recorded.get(r.law, r) for r in results]

    def explanation(self, failed: Sequence[Result], *, diagnosable: bool = True) -> Explanation:
        """Explain violations; without a known defect if the backend's process ended."""
        ended = self.backend.incidents.verdicts(self.case.operation, self.case.dtype)
        return super().explanation(failed, diagnosable=diagnosable and not ended)
