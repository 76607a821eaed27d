"""Texts that people read: ``python -m tests.texts first-lines`` or ``messages`` prints them, with their places."""

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.modules import ROOT, Module, modules

TESTS = [Module(".", path) for path in sorted((ROOT / "tests").rglob("*.py")) if "samples" not in path.parts]
WORD = re.compile(r"[A-Za-z]{2,}")


class Text(NamedTuple):
    path: str
    line: int
    text: str


def everywhere() -> list[Module]:
    """The modules of the four portions and of the tests."""
    return [*modules(), *TESTS]


def docstrings(module: Module) -> Iterator[Text]:
    """All docstrings, those of constants and fields included."""
    path = str(module.path.relative_to(ROOT))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(path, node.lineno, node.value.value)


def first_lines(module: Module) -> Iterator[Text]:
    """The first sentence of every docstring, up to a full stop, colon or semicolon."""
    for path, line, text in docstrings(module):
        head = re.match(r"\s*(.*?(?:[.:;](?=\s)|\n\n|$))", text, re.DOTALL)
        yield Text(path, line, " ".join((head[1] if head else text).split()))


def messages(module: Module) -> Iterator[Text]:
    """Every other text of at least three words, such as errors and help; ``{…}`` stands for a value."""
    path = str(module.path.relative_to(ROOT))
    # parts of an f-string belong to the whole; a string as a statement is a docstring
    inside = {id(v) for n in ast.walk(module.tree) if isinstance(n, ast.JoinedStr) for v in ast.walk(n) if v is not n}
    inside |= {id(n.value) for n in ast.walk(module.tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.expr) or id(node) in inside:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{…}" for v in node.values)
        if len(WORD.findall(text)) >= 3:
            yield Text(path, node.lineno, text)


if __name__ == "__main__":
    collect = {"first-lines": first_lines, "messages": messages}[sys.argv[1]]
    # strings of tests are inputs and expectations, not messages to users
    for module in everywhere() if collect is first_lines else modules():
        for path, line, text in collect(module):
            print(f"{path}:{line}: {text}")
