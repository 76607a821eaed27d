"""Contents of a lecture by page, and their owners: parts of the specification that cover them.

An owner is the name of an operation, a law, a question of semantics, an erratum or a misprint; no two of them have the
same name. An item without owners gives a reason. ``tests/spec/test_lectures.py`` looks up all owners. With the texts of
the lectures, it also checks that every heading, formula, figure and table is listed in order, and how passages
begin.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from attnspec.spec.contract.sources import Source


class Kind(Enum):
    """Kinds of items. A passage is a part of a page that citations name; other kinds show by their form."""

    HEADING = "heading"
    FORMULA = "formula"
    FIGURE = "figure"
    TABLE = "table"
    PASSAGE = "passage"


@dataclass(frozen=True)
class Item:
    """An item of a page; ``ValueError`` unless it has either owners or a reason for having no owner.

    ``text`` is a heading, a caption, the LaTeX of a formula, or the first words of a table or passage, exactly as in
    the lecture's text. A picture without a number has no text. ``name`` is the name of a passage in citations.
    """

    kind: Kind
    text: str
    owners: tuple[str, ...] = ()
    reason: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if bool(self.owners) == bool(self.reason):
            raise ValueError(
                f"{self.kind.value} {self.text!r}: expected owners or a reason; got {self.owners!r}, {self.reason!r}"
            )

    @property
    def number(self) -> int | None:
        """Number of an equation; None for an unnumbered formula or another item."""
        match = re.search(r"\\quad \((\d+)\)$", self.text) if self.kind is Kind.FORMULA else None
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Page:
    """A heading and the items under it."""

    heading: Item
    items: tuple[Item, ...]

    @property
    def title(self) -> str:
        """Heading as cited: without its number, "Problem: " or "Solution: ", and a final colon."""
        return re.sub(r"^\d(\.\d)? |^(Problem|Solution): |:$", "", self.heading.text)

    def __iter__(self) -> Iterator[Item]:
        yield self.heading
        yield from self.items

    def cited(self, passage: str) -> list[Item]:
        """Items that a citation names: all for the title, or one for ``title: part`` and ``title, part``."""
        title, _, part = passage.casefold().partition(self.title.casefold())
        if title:
            return []
        if not part:
            return list(self)
        return [i for i in self.items if i.name and part in (f": {i.name}".casefold(), f", {i.name}".casefold())]


@dataclass(frozen=True)
class Lecture:
    """A lecture, page by page."""

    source: Source
    pages: tuple[Page, ...]

    def __iter__(self) -> Iterator[Item]:
        for page in self.pages:
            yield from page

    def cited(self, passage: str) -> list[Item]:
        """Items that a citation of a passage names; empty if the lecture has no such passage."""
        return [item for page in self.pages for item in page.cited(passage)]

    def equation(self, number: int) -> Item:
        """Equation with a number; ``StopIteration`` if there is none."""
        return next(item for item in self if item.number == number)


def page(heading: str, *owners: str, reason: str = "", items: Sequence[Item] = ()) -> Page:
    """Make a page; the owners are those of its prose."""
    return Page(Item(Kind.HEADING, heading, owners, reason), tuple(items))


def line(text: str, *owners: str, reason: str = "", name: str = "") -> Item:
    """Make a line that stands alone in the text, as a heading does."""
    return Item(Kind.HEADING, text, owners, reason, name)


def formula(latex: str, *owners: str, reason: str = "") -> Item:
    """Make a displayed formula."""
    return Item(Kind.FORMULA, latex, owners, reason)


def figure(caption: str, *owners: str, reason: str = "") -> Item:
    """Make a numbered figure from its caption."""
    return Item(Kind.FIGURE, caption, owners, reason)


def picture(*owners: str, reason: str = "") -> Item:
    """Make an item for the unnumbered pictures of a page."""
    return Item(Kind.FIGURE, "", owners, reason)


def table(header: str, *owners: str, reason: str = "") -> Item:
    """Make a table from its first line."""
    return Item(Kind.TABLE, header, owners, reason)


def passage(name: str, first_words: str, *owners: str, reason: str = "") -> Item:
    """Make a passage from its name in citations and its first words."""
    return Item(Kind.PASSAGE, first_words, owners, reason, name)
