"""Docstrings say at once what comes back or what is done."""

import ast
import re

import pytest

from .modules import Module, modules

BEGINNINGS = re.compile(r"(What|Whether|Which|How|Where|The same)\b")
"""Words after which the reader still does not know what comes back."""


def begun_otherwise(tree: ast.AST) -> list[tuple[int, str]]:
    """Return the lines and first lines of docstrings with such a beginning, those of constants included."""
    return [
        (node.lineno, text.partition("\n")[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(text := node.value.value, str) and BEGINNINGS.match(text)
    ]


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_a_docstring_begins_with_what_comes_back(module: Module) -> None:
    assert begun_otherwise(module.tree) == [], "expected a noun or an imperative, such as “Return whether …”"


@pytest.mark.parametrize("docstring", ["What a call costs.", "Whether it fits.", "The same for rows."])
def test_such_a_beginning_is_found(docstring: str) -> None:
    assert begun_otherwise(ast.parse(f'def f():\n    """{docstring}"""'))
    assert begun_otherwise(ast.parse(f'X = 1\n"""{docstring}"""'))
