"""A fixture that fails tests on attnspec's own errors, which runs only note beside verdicts."""

from collections.abc import Iterator

import pytest

import attnspec.conformance.laws  # noqa: F401 - the modules of the laws register their checks
from attnspec.conformance.judging import own_errors


@pytest.fixture(autouse=True)
def no_own_errors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test if attnspec noted an own error that the test did not inject."""
    errors: list[str] = []
    original = own_errors.own_error

    def own_error(stage: str, error: Exception) -> str:
        errors.append(original(stage, error))
        return errors[-1]

    monkeypatch.setattr(own_errors, "own_error", own_error)
    yield
    if not request.module.__name__.endswith("test_own_errors"):
        assert errors == []
