"""Every numbered equation has an owner, and every citation names a source that exists."""

import pytest

from attnspec.spec import LAWS, OPERATIONS
from attnspec.spec.contract.sources import S0, SOURCES
from attnspec.spec.errata import ERRATA

CITED = {citation for operation in OPERATIONS.values() for citation in operation.sources}


@pytest.mark.parametrize("number", range(1, 18))
def test_every_equation_is_owned_by_an_operation(number: int) -> None:
    assert S0.equation(number) in CITED


def test_equations_are_numbered_without_gap() -> None:
    assert list(S0.equations) == list(range(1, 18))


def test_an_equation_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="not 18"):
        S0.equation(18)


def test_citations_name_sources() -> None:
    laws = {citation for law in LAWS.values() for citation in law.sources}
    for citation in CITED | laws | {e.source for e in ERRATA.values()}:
        assert citation.source in SOURCES
        assert (citation.equation is None) != (citation.passage is None)


def test_citations_read_as_in_print() -> None:
    assert str(S0.equation(4)) == "S0(4)"
    assert str(SOURCES["S2"].passage("masked decoder")) == "S2 “masked decoder”"
