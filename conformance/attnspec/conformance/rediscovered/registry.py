"""Rediscovered defects: mutants with the behaviour of a publicly reported bug."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.mutants.correct.altered import Alteration, Registry, names_of
from attnspec.conformance.mutants.registry import Mutant


def address_of(source: str) -> str:
    """URL of a report ``owner/repository#number``."""
    repository, _, number = source.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


@dataclass(frozen=True)
class Rediscovered(Mutant):
    """A publicly reported defect; ``source`` is the report, as ``owner/repository#number``.

    ``breaks`` holds one law that detects it alone; it is empty if detection is not certain.

    ``title`` is the title of the report, ``framework`` the library. ``needs`` says which input would reveal the
    defect; it is empty if detection is certain, and ``profile`` is then the smallest profile that detects it.
    """

    title: str = ""
    framework: str = ""
    needs: str = ""

    @property
    def convicted(self) -> bool:
        """True if its profile detects it with every seed."""
        return not self.needs

    @property
    def address(self) -> str:
        """URL of the report."""
        return address_of(self.source)


REDISCOVERED: Registry[Rediscovered] = Registry("rediscovered defects")
"""Rediscovered defects by report; filled by the import of :mod:`attnspec.conformance.rediscovered`."""


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
    """Decorate a function that replaces the step ``replaces``, or a subclass, as a rediscovered defect.

    ``operation`` is a Protocol. ``ValueError`` for an unknown step or a report that is registered already.
    """

    def register_defect(wrong: Alteration) -> Rediscovered:
        new = Rediscovered(
            name=source,
            operations=names_of([operation]),
            alteration=wrong,
            replaces=replaces,
            dtypes=(dtype,),
            source=source,
            title=title,
            framework=framework,
            profile=profile,
            needs=needs,
            **more,
        )
        REDISCOVERED.add(new)
        return new

    return register_defect
