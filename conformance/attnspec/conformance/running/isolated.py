"""A case under a watchdog: what ends the process of the backend, or hangs, fails one law, and the others are judged."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from attnspec.conformance.explaining.explanation import Explanation, explained
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, Violated
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import Hasty, HostEnded
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.incidents import STOP_AFTER, Incidents, Recorder
from attnspec.conformance.remote.signals import heard
from attnspec.conformance.running.first_violation import judged_until_violation
from attnspec.conformance.running.post_mortem import examined
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.watchdog import FileIncidents, Watchdog

T = TypeVar("T")


@dataclass(frozen=True)
class Isolated:
    """A case in a worker process, or of a backend with a process of its own, under a watchdog.

    ``folder`` holds the incidents of a backend in the worker process; those of others are in memory.
    With ``explains`` it is looked for what only has to be declared.
    """

    judging: Callable[..., list[Result]]
    backend: Any
    contract: Contract
    case: Case
    settings: Settings
    folder: Path | None = None
    explains: bool = True

    @property
    def remote(self) -> RemoteBackend | None:
        """The backend, if it has a process of its own."""
        return self.backend if type(self.backend) is RemoteBackend else None

    def judged(self, extent: Extent) -> list[Result]:
        """The verdicts of the case, with those of laws at which a process has ended before.

        Where the process of the backend ends, the case is judged again without the law that had it end; after a first
        hang, and where the success of a step was wrongly taken for granted, with it. Violations seen before that stand.
        """
        violated: Violated = {}
        while True:
            try:
                with nullcontext() if self.remote is None else heard():
                    return self._judged(extent, violated)
            except Hasty:
                extent.clear()
            except HostEnded as end:
                self._blame(end)

    def _blame(self, end: HostEnded) -> None:
        """Record what was checked when the process of the backend ended, and start another one."""
        incidents, case = self._incidents(), self.case
        hung = end.reason is Reason.HUNG
        again = hung and incidents.tried_again(case.operation, case.dtype, hung=hung)
        if not again and incidents.record(case.operation, case.dtype, hung=hung, left=end.left) is None:
            raise BackendError(f"backend {self.contract.origin!r}: {end.words}, and no law can be blamed") from end
        self._restart()

    def _restart(self) -> None:
        assert self.remote is not None
        self.remote.restart(IMPORT_SECONDS)

    def _incidents(self) -> Incidents:
        if self.remote is not None:
            return self.remote.incidents
        assert self.folder is not None
        return FileIncidents(self.folder, self.settings.hang_after)

    def _watchdog(self) -> Watchdog | Recorder:
        case, remote = self.case, self.remote
        if remote is not None:
            # A backend that was started anew has another host.
            return Recorder(remote.incidents, case.operation, case.dtype, lambda: remote.host.begin())
        assert self.folder is not None
        return Watchdog(self.folder, case.id, self.settings.hang_after)

    def surviving(self) -> Containment:
        """Containment that survives the end of the backend's process too, and starts another one.

        Nothing is tried after the first end: a process that hangs takes long to end.
        """
        ends: list[str] = []

        def contain(stage: str, step: Callable[[], T], otherwise: T, /) -> tuple[T, str]:
            if ends:
                return otherwise, ends[0]
            while True:
                try:
                    with nullcontext() if self.remote is None else heard():
                        return contained(stage, step, otherwise)
                except Hasty:
                    continue
                except HostEnded as end:
                    _, restarting = contained("starting the backend anew", self._restart, None)
                    ends.append(joined(f"the backend {end.words} while attnspec was {stage}", restarting))
                    return otherwise, ends[0]

        return contain

    def _judged(self, extent: Extent, violated: Violated) -> list[Result]:
        case, contract, settings = self.case, self.contract, self.settings
        incidents = self._incidents()
        recorded = incidents.verdicts(case.operation, case.dtype)
        reason = incidents.given_up(case.operation, case.dtype)
        if reason is not None:
            recorded = examined(incidents, contract.origin, case, settings)
            message = f"{UNJUDGED}the operation was stopped after it had {reason} at {STOP_AFTER} laws"
            return [
                recorded.get(law) or Result(case.operation, law, case.dtype, Status.FAILED, reason, message)
                for law in case.laws
            ]
        watchdog = self._watchdog()
        try:
            here = partial(
                self.judging, contract, mark=watchdog, extent=extent, violated=violated, contain=self.surviving()
            )
            if settings.fail_fast:
                results = judged_until_violation(here, case, settings, recorded)
            else:
                results = here(case, skip=recorded)
        finally:
            watchdog.close()
        if recorded:
            examine = partial(examined, incidents, contract.origin, case, settings)
            recorded, _ = contained("looking for the input that ended the process", examine, recorded)
        return [recorded.get(r.law, r) for r in results]

    def explanation(self, failed: Sequence[Result]) -> Explanation:
        """What explains violations: in runs that are to end soon a diagnosis alone, and none where a process ended."""
        case, settings = self.case, self.settings
        soon = settings.fail_fast or settings.only is not None
        watchdog = self._watchdog()
        try:
            return explained(
                self.backend,
                self.contract,
                case,
                PROFILES[settings.profile],
                failed,
                seed=settings.seed,
                device=settings.device,
                mark=watchdog,
                watch=watchdog.during,
                contain=self.surviving(),
                declarable=self.explains and not soon,
                diagnosable=not self._incidents().verdicts(case.operation, case.dtype),
            )
        finally:
            watchdog.close()
