"""Small pieces of Markdown: tables, names, citations, formulas, and escaped text."""

from collections.abc import Iterable, Sequence

from attnspec.spec.contract.sources import Citation


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def displayed(latex: str) -> str:
    """Return a formula as a block of its own."""
    return f"\n\n```math\n{latex}\n```"


def coded(names: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def cited(citations: Iterable[Citation]) -> str:
    """Return citations as code, which the page turns into links."""
    return "; ".join(f"`{c}`" for c in citations)


def literal(text: str) -> str:
    """Return text with stars and opening angle brackets escaped."""
    return text.replace("*", r"\*").replace("<", r"\<")
