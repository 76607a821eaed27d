"""Docstrings begin with the result or action, and names say what they hold."""

import ast
import re
from collections.abc import Iterator

import pytest

from . import texts
from .modules import ROOT, Module
from .texts import Text

BEGINNINGS = re.compile(r"(What|Whether|Which|How|Where|The same)\b")
"""Words after which the reader still does not know what comes back."""

VAGUE = {"found", "given", "told", "made", "things", "none", "rest", "said", "asked", "dear", "strange", "heard"}
"""Names that say nothing about what they hold, and words that only we understood: a slow check was "dear"."""


def unclear_first_lines(module: Module) -> list[Text]:
    """First lines that begin with one of ``BEGINNINGS``, or have more than 15 words."""
    return [t for t in texts.first_lines(module) if BEGINNINGS.match(t.text) or len(t.text.split()) > 15]


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names of functions, classes, parameters and variables, where they are defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def vague_names(tree: ast.AST) -> list[tuple[int, str]]:
    return [(line, name) for line, name in bound_names(tree) if name.strip("_").lower() in VAGUE]


@pytest.mark.parametrize("module", texts.everywhere(), ids=lambda m: str(m.path.relative_to(ROOT)))
def test_first_lines_and_names_are_clear(module: Module) -> None:
    assert unclear_first_lines(module) == [], "expected a noun or an imperative of at most 15 words"
    assert vague_names(module.tree) == [], "expected names of what they hold, such as matches or arguments"


@pytest.mark.parametrize("docstring", ["What a call costs.", "Whether it fits.", "The same for rows.", "one " * 16])
def test_an_unclear_first_line_is_listed(docstring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = texts.everywhere()[0]
    for source in (f'def f():\n    """{docstring}"""', f'X = 1\n"""{docstring}"""'):
        monkeypatch.setitem(vars(module), "tree", ast.parse(source))  # where a cached property keeps its value
        assert len(unclear_first_lines(module)) == 1


@pytest.mark.parametrize("source", ["found = 1", "def f(given): ...", "def told(): ...", "_rest = 1"])
def test_a_vague_name_is_listed(source: str) -> None:
    assert len(vague_names(ast.parse(source))) == 1


def test_the_glossary_has_at_most_sixty_terms_with_one_meaning_each() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    terms = [term for term, _ in rows if term not in ("term", "---")]
    assert len(terms) == len(set(terms)) <= 60
    assert not VAGUE & set(terms)
