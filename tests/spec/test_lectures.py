"""Everything that the lectures show is listed, with an owner or a reason."""

import os
from collections.abc import Iterator
from itertools import accumulate, zip_longest
from pathlib import Path

import pytest

from attnspec.spec import ERRATA, LAWS, OPERATIONS, QUESTIONS
from attnspec.spec.contract.sources import S0, Citation
from attnspec.spec.errata import MISPRINTS
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Item, Kind, Lecture, formula, line, page

from .lecture_text import RUN_IN, KindAndText, formula_of, items_in

FILES = {
    "S0": "000_6f85027c85dba559.txt",
    "S1": "001_306c721e3a021aea.txt",
    "S2": "002_0e8ff0e61e58b52f.txt",
    "S3": "003_fa419b5a98445b7d.txt",
    "S4": "004_9a617dc7073f2b10.txt",
}
"""The texts of the lectures, in the folder that the environment variable ATTNSPEC_SOURCES names."""

KNOWN = {*OPERATIONS, *LAWS, *QUESTIONS, *ERRATA, *MISPRINTS}
EVERY = [pytest.param(lecture, id=key) for key, lecture in LECTURES.items()]


def text_of(lecture: Lecture) -> str:
    """The text of a lecture; the test is skipped where it is not at hand."""
    folder = os.environ.get("ATTNSPEC_SOURCES")
    if not folder:
        pytest.skip("ATTNSPEC_SOURCES does not name the folder with the texts of the lectures")
    return (Path(folder) / FILES[lecture.source.key]).read_text(encoding="utf-8")


# Without the texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lecture", EVERY)
def test_every_item_has_owners_that_exist_or_a_reason_in_words(lecture: Lecture) -> None:
    assert sorted({owner for item in lecture for owner in item.owners} - KNOWN) == []
    assert [item for item in lecture if not item.owners and len(item.reason.split()) < 3] == []
    assert [item for item in lecture if len(set(item.owners)) < len(item.owners)] == []


def test_items_have_owners_or_a_reason() -> None:
    with pytest.raises(ValueError, match="formula 'x': expected owners or a reason; got \\(\\), ''"):
        formula("x")
    with pytest.raises(ValueError, match="expected owners or a reason"):
        formula("x", "softmax", reason="a reason that is too many")


@pytest.mark.parametrize("number", S0.equations)
def test_a_numbered_equation_is_owned_by_the_operations_and_errata_that_cite_it(number: int) -> None:
    owners = set(LECTURES["S0"].equation(number).owners)
    citing = {o.name for o in OPERATIONS.values() if S0.equation(number) in o.sources}
    wrong = {e.identifier for e in ERRATA.values() if e.source == S0.equation(number)}
    assert owners & set(OPERATIONS)
    assert citing | wrong <= owners


def test_equations_are_numbered_as_in_the_list_of_sources() -> None:
    assert [item.number for item in LECTURES["S0"] if item.number] == list(S0.equations)


def cited() -> Iterator[tuple[str, Citation]]:
    """Every passage of a lecture that is cited, and who cites it."""
    citing = {o.name: o.sources for o in OPERATIONS.values()} | {x.id: x.sources for x in LAWS.values()}
    citing |= {e.identifier: (e.source,) for e in ERRATA.values()}
    citing |= {m.identifier: (m.source,) for m in MISPRINTS.values()}
    for name, sources in citing.items():
        yield from ((name, c) for c in sources if c.source in LECTURES and c.passage is not None)


def test_every_cited_passage_is_a_heading_or_a_named_part_of_a_page() -> None:
    unknown = [(name, str(c)) for name, c in cited() if not LECTURES[c.source].cited(c.passage or "")]
    assert unknown == []


def test_operations_and_errata_own_what_they_cite() -> None:
    disowned = [
        f"{name}: {c}"
        for name, c in cited()
        if name not in LAWS and all(name not in item.owners for item in LECTURES[c.source].cited(c.passage or ""))
    ]
    advice = "name each among the owners of the passage that it cites, in spec/attnspec/spec/lectures/"
    assert not disowned, f"{advice}: {', '.join(disowned)}"


