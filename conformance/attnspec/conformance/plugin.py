"""The pytest plugin, loaded in every pytest run of every user: heavy imports are made late."""

import argparse
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.running.keys import IN_PROCESS_SUITES, JUDGED_BACKENDS, LEFT_PROPERTY, SUITES_PROPERTY
from attnspec.conformance.running.settings import OPTIONS, Settings

TIME_LIMIT_PLUGIN = "attnspec-time-limit"
"""Name of the plugin :class:`TimeLimit`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of ``attnspec check`` for pytest."""
    group = parser.getgroup("attnspec", "conformance of attention backends")
    group.addoption("--attn-backend", metavar="NAME", help="the backend to judge: a name, package.module or file.py")
    for o in OPTIONS:
        text = argparse.SUPPRESS if o.internal else o.help
        if o.repeatable:
            group.addoption(o.flag, action="append", default=[], metavar=o.metavar, help=text)
        elif o.switch:
            group.addoption(o.flag, action="store_true", help=text)
        else:
            group.addoption(o.flag, default=o.default, type=o.parse, metavar=o.metavar, help=text)
    group.addoption("--attn-json", metavar="FILE", help="write the report as JSON")


def settings_of_options(config: pytest.Config) -> Settings:
    """Return the settings that pytest's command line chooses."""
    return Settings.from_options(config.getoption)


def pytest_configure(config: pytest.Config) -> None:
    """Collect verdicts in the controlling process; let workers start the backend."""
    # With a shared folder this is a run of the command ``attnspec``, which enforces its time limit itself.
    limit = config.getoption("--attn-time-limit")
    if limit and config.getoption("--attn-shared-folder") is None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeLimit(limit), TIME_LIMIT_PLUGIN)
    if config.getoption("--attn-backend") is None:
        for flag in ("--attn-json", *(o.flag for o in OPTIONS if o.repeatable)):
            if config.getoption(flag):
                raise pytest.UsageError(f"{flag}: expected --attn-backend=NAME, too; suites set attributes instead")
        return
    from attnspec.conformance.running.extra import missing_packages

    if message := missing_packages():
        raise pytest.UsageError(f"--attn-backend: {message}")
    settings = settings_of_options(config)
    if _is_check_worker(config):
        from attnspec.conformance.remote.processes import close_memory, die_with_parent

        die_with_parent()
        if not settings.in_process:
            from attnspec.conformance.running.judged_backends import backends
            from attnspec.conformance.running.waking import wake_parent

            close_memory()
            wake_parent()
            # The backend is imported while this process makes its own imports.
            backends(config).start(config.getoption("--attn-backend"), settings)
        elif config.getoption("capture") == "no":
            # pytest-xdist discards what its workers print.
            os.dup2(2, 1)
    if not hasattr(config, "workerinput"):
        from attnspec.conformance.running.verdicts import VERDICTS, Collector, CrashHandler, Verdicts

        verdicts = config.stash[VERDICTS] = Verdicts()
        config.pluginmanager.register(Collector(verdicts))
        if settings.shared_folder is not None:
            handler = CrashHandler(settings.hang_after, in_process=settings.in_process, repeated=verdicts.repeated)
            config.pluginmanager.register(handler)


