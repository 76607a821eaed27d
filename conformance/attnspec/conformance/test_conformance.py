"""Test that ``pytest --pyargs attnspec.conformance --attn-backend=NAME`` collects."""

from collections.abc import Callable

import pytest

from attnspec.conformance.judging.cases import Case
from attnspec.conformance.plugin import settings_of_options
from attnspec.conformance.running.suite import backend_of, run_case


def test_conforms(
    attnspec_case: Case, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    """Judge one operation at one dtype by all its laws."""
    settings = settings_of_options(pytestconfig)
    backend, contract = backend_of(pytestconfig, pytestconfig.getoption("--attn-backend"), settings)
    run_case(backend, contract, attnspec_case, settings, record_property)
