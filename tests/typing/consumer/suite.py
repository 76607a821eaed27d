"""The suite in a third party's test file."""

from adapter import Mine

from attnspec.conformance import ConformanceSuite


class TestMine(ConformanceSuite):
    """All laws of the adapter's operation."""

    backend = Mine()
