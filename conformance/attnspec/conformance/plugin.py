"""The pytest plugin. It is loaded in every run of every user's pytest, and imports nothing heavy until it is used."""

import gc
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnspec.conformance.running.suite import Settings

REPORTER = "attnspec-reporter"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of ``attnspec check``, for pytest."""
    group = parser.getgroup("attnspec", "conformance of attention backends")
    group.addoption("--attn-backend", metavar="NAME", help="judge this backend: a name, package.module or file.py")
    group.addoption("--attn-profile", default="quick", metavar="P", help="quick, full or release")
    group.addoption("--attn-seed", default=0, type=int, metavar="N", help="seed of all examples")
    group.addoption("--attn-device", default="cpu", metavar="D", help="device to run on")
    group.addoption("--attn-operation", action="append", default=[], metavar="NAME", help="only this operation")
    group.addoption("--attn-law", action="append", default=[], metavar="ID", help="only this law")
    group.addoption("--attn-dtype", action="append", default=[], metavar="D", help="only this dtype")
    group.addoption("--attn-hang-after", default=20.0, type=float, metavar="S", help="seconds a check may take")
    group.addoption("--attn-crumbs", help="folder for breadcrumbs of isolated runs; needs pytest-xdist")
    group.addoption("--attn-json", metavar="FILE", help="write the verdicts as JSON")


def settings_of_options(config: pytest.Config) -> "Settings":
    """The settings that the command line chooses."""
    from attnspec.conformance.running.suite import Settings

    return Settings(
        profile=config.getoption("--attn-profile"),
        seed=config.getoption("--attn-seed"),
        device=config.getoption("--attn-device"),
        operations=tuple(config.getoption("--attn-operation")),
        laws=tuple(config.getoption("--attn-law")),
        dtypes=tuple(config.getoption("--attn-dtype")),
        hang_after=config.getoption("--attn-hang-after"),
        crumbs=config.getoption("--attn-crumbs"),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect verdicts where the run is controlled; workers of xdist only hand theirs on."""
    if config.getoption("--attn-backend") is None:
        for option in ("--attn-json", "--attn-operation", "--attn-law", "--attn-dtype"):
            if config.getoption(option):
                raise pytest.UsageError(f"{option}: expected --attn-backend=NAME too; a suite has attributes")
    elif not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(config), REPORTER)


def _works_for_check(config: pytest.Config) -> bool:
    """Whether this is a worker of ``attnspec check``."""
    return hasattr(config, "workerinput") and config.getoption("--attn-crumbs") is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    """A worker of ``attnspec check`` keeps what it has imported, and never looks through it for garbage."""
    if _works_for_check(session.config):
        gc.freeze()
        # The keyboard is the controller's: an interrupt that is raised here is the backend's own.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A worker of ``attnspec check`` ends without looking for garbage, which would take it half a second."""
    if _works_for_check(config):
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case of the backend that the class, or the command line, names."""
    if "attnspec_case" not in metafunc.fixturenames:
        return
    from attnspec.conformance.running.loading import BackendError
    from attnspec.conformance.running.suite import cases_of, settings_of

    name = metafunc.config.getoption("--attn-backend")
    try:
        if metafunc.cls is not None:
            if name is not None:
                raise pytest.UsageError(f"--attn-backend: {metafunc.cls.__name__} names its own backend; got {name!r}")
            found = cases_of(metafunc.cls.backend, settings_of(metafunc.cls))
        elif name is None:
            raise pytest.UsageError("expected --attn-backend=NAME to say whom to judge; got none")
        else:
            found = cases_of(name, settings_of_options(metafunc.config))
    except BackendError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("attnspec_case", found, ids=[c.id for c in found])


class Reporter:
    """Gathers the verdicts of all workers; what was collected and never reported is lost."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.expected: dict[str, None] = {}
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.causes: dict[str, str] = {}

    @staticmethod
    def case(nodeid: str) -> str:
        """The case's name in a node's."""
        return nodeid.rpartition("[")[2].removesuffix("]")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What is to come, without xdist."""
        self.expected.update(dict.fromkeys(self.case(i.nodeid) for i in session.items if "[" in i.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """What is to come, as a worker says."""
        self.expected.update(dict.fromkeys(self.case(i) for i in ids if "[" in i))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Remember the law at which a worker died, and run the rest of its case again."""
        from attnspec.conformance.running.isolation import Casualties

        folder = self.config.getoption("--attn-crumbs")
        if folder is None:
            return
        operation, _, dtype = self.case(crashitem).rpartition("-")
        casualties = Casualties(Path(folder), self.config.getoption("--attn-hang-after"))
        if casualties.record(operation, dtype) is not None:
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"  # type: ignore[assignment]  # as xdist's documentation says

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The verdicts of a case."""
        for name, value in report.user_properties:
            if name == "attnspec" and isinstance(value, list):
                self.results[self.case(report.nodeid)] = value
        if report.failed and self.case(report.nodeid) not in self.results:
            lines = report.longreprtext.strip().splitlines() or ["its process ended"]
            raised = [line[2:].strip() for line in lines if line.startswith("E ")]
            self.causes[self.case(report.nodeid)] = (raised or lines)[-1]

    def pytest_sessionfinish(self) -> None:
        """The verdicts as JSON, if they were asked for."""
        path = self.config.getoption("--attn-json")
        if path and self.config.getoption("--attn-crumbs") is None:
            from attnspec.conformance.reporting.report import as_text, document_of_pytest

            Path(path).write_text(as_text(document_of_pytest(self, settings_of_options(self.config))))