def test_every_erratum_is_named_where_it_is() -> None:
    owners = {owner for lecture in LECTURES.values() for item in lecture for owner in item.owners}
    assert sorted({*ERRATA, *MISPRINTS} - owners) == []


def test_passages_are_cited_as_they_are_printed() -> None:
    cited_page = page("2.1 Notations: B", "softmax", items=[line("Others:", "layer_norm", name="Others")])
    assert cited_page.title == "Notations: B"
    assert len(cited_page.cited("notations: b")) == 2
    assert [item.owners for item in cited_page.cited("Notations: B: others")] == [("layer_norm",)]
    assert cited_page.cited("Notations: B: encoder") == cited_page.cited("Notations") == []


# With the texts -------------------------------------------------------------------------------------------------------


def listed(lecture: Lecture) -> list[Item]:
    """All items but passages, which the rule cannot recognise."""
    return [item for item in lecture if item.kind is not Kind.PASSAGE]


def matches(shown: KindAndText, item: Item) -> bool:
    """True if a listed item is the shown one; a run-in heading is the first of its words."""
    kind, text = shown
    if item.kind is kind is Kind.FORMULA:
        return formula_of(text) == formula_of(item.text)
    begins = RUN_IN.fullmatch(f"{text} ") and text.startswith(f"{item.text} ")
    return kind is item.kind and (text == item.text or bool(begins))


def differences(shown: list[KindAndText], items: list[Item]) -> list[tuple[KindAndText | None, Item | None]]:
    """The first pair of a shown and a listed item that differ."""
    pairs = zip_longest(shown, items)
    return [(f, i) for f, i in pairs if f is None or i is None or not matches(f, i)][:1]


@pytest.mark.parametrize("lecture", EVERY)
def test_everything_that_a_lecture_shows_is_listed_in_order(lecture: Lecture) -> None:
    shown = [what for what, _ in items_in(lecture.source.key, text_of(lecture))]
    assert differences(shown, listed(lecture)) == []


@pytest.mark.parametrize("lecture", EVERY)
def test_an_entry_that_is_missing_is_missed(lecture: Lecture) -> None:
    shown = [what for what, _ in items_in(lecture.source.key, text_of(lecture))]
    items = listed(lecture)
    for number, item in enumerate(items):
        assert differences(shown, items[:number] + items[number + 1 :]), item


@pytest.mark.parametrize("lecture", EVERY)
def test_an_added_heading_and_formula_are_found(lecture: Lecture) -> None:
    text, key = text_of(lecture), lecture.source.key
    before = [what for what, _ in items_in(key, text)]
    heading = {"S0": "ONE PAGE MORE", "S2": "9.1 One Page More", "S4": "## One Page More"}.get(key, "One page more")
    after = [what for what, _ in items_in(key, f"{text.rstrip()}\n\n{heading}\n\n$$x = y$$\n")]
    assert after == [*before, (Kind.HEADING, heading.lstrip("# ")), (Kind.FORMULA, "x = y")]


@pytest.mark.parametrize("lecture", EVERY)
def test_no_formula_and_no_figure_escapes_the_rule(lecture: Lecture) -> None:
    text = text_of(lecture)
    kinds = [kind for (kind, _), _ in items_in(lecture.source.key, text)]
    assert text.count("$$") == 2 * kinds.count(Kind.FORMULA)
    captions = [line for line in text.splitlines() if line.startswith("Figure ")]
    assert sum(item.text.startswith("Figure ") for item in lecture) == len(captions)


@pytest.mark.parametrize("lecture", EVERY)
def test_passages_stand_on_their_pages_in_order(lecture: Lecture) -> None:
    text = text_of(lecture)
    starts = [start for _, start in items_in(lecture.source.key, text)]
    first = list(accumulate((sum(i.kind is not Kind.PASSAGE for i in p) for p in lecture.pages), initial=0))
    for shown, start, end in zip(lecture.pages, first, first[1:], strict=False):
        body = text[starts[start] : starts[end] if end < len(starts) else len(text)]
        places = [body.find(item.text) for item in shown if item.kind is Kind.PASSAGE]
        assert -1 not in places, shown.heading.text
        assert places == sorted(places), shown.heading.text
