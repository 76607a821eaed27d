"""What the pages of lectures show and who owns it, and where they show what something owns, as Markdown."""

from attnspec.conformance.reporting.markup import coded, literal, table
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Item, Kind, Page


def page_entry(page: Page) -> str:
    """Who owns a page of a lecture, and each thing that it shows."""
    owned = f"{'Owned by' if page.heading.owners else 'No owner'}: {_owners(page.heading)}"
    rows = [(_kind(item), _shown(item), _owners(item)) for item in page.items]
    shown = table(["", "what the page shows", "owned by, or why by nobody"], rows)
    return f"{owned}\n\n{shown}" if rows else owned


def places_of(name: str) -> str:
    """Where the lectures show what this name owns, each title once; nothing if nowhere."""
    found: dict[str, list[str]] = {}
    for key, lecture in LECTURES.items():
        for page in lecture.pages:
            mine = [item for item in page if name in item.owners]
            if mine:
                numbers = found.setdefault(f"`{key} “{page.title}”`", [])
                numbers += [f"({i.number})" for i in mine if i.number]
    return "; ".join(" ".join([place, *numbers]) for place, numbers in found.items())


def _kind(item: Item) -> str:
    if item.kind is Kind.FIGURE and not item.text:
        return "picture"
    if item.number:
        return f"({item.number})"
    return {Kind.HEADING: "line", Kind.PASSAGE: "words"}.get(item.kind, item.kind.value)


def _shown(item: Item) -> str:
    if item.kind is Kind.FORMULA:
        latex = item.text.removesuffix(rf" \quad ({item.number})")
        return f"$`{latex}`$"
    if item.kind is Kind.PASSAGE:
        return literal(f"{item.name}: “{item.text} …”")
    return literal(item.text) or "–"


def _owners(item: Item) -> str:
    return coded(item.owners) if item.owners else item.reason
