"""The specification as one self-contained HTML page, with MathML formulas, contents and search."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from math_core import LatexToMathML

from attnspec.conformance.reporting.specification import TITLE, Section, with_levels
from attnspec.conformance.reporting.templating import rendered
from attnspec.spec.contract.documentation import HEADINGS
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Lecture, Page

_MATHML = LatexToMathML(annotation=True, fancy_error=False)


def mathml(latex: str) -> str:
    """Return a formula as MathML with its LaTeX as annotation; ``LatexError`` for malformed LaTeX."""
    return _MATHML.convert_with_local_state(latex, displaystyle=True)


def as_page(sections: list[Section]) -> str:
    """Return the whole specification as one HTML page."""
    anchors = {part.title: part.anchor for _, part in with_levels(sections)} | citations(sections)
    return rendered("specification.html", title=TITLE, sections=sections, html=_markdown(anchors).render)


def citations(sections: list[Section]) -> dict[str, str]:
    """Return the anchors of the lectures' equations and passages, by the way they are cited."""
    section_anchors = {part.anchor for _, part in with_levels(sections)}
    anchors: dict[str, str] = {}
    for key, lecture in LECTURES.items():
        for anchor, page in _anchored(key, lecture, section_anchors):
            for item in page:
                if item.number:
                    anchors[f"{key}({item.number})"] = anchor
                if item.name:
                    anchors |= {f"{key} “{page.title}{mark} {item.name}”".casefold(): anchor for mark in (",", ":")}
            anchors.setdefault(f"{key} “{page.title}”".casefold(), anchor)
    return anchors


def _anchored(key: str, lecture: Lecture, known: set[str]) -> list[tuple[str, Page]]:
    """Return a lecture's pages, each with the anchor of its section; identical pages share a section."""
    anchored, last = [], ""
    for number, page in enumerate(lecture.pages, 1):
        last = f"{key}-{number}" if f"{key}-{number}" in known else last
        anchored.append((last, page))
    return anchored


# Markdown -------------------------------------------------------------------------------------------------------------


def _markdown(anchors: Mapping[str, str]) -> MarkdownIt:
    """Return a Markdown renderer that turns formulas into MathML, and names of sections into links."""

    def code(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
        text = tokens[index].content
        anchor = anchors.get(text) or anchors.get(text.casefold())
        shown = escape(text) if "“" in text else f"<code>{escape(text)}</code>"
        return f'<a href="#{escape(anchor)}">{shown}</a>' if anchor else shown

    def formula(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
        return mathml(tokens[index].content)

    def fence(_: object, tokens: Sequence[Token], index: int, *__: object) -> str:
        return f'<div class="formula">{mathml(tokens[index].content.strip())}</div>\n'

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.core.ruler.push("formulas", _formulas)
    markdown.core.ruler.push("labels", _labels)
    for name, rule in {"code_inline": code, "formula": formula, "fence": fence}.items():
        markdown.add_render_rule(name, rule)
    markdown.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return markdown


def _formulas(state: StateCore) -> None:
    """Turn inline code between dollar signs into formulas."""
    for block in state.tokens:
        inline = block.children or []
        for before, token, after in zip(inline, inline[1:], inline[2:], strict=False):
            if token.type == "code_inline" and before.content.endswith("$") and after.content.startswith("$"):
                before.content, after.content = before.content[:-1], after.content[1:]
                token.type = "formula"


LABELS = (
    *(*HEADINGS, "Domain", "Call", "Laws", "Open questions (normative choice)", "Errata of its sources"),
    *("In the lectures", "Governs", "Choices", "Concerns", "Printed", "Right", "Shown by an example of"),
    *("Owned by", "No owner"),
)
"""Labels that begin a paragraph and name its subject."""

_LABEL = re.compile(rf"(?:{'|'.join(map(re.escape, LABELS))}):")


def _labels(state: StateCore) -> None:
    """Set the label at the beginning of a paragraph in bold."""
    for start, block in zip(state.tokens, state.tokens[1:], strict=False):
        first = block.children[0] if start.type == "paragraph_open" and start.level == 0 and block.children else None
        match = _LABEL.match(first.content) if first is not None else None
        if first is None or match is None or block.children is None:
            continue
        label = Token("text", "", 0, content=match[0])
        text = Token("text", "", 0, content=first.content[match.end() :])
        block.children[:1] = [Token("strong_open", "b", 1), label, Token("strong_close", "b", -1), text]