class TimeLimit:
    """Ends a plain pytest run after the test that exceeds its time limit."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def pytest_runtest_logreport(self) -> None:
        """End the run if its time has run out."""
        if time.monotonic() > self.end:
            raise pytest.exit.Exception("time limit")


def _is_check_worker(config: pytest.Config) -> bool:
    """Return whether this is a worker process of ``attnspec check``."""
    return hasattr(config, "workerinput") and settings_of_options(config).shared_folder is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude from garbage collection what a worker of ``attnspec check`` has imported."""
    if _is_check_worker(session.config):
        gc.freeze()
        gc.set_threshold(100_000)  # checks leave few reference cycles
        from attnspec.conformance.running.isolated import ignore_signal

        # The controlling process handles Ctrl-C. With SIG_IGN, ``call_safely`` takes a KeyboardInterrupt for the
        # backend's own: right for a backend in this process, wrong for the end of an isolated one, ``HostEnded``.
        in_process = settings_of_options(session.config).in_process
        signal.signal(signal.SIGINT, signal.SIG_IGN if in_process else ignore_signal)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the backends' processes if the run ended early.

    A worker of ``attnspec check`` skips the last garbage collection, which takes half a second.
    """
    if JUDGED_BACKENDS in config.stash:
        config.stash[JUDGED_BACKENDS].close()
    if _is_check_worker(config):
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test with the cases of its backend, by class or command line."""
    if "attnspec_case" not in metafunc.fixturenames:
        return
    from attnspec.conformance.remote.errors import BackendError
    from attnspec.conformance.running.planning import Plan
    from attnspec.conformance.running.suite import backend_of, backend_of_suite, check_expectations, settings_of_suite

    name = metafunc.config.getoption("--attn-backend")
    try:
        if metafunc.cls is not None:
            if name is not None:
                suite = metafunc.cls.__name__
                raise pytest.UsageError(f"--attn-backend: expected none: {suite} names its own backend; got {name!r}")
            settings, contract = settings_of_suite(metafunc.cls), backend_of_suite(metafunc.config, metafunc.cls)[1]
        elif name is None:
            raise pytest.UsageError("expected --attn-backend=NAME, the backend to judge; got none")
        else:
            settings = settings_of_options(metafunc.config)
            contract = backend_of(metafunc.config, name, settings)[1]
        plan = Plan.of(contract, settings)
        if settings.shared_folder is None:
            check_expectations(plan, settings)
    except BackendError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("attnspec_case", plan.cases, ids=[c.id for c in plan.cases])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store why a worker judged suites in the process of their backend."""
    suites = getattr(node, "workeroutput", {}).get(SUITES_PROPERTY, {})
    node.config.stash.setdefault(IN_PROCESS_SUITES, {}).update(suites)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report suites judged in the process of their backend, and processes left running."""
    write = terminalreporter.write_line
    for suite, reason in config.stash.get(IN_PROCESS_SUITES, {}).items():
        write(f"attnspec: {suite} was judged in the process of its backend, which may have misled it: {reason}")
    left = config.stash[JUDGED_BACKENDS].close() if JUDGED_BACKENDS in config.stash else []
    if left:
        write(f"attnspec: left behind by backends, and ended: {', '.join(left)}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End the backends' processes, and write the report if ``--attn-json`` names a file.

    ``attnspec check`` writes its own report.
    """
    config = session.config
    if JUDGED_BACKENDS in config.stash:
        left = config.stash[JUDGED_BACKENDS].close()
        if hasattr(config, "workeroutput"):
            config.workeroutput[LEFT_PROPERTY] = left
            config.workeroutput[SUITES_PROPERTY] = config.stash.get(IN_PROCESS_SUITES, {})
    path, settings = config.getoption("--attn-json"), settings_of_options(config)
    if not path or settings.shared_folder is not None or hasattr(config, "workerinput"):
        return
    from attnspec.conformance.judging.own_errors import contained
    from attnspec.conformance.judging.results import INTERRUPTED, TIME_LIMIT
    from attnspec.conformance.remote.errors import BackendError
    from attnspec.conformance.reporting.report import Report
    from attnspec.conformance.reporting.writing import OutputFile, UnwritableError
    from attnspec.conformance.running.planning import Plan
    from attnspec.conformance.running.suite import backend_of
    from attnspec.conformance.running.verdicts import VERDICTS

    try:
        plan = Plan.of(backend_of(config, config.getoption("--attn-backend"), settings)[1], settings)
    except BackendError:
        # The collection of tests has already raised the error.
        return
    limit = config.pluginmanager.get_plugin(TIME_LIMIT_PLUGIN)
    over = limit is not None and time.monotonic() > limit.end
    early_end = None if exitstatus != pytest.ExitCode.INTERRUPTED else TIME_LIMIT if over else INTERRUPTED
    verdicts = config.stash[VERDICTS]
    seconds = time.monotonic() - verdicts.started
    text, note = contained(
        "writing the report as JSON",
        lambda: Report.of(plan, verdicts, settings, seconds, early_end=early_end).as_text(),
        "",
    )
    if note:
        session.config.get_terminal_writer().line(f"attnspec: {note}")
    try:
        OutputFile(Path(path), "--attn-json").write(text)
    except UnwritableError as error:
        raise pytest.UsageError(str(error)) from error
