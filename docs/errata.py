"""Generator of ``docs/errata.md``: ``python docs/errata.py > docs/errata.md``."""

from attnspec.spec import ERRATA
from attnspec.spec.contract.sources import SOURCES
from attnspec.spec.errata import MISPRINTS

HEAD = """# Errata of the sources

Errors in the sources, with the right form. Each entry has both forms as functions, and an example on which they differ;
`tests/spec/test_errata.py` runs them and compares the right one with the reference.
Made by `python docs/errata.py > docs/errata.md` from `attnspec.spec.ERRATA`.
"""

MISPRINTED = "Misprints, which no calculation can show:\n"


def cell(text: object) -> str:
    """Escape a text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table() -> str:
    """Return the whole page."""
    rows = ["| erratum | where | operation | printed | right | why |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {' | '.join(map(cell, (e.identifier, e.source, f'`{e.operation}`', e.printed, e.right, e.note)))} |"
        for e in ERRATA.values()
    ]
    misprints = ["| misprint | where | printed | right |", "|---|---|---|---|"]
    misprints += [
        f"| {' | '.join(map(cell, (m.identifier, m.source, m.printed, m.right)))} |" for m in MISPRINTS.values()
    ]
    cited = {e.source.source for e in ERRATA.values()} | {m.source.source for m in MISPRINTS.values()}
    sources = [f"- {key}: {SOURCES[key].title}" for key in sorted(cited)]
    return "\n".join([HEAD, *rows, "", MISPRINTED, *misprints, "", *sources]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
