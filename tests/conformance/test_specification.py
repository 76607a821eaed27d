"""`attnspec spec`: the whole specification as Markdown, and as a page with MathML."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from math_core import LatexError
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.reporting.catalogue import described
from attnspec.conformance.reporting.page import LABELS, as_page, mathml
from attnspec.conformance.reporting.specification import Section, as_markdown, specification, with_levels
from attnspec.spec import ERRATA, LAWS, OPERATIONS, QUESTIONS
from attnspec.spec.contract.precision import CLASSES, MODIFIERS
from attnspec.spec.contract.sources import SOURCES
from attnspec.spec.errata import MISPRINTS
from attnspec.spec.lectures import LECTURES
from attnspec.spec.lectures.registry import Kind

FORMULAS = {
    **{o.name: o.formula for o in OPERATIONS.values()},
    **{x.id: x.formula for x in LAWS.values()},
    **{
        f"{key}-{number}": item.text
        for key, lecture in LECTURES.items()
        for number, item in enumerate(i for i in lecture if i.kind is Kind.FORMULA)
    },
}
VOID_ELEMENTS = {"meta", "input", "br", "hr", "img", "link"}


class PageReader(HTMLParser):
    """The attributes of a page's elements; ``open`` lists elements not yet closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.open += [tag] if tag not in VOID_ELEMENTS else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def every(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    return specification()


@pytest.fixture(scope="module")
def page(sections: list[Section]) -> str:
    return as_page(sections)


@pytest.fixture(scope="module")
def parsed_page(page: str) -> PageReader:
    reader = PageReader()
    reader.feed(page)
    reader.close()
    return reader


# Formulas -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_every_formula_becomes_mathml_in_full(name: str) -> None:
    converted = mathml(FORMULAS[name])
    visible = re.sub(r"<annotation.*?</annotation>", "", converted, flags=re.DOTALL)
    assert re.fullmatch(r"<math[ >].*</math>", visible, re.DOTALL)
    assert visible.count("<math") == 1
    assert "merror" not in visible
    assert "\\" not in visible


def test_an_invalid_formula_is_refused() -> None:
    with pytest.raises(LatexError, match="Unknown command"):
        mathml(r"\nosuchcommand x")


# Markdown -------------------------------------------------------------------------------------------------------------


def test_everything_specified_has_a_section(sections: list[Section]) -> None:
    titles = [section.title for _, section in with_levels(sections)]
    named = {*OPERATIONS, *LAWS, *QUESTIONS, *ERRATA, *MISPRINTS}
    assert named - set(titles) == set()
    pages = [part.title for section in sections if section.anchor.startswith("lecture-") for part in section.parts]
    for key, lecture in LECTURES.items():
        headings = {page.heading.text for page in lecture.pages}
        assert headings == {t.partition(": ")[2] for t in pages if t.startswith(f"{key}, page")}


def test_operations_have_the_text_of_attnspec_show(sections: list[Section]) -> None:
    text = as_markdown(sections)
    for name in OPERATIONS:
        entry, *_ = described(name).markup.partition("\n\n- ")  # here source titles stand once, there after each entry
        assert entry in text, name


def test_the_specification_begins_with_notation_and_sources(sections: list[Section]) -> None:
    head, _, body = as_markdown(sections).partition("\n# Operations")
    assert [s for s in SOURCES.values() if f"- {s.key}: {s.title}\n" not in head] == []
    assert [q for q in QUESTIONS.values() if f"`{q.normative}` (normative)" not in body] == []
    assert [name for name in (*CLASSES, *MODIFIERS) if f"`{name}`" not in body] == []


def test_every_formula_and_owner_of_the_lectures_is_printed(sections: list[Section]) -> None:
    """An owner is the operation, law or erratum that covers an item of a lecture."""
    text = as_markdown(sections)
    for lecture in LECTURES.values():
        for item in lecture:
            assert all(f"`{owner}`" in text for owner in item.owners)
            assert item.reason.replace("<", r"\<") in text
            if item.kind is Kind.FORMULA:
                assert re.sub(r" \\quad \(\d+\)$", "", item.text).replace("|", r"\|") in text


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed(parsed_page: PageReader) -> None:
    assert parsed_page.open == []
    anchors = parsed_page.every("id")
    assert len(set(anchors)) == len(anchors)


def test_the_page_loads_no_other_files(page: str, parsed_page: PageReader) -> None:
    assert [name for _, name, _ in parsed_page.attributes if name in ("src", "srcset", "action", "xmlns")] == []
    assert "link" not in {tag for tag, _, _ in parsed_page.attributes}
    assert re.findall(r"https?:|url\(|@import|//[a-z]+\.", page) == []


def test_every_link_leads_to_a_section(parsed_page: PageReader) -> None:
    assert {target[1:] for target in parsed_page.every("href")} <= set(parsed_page.every("id"))
    assert all(target.startswith("#") for target in parsed_page.every("href"))
    assert set(parsed_page.every("data-for")) <= set(parsed_page.every("id"))


def test_every_section_is_in_the_contents(sections: list[Section], page: str) -> None:
    contents = page[page.index("<nav") : page.index("</nav>")]
    assert [s.title for _, s in with_levels(sections) if f'href="#{s.anchor}"' not in contents] == []


def test_citations_of_lectures_are_links(page: str) -> None:
    for operation in OPERATIONS.values():
        article = page[page.index(f'<article id="{operation.name}">') :].partition("</article>")[0]
        source = article[article.index(">Source:<") :].partition("</p>")[0]
        lectures = [c for c in operation.sources if c.source in LECTURES]
        assert source.count("<a href=") == len(lectures), operation.name


def test_no_formula_is_left_as_text(page: str) -> None:
    visible = re.sub(r"<annotation.*?</annotation>|<script>.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert re.findall(r"\$|\\[a-z]+|@\w+@|```", visible) == []
    assert page.count('<div class="formula"') == len(OPERATIONS) + len(LAWS)


def test_labels_are_bold_and_nothing_else(sections: list[Section], page: str) -> None:
    paragraphs = [p for _, s in with_levels(sections) for p in s.text.split("\n\n")]
    # a bold text of the page for every paragraph with a label: none is missing, and nothing else is bold
    for label in LABELS:
        labelled = [p for p in paragraphs if p.startswith(f"{label}:")]
        assert labelled, label
        assert page.count(f"<b>{label}:</b>") == len(labelled), label
    assert page.count("<b>") == sum(p.startswith(tuple(f"{label}:" for label in LABELS)) for p in paragraphs)


def test_the_page_adapts_to_its_screen(page: str) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in style
    assert re.findall(r"(?<![\w-])width: *\d+px", style) == []
    for box in (".formula", ".table"):
        assert re.search(rf"^{re.escape(box)} {{ overflow-x: auto;", style, re.MULTILINE), box


# The command ----------------------------------------------------------------------------------------------------------


def test_files_hold_the_markdown_and_the_page(tmp_path: Path, sections: list[Section], page: str) -> None:
    markdown, html = tmp_path / "spec.md", tmp_path / "spec.html"
    done = CliRunner().invoke(app, ["spec", "--markdown", str(markdown), "--html", str(html)])
    assert (done.exit_code, done.output) == (0, "")
    assert markdown.read_text(encoding="utf-8") == as_markdown(sections)
    assert html.read_text(encoding="utf-8") == page


def test_the_command_prints_the_markdown() -> None:
    printed = " ".join(CliRunner().invoke(app, ["spec"]).output.split())
    for operation in OPERATIONS.values():
        assert operation.name in printed
    assert "Owned by: attention_pooling" in printed
