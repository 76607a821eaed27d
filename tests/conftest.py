"""Seeds for every test, and the name of each test at its failure."""

import os
import sys
from zlib import crc32

import pytest

# For this process if NumPy is not loaded yet, and for those that it starts. Tests run in parallel: the threads of a
# product would wait for the other tests' (0.1 ms then take 60).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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
