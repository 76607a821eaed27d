"""Small pieces of Markdown: tables, names, citations, formulas, and text in which nothing is a mark."""

from collections.abc import Iterable, Sequence

from attnspec.spec.contract.sources import Citation


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def displayed(latex: str) -> str:
    """A formula in lines of its own, below what introduces it."""
    return f"\n\n```math\n{latex}\n```"


def coded(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


def cited(citations: Iterable[Citation]) -> str:
    """Citations as code, of which the page makes links."""
    return "; ".join(f"`{c}`" for c in citations)


def literal(text: str) -> str:
    """Text in which a star is a star, and no angle begins HTML."""
    return text.replace("*", r"\*").replace("<", r"\<")
