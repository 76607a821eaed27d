"""One check of a law in a new process, for devices that forks cannot use.

``python -m attnspec.conformance.running.trial_call ANSWER`` reads the call, imports the backend and makes it. Then it
writes to the file descriptor ANSWER that it did not crash.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.isolation import FINISHED, AbnormalEnd, crash_of, hang_of
from attnspec.conformance.judging.reduction import Search
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.processes import die_with_parent
from attnspec.conformance.remote.sandbox import launch
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.spec.contract.operation import OPERATIONS


def end_in_new_process(
    subject: Subject, law_checks: Iterable[Check], arguments: Arguments, seed: int, seconds: float
) -> AbnormalEnd | None:
    """Check a law in a new process, which imports the backend; return its crash or timeout."""
    checks = [(check.law.id, check.name) for check in law_checks]
    where = subject.contract.origin, subject.operation.name, subject.dtype, subject.device
    answer, theirs = os.pipe()
    process = launch(
        "attnspec.conformance.running.trial_call",
        str(theirs),
        sandbox=False,  # a sandbox around this process holds its children, too
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs],
    )
    os.close(theirs)
    with open(answer, "rb", buffering=0) as pipe:
        try:
            request = pickle.dumps((*where, checks, arguments.values_by_name, seed))
            process.communicate(request, IMPORT_SECONDS + seconds)
        except subprocess.TimeoutExpired:
            return hang_of(seconds)
        except BrokenPipeError:
            process.wait()
        finally:
            process.end()
        return crash_of(process.returncode, pipe)


def main() -> None:
    """Make the call that standard input describes."""
    die_with_parent()
    os.set_inheritable(int(sys.argv[1]), False)
    backend, operation, dtype, device, checks, values, seed = pickle.load(sys.stdin.buffer)
    try:
        contract = contract_of(loaded := load(backend), backend, device)
        subject = Subject(loaded, contract, OPERATIONS[operation], dtype, device)
        arguments = Arguments(OPERATIONS[operation], values)
        unknown = Violation("", reason=Reason.CRASHED, arguments=arguments)
        for check in (check for law, name in checks for check in CHECKS[law] if check.name == name):
            if check.concerns(subject.operation):
                Search(subject, check, arguments, unknown, seed, lambda law, what: None).failure(arguments)
    finally:
        os.write(int(sys.argv[1]), FINISHED)
        os._exit(0)


if __name__ == "__main__":
    main()
