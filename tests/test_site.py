"""The documentation site: a page for each operation, links that lead somewhere, a search that finds."""

import json
import os
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from attnspec.spec import LAWS, OPERATIONS, QUESTIONS

from .modules import ROOT

BUILT = os.environ.get("ATTNSPEC_SITE")
needs_site = pytest.mark.skipif(BUILT is None, reason="`nox -s site` builds the site and tests it")
SECTIONS = {"Shapes", "Edges", "Reference", "Worked number", "Sources"}
JUDGED = {"Laws", "Who conforms"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    runpy.run_path(str(ROOT / "docs" / "site" / "pages.py"))["write"](folder)
    return folder


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_operation_has_a_page_with_every_part(source: Path) -> None:
    for o in OPERATIONS.values():
        text = read(source / "operations" / f"{o.name}.md")
        headings = set(re.findall(r"^## (.*)$", text, re.MULTILINE))
        expected = SECTIONS if o.reference_only else SECTIONS | JUDGED
        has_choices = any(q.concerns(o) for q in QUESTIONS.values()) and not o.reference_only
        assert expected | ({"Choices"} if has_choices else set()) <= headings, o.name
        assert o.formula in text
        assert "\nprints\n" in text


@pytest.mark.slow
def test_every_law_is_on_the_page_of_its_chapter(source: Path) -> None:
    for x in LAWS.values():
        assert f"\n## {x.id}\n" in read(source / "laws" / f"{x.chapter}.md")


class Page(HTMLParser):
    """Targets and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[key] for key in ("id", "name") if key in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        self.loaded += [named[key] for key in ("src", "href") if key in named and tag in ("script", "link", "img")]


@pytest.fixture(scope="module")
def built() -> dict[Path, Page]:
    folder = Path(BUILT or "").resolve()
    return {file: Page(read(file)) for file in folder.rglob("*.html")}


@needs_site
def test_no_link_is_dead(built: dict[Path, Page]) -> None:
    dead = []
    for file, page in built.items():
        for link in (*page.links, *page.loaded):
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            goal = (file.parent / path.partition("?")[0]).resolve() if path else file
            if not goal.is_file() or (anchor and goal in built and anchor not in built[goal].anchors):
                dead.append((file.name, link))
    assert dead == []


@needs_site
def test_nothing_is_loaded_from_elsewhere(built: dict[Path, Page]) -> None:
    assert [(file.name, x) for file, page in built.items() for x in page.loaded if "://" in x] == []


@needs_site
@pytest.mark.parametrize("word", ["causal", "bf16", "window"])
def test_the_search_knows_the_words_of_the_field(word: str) -> None:
    index = read(Path(BUILT or "") / "searchindex.js")
    terms = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    assert terms[word]


@needs_site
def test_the_links_for_agents_lead_somewhere() -> None:
    folder = Path(BUILT or "")
    links = re.findall(r"\]\(([^)]+)\)", read(folder / "llms.txt"))
    assert len(links) > 8
    assert [link for link in links if not (folder / link).is_file()] == []
