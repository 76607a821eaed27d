"""A command-line run, from the backend's import to its report, however it ends.

Functions import heavy modules only after the process that imports the backend has started, to run beside it.
"""

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from attnspec.conformance.judging.own_errors import joined
from attnspec.conformance.judging.results import INTERRUPTED
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.folder import no_room_message
from attnspec.conformance.remote.processes import close_memory
from attnspec.conformance.remote.sandbox import use_sandbox
from attnspec.conformance.running.integrity import JudgeFiles
from attnspec.conformance.running.interruption import INTERRUPTION
from attnspec.conformance.running.probe import Probe
from attnspec.conformance.running.settings import Settings

if TYPE_CHECKING:
    from attnspec.conformance.reporting.report import Report

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk."""


def report_of_run(backend: str, settings: Settings, workers: int, console: Console, *, shown: bool = False) -> "Report":
    """Judge a backend and return the report, even after a signal or the time limit."""
    started = time.monotonic()
    # Signals are held until the probe exists, so that its process is always closed.
    INTERRUPTION.hold()
    close_memory()
    probe = None
    try:
        sandboxed = not settings.in_process and use_sandbox(settings.sandbox, "--sandbox")
        settings = replace(settings, sandbox="on" if sandboxed else "off")
        before = None if sandboxed or settings.in_process else JudgeFiles()
        probe = Probe(backend, settings.device, sandbox=sandboxed)
        report = _judged(probe, settings, workers, console, started, shown=shown)
        changed = "" if before is None else ", ".join(before.changed())
        if changed:
            raise BackendError(f"the judge's own files changed while it ran, so no verdict can be trusted: {changed}")
        return report
    except BackendError as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = INTERRUPTION.reason or INTERRUPTED
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason = no_room_message(error)
    finally:
        INTERRUPTION.acknowledge()
        if probe is not None:
            probe.close()
    from attnspec.conformance.reporting.report import Report

    return Report.without_verdicts(backend, settings, time.monotonic() - started, reason)


def _judged(
    probe: Probe, settings: Settings, workers: int, console: Console, started: float, *, shown: bool
) -> "Report":
    """Judge a backend that is still being imported, and return the report.

    If the proposed declaration explains all violations, judge everything again as if it had been pasted.
    """
    from attnspec.conformance.explaining.declaration import judged_as_declared
    from attnspec.conformance.judging.declaration import Contract
    from attnspec.conformance.remote.description import contract_from
    from attnspec.conformance.reporting.report import Report
    from attnspec.conformance.running.checking import run
    from attnspec.conformance.running.planning import Plan, check_names
    from attnspec.spec.contract.operation import OPERATIONS
    from attnspec.spec.contract.precision import DEFAULTS

    def seconds_left() -> float | None:
        return settings.time_limit - (time.monotonic() - started) if settings.time_limit else None

    def judged_by(settings: Settings, own_contract: Callable[[], Contract], begun: float) -> tuple[Contract, Report]:
        ended = run(
            probe.backend, settings, workers=max(1, min(workers, cases)), console=console, shown=shown,
            make_plan=lambda: Plan.of(own_contract(), settings),
        )  # fmt: skip
        # The backend's processes end first, so that the report can name those that had to be ended.
        probe.close()
        ended.verdicts.left += [title for title in probe.left if title not in ended.verdicts.left]
        seconds = time.monotonic() - begun
        report = Report.of(ended.plan, ended.verdicts, settings, seconds, early_end=ended.early_end)
        return ended.plan.own_contract, report

    INTERRUPTION.release(seconds_left())
    cases = len(settings.operations or OPERATIONS) * len(settings.dtypes or DEFAULTS)
    check_names(settings, "--")
    contract, report = judged_by(settings, lambda: contract_from(probe.description(), probe.backend), started)
    if settings.shard is not None:
        # Only all shards together show what the backend has to declare.
        return report

    def judged_again(attributes: Mapping[str, Any]) -> Report:
        console.print("judging again as if the backend declared what was observed", highlight=False)
        INTERRUPTION.resume(seconds_left())
        return judged_by(replace(settings, declared=repr(dict(attributes))), lambda: contract, time.monotonic())[1]

    try:
        proposed, last = judged_as_declared(report, judged_again)
    except (BackendError, KeyboardInterrupt) as error:
        note = f"judging again with the proposed declaration ended: {error or INTERRUPTED}"
        report = replace(report, undeclared=joined(report.undeclared, note))
    else:
        report = report if last is report else replace(report, declaration=proposed, as_declared=last)
    return replace(report, seconds=time.monotonic() - started)
