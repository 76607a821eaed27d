"""Headings, formulas, figures and tables of a lecture, from the text of its PDF.

The texts keep no page breaks: a page is what stands under one heading, and a page that a lecture shows again with one
line more is a page again. The texts keep this of everything else:

- A displayed formula stands between ``$$`` and ``$$``. Line breaks do not count, nor what says only how it is drawn:
  the sizes of brackets, which are not always balanced, and which of two names aligned lines have.
- A numbered figure has a caption ``Figure 3: …`` in a line of its own. Where a page has none, two empty lines in a row,
  or a credit ``From <…>``, are what pictures leave behind; they count once a page.
- A table is a run of lines with tabs; its first line names it.
- A heading is a paragraph of one line that :data:`HEADINGS` matches in full, and in S2 also the three or more
  capitalized words with which a paragraph begins; how many of them are the heading is for the registry to say. The
  patterns rather take a line too many: one that stands alone like a heading is listed with the page on which it stands.
"""

import re
from collections.abc import Iterator

from attnspec.spec.lectures.registry import Kind

CAPTION = re.compile(r"Figure \d+: .+")
CREDIT = re.compile(r"From <.+>")
FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
PARAGRAPH = re.compile(r"(?:\A|(?<=\n))\s*^(?P<text>.*\S(?:\n.*\S.*)*)", re.MULTILINE)
PICTURE = re.compile(rf"\n[ ]*\n[ ]*\n|^{CREDIT.pattern}$", re.MULTILINE)
RUN_IN = re.compile(r"(?:(?:[A-Z][a-z]+(?:-[A-Z][a-z]+)*|&) ){3,}")
TABLE = re.compile(r"^.*\t.*(?:\n.*\t.*)*", re.MULTILINE)

_NAME = r"(?:[A-Z][\w'-]*:?,?|and|of|using|\d+)"
_SHORT = r"[A-Z][^$\n]{1,58}[^.:$\n]"
HEADINGS = {
    "S0": rf"[A-Z0-9 :,'-]+|{_NAME}(?: {_NAME})+|Self-Attention",  # all in capitals, or every word
    "S1": _SHORT,  # at most 60 characters that do not end like a sentence or an introduction, and no formula
    "S2": r"CS .+|\d(?:\.\d)? .+|(?:Problem|Solution): .+",
    "S3": _SHORT,
    "S4": r"#+ .+",
}

KindAndText = tuple[Kind, str]


def formula_of(latex: str) -> str:
    """The LaTeX of a formula without what says only how it is drawn."""
    return re.sub(r"\\(?:left|right)(?![a-z])", "", " ".join(latex.split())).replace("{split}", "{aligned}")


def items_in(key: str, text: str) -> Iterator[tuple[KindAndText, int]]:
    """The items of a lecture, in order, each with its position in the text."""
    headings = list(_headings(key, text))
    for number, (heading, start) in enumerate(headings):
        end = headings[number + 1][1] if number + 1 < len(headings) else len(text)
        yield (Kind.HEADING, heading), start
        yield from sorted(_formulas_figures_tables(text[:end], start), key=lambda item: item[1])


def _headings(key: str, text: str) -> Iterator[tuple[str, int]]:
    """Every heading, without its marks, and where it begins."""
    for paragraph in PARAGRAPH.finditer(text):
        line, start = paragraph["text"].strip(), paragraph.start("text")
        run_in = RUN_IN.match(line) if key == "S2" else None
        if re.fullmatch(HEADINGS[key], line) and not re.fullmatch(f"{CAPTION.pattern}|{CREDIT.pattern}", line):
            yield re.sub(r"^#+ |\*\*", "", line), start
        elif run_in:
            yield run_in[0].strip(), start


def _formulas_figures_tables(text: str, start: int) -> Iterator[tuple[KindAndText, int]]:
    """Formulas, tables and figures of a page that reaches from ``start`` to the end."""
    for kind, pattern in ((Kind.FORMULA, FORMULA), (Kind.TABLE, TABLE)):
        for match in pattern.finditer(text, start):
            content = match[1] if kind is Kind.FORMULA else match[0].splitlines()[0]
            yield (kind, " ".join(content.split())), match.start()
    captions = list(re.finditer(rf"^{CAPTION.pattern}$", text[start:], re.MULTILINE))
    for match in captions:
        yield (Kind.FIGURE, match[0].strip()), start + match.start()
    picture = PICTURE.search(text, start)
    if picture and not captions:
        yield (Kind.FIGURE, ""), picture.start()
