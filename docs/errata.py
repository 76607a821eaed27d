"""Generator of ``docs/errata.md``: ``python docs/errata.py > docs/errata.md``."""

from collections.abc import Iterable

from attnspec.spec import ERRATA
from attnspec.spec.contract.sources import SOURCES
from attnspec.spec.errata import MISPRINTS, Erratum

HEAD = """# Errata of the sources

Errors in the sources, with the right form. Each entry has both forms as functions, and an example on which they differ;
`tests/spec/test_errata.py` runs them and compares the right one with the reference.
Made by `python docs/errata.py > docs/errata.md` from `attnspec.spec.ERRATA`.
"""

RESTRICTED = "Restrictions: the printed form is right where the source means it, and wrong beyond.\n"
MISPRINTED = "Misprints, which no calculation can show:\n"


def cell(text: object) -> str:
    """Escape a text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def rows(errata: Iterable[Erratum]) -> list[str]:
    """Return a table of errata."""
    cells = ((e.identifier, e.source, f"`{e.operation}`", e.printed, e.right, e.note) for e in errata)
    head = ["| erratum | where | operation | printed | right | why |", "|---|---|---|---|---|---|"]
    return [*head, *(f"| {' | '.join(map(cell, each))} |" for each in cells)]


def table() -> str:
    """Return the whole page."""
    errors, restrictions = ([e for e in ERRATA.values() if e.restriction is kind] for kind in (False, True))
    misprints = ["| misprint | where | printed | right |", "|---|---|---|---|"]
    misprints += [
        f"| {' | '.join(map(cell, (m.identifier, m.source, m.printed, m.right)))} |" for m in MISPRINTS.values()
    ]
    cited = {e.source.source for e in ERRATA.values()} | {m.source.source for m in MISPRINTS.values()}
    sources = [f"- {key}: {SOURCES[key].title}" for key in sorted(cited)]
    parts = [HEAD, *rows(errors), "", RESTRICTED, *rows(restrictions), "", MISPRINTED, *misprints, "", *sources]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(table(), end="")
