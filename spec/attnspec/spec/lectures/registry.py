"""What a lecture shows, page by page, and who in the specification owns it.

The owner of an item is named: an operation, a law, a question of semantics, an erratum or a misprint. What nobody owns
has a reason instead. Owners are looked up by ``tests/spec/test_lectures.py``, which also finds every heading and every
displayed formula of a lecture in the list, where its text is at hand.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from attnspec.spec.contract.sources import Source


class Kind(Enum):
    """What an item is; a passage is a part of a page that citations call by a name, the rest is found by its form."""

    HEADING = "heading"
    FORMULA = "formula"
    FIGURE = "figure"
    TABLE = "table"
    PASSAGE = "passage"


@dataclass(frozen=True)
class Item:
    """One thing that a page shows; ``ValueError`` unless it has either owners or a reason why it has none.

    ``text`` is a heading, a caption, the LaTeX of a formula, or the first words of a table or passage, as the text of
    the lecture has it; a picture without a number has no text. ``name`` is what citations call a passage.
    """

    kind: Kind
    text: str
    owners: tuple[str, ...] = ()
    reason: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if bool(self.owners) == bool(self.reason):
            raise ValueError(f"{self.kind.value} {self.text!r}: expected owners or a reason; got {self.owners!r}")

    @property
    def number(self) -> int | None:
        """The number of an equation that has one."""
        found = re.search(r"\\quad \((\d+)\)$", self.text) if self.kind is Kind.FORMULA else None
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Page:
    """What stands under one heading."""

    heading: Item
    items: tuple[Item, ...]

    @property
    def title(self) -> str:
        """The heading as citations call it: without its number, and without saying whether it poses or solves."""
        return re.sub(r"^\d(\.\d)? |^(Problem|Solution): |:$", "", self.heading.text)

    def __iter__(self) -> Iterator[Item]:
        yield self.heading
        yield from self.items

    def cited(self, passage: str) -> list[Item]:
        """What a citation means: all of the page for its title, a part of it for ``title: part`` or ``title, part``."""
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
        """What a citation of a passage means; nothing if the lecture has no such passage."""
        return [item for page in self.pages for item in page.cited(passage)]

    def equation(self, number: int) -> Item:
        """The equation of that number; ``StopIteration`` if there is none."""
        return next(item for item in self if item.number == number)


def page(heading: str, *owners: str, reason: str = "", items: Sequence[Item] = ()) -> Page:
    """A page, with the owners of what it says in words."""
    return Page(Item(Kind.HEADING, heading, owners, reason), tuple(items))


def line(text: str, *owners: str, reason: str = "", name: str = "") -> Item:
    """A line that stands alone in the text, as a heading does."""
    return Item(Kind.HEADING, text, owners, reason, name)


def formula(latex: str, *owners: str, reason: str = "") -> Item:
    """A displayed formula."""
    return Item(Kind.FORMULA, latex, owners, reason)


def figure(caption: str, *owners: str, reason: str = "") -> Item:
    """A figure with a number, by its caption."""
    return Item(Kind.FIGURE, caption, owners, reason)


def picture(*owners: str, reason: str = "") -> Item:
    """The pictures of a page, which have no number."""
    return Item(Kind.FIGURE, "", owners, reason)


def table(header: str, *owners: str, reason: str = "") -> Item:
    """A table, by its first line."""
    return Item(Kind.TABLE, header, owners, reason)


def passage(name: str, words: str, *owners: str, reason: str = "") -> Item:
    """A part of a page, by what citations call it and by its first words."""
    return Item(Kind.PASSAGE, words, owners, reason, name)
