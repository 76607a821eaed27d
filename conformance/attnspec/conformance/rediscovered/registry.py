"""What a rediscovered defect is: a mutant that does what a public report says a library did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Registry, names_of
from attnspec.conformance.mutants.registry import Mutant


def address_of(source: str) -> str:
    """Where a report is, of ``owner/repository#number``."""
    repository, _, number = source.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


@dataclass(frozen=True)
class Rediscovered(Mutant):
    """A defect that somebody reported; ``source`` is the report, as ``owner/repository#number``.

    ``breaks`` has one law that convicts it by itself, none where no conviction is certain.

    ``title`` is the report's, ``framework`` where it was. ``needs`` says which input a conviction waits for; where one
    is certain, it is empty, and ``profile`` the least one that convicts.
    """

    title: str = ""
    framework: str = ""
    needs: str = ""

    @property
    def convicted(self) -> bool:
        """Whether its profile convicts it, whatever the seed."""
        return not self.needs

    @property
    def address(self) -> str:
        """Where the report is."""
        return address_of(self.source)


REDISCOVERED: Registry[Rediscovered] = Registry("rediscovered defects")
"""Every rediscovered defect, by its report, once :mod:`attnspec.conformance.rediscovered` is imported."""


def rediscovered(
    source: str,
    title: str,
    *,
    framework: str,
    operation: object,
    replaces: str = "",
    dtype: str = "float32",
    profile: str = "quick",
    needs: str = "",
    **more: Any,
) -> Callable[[Alteration], Rediscovered]:
    """Make a rediscovered defect of a function that takes the place of the step ``replaces``, or of a subclass.

    ``operation`` is a Protocol. ``ValueError`` for a step that does not exist, or a report that is taken.
    """

    def made(wrong: Alteration) -> Rediscovered:
        found = Rediscovered(
            source,
            names_of([operation]),
            wrong,
            replaces,
            (dtype,),
            source=source,
            title=title,
            framework=framework,
            profile=profile,
            needs=needs,
            **more,
        )
        REDISCOVERED.add(found)
        return found

    return made
