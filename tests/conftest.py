"""Seeds for every test, and the name of each test at its failure."""

import os
import sys
from zlib import crc32

import pytest

# Tests run in parallel: spinning threads would wait for those of other tests, so that 0.1 ms take 20 to 60. Libraries
# that are loaded later read these variables, as do the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class NamedAtOnce:
    """Prints the name of each test that fails, in the process that prints."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid}", red=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name failures at once; workers of pytest-xdist print nothing."""
    manager = session.config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        manager.register(NamedAtOnce(reporter))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed PyTorch by the name of the test, whatever tests ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(crc32(item.nodeid.encode()))
