"""Judging modules name no argument, size or operation: they ask the Protocol."""

import ast
from collections.abc import Iterator

import pytest

from attnspec.spec import OPERATIONS

from .modules import Module, modules

JUDGING = ("laws", "inputs", "judging", "mutants", "rediscovered", "variants")
"""The packages of `conformance` that judge, and the laws in `spec`."""


def names() -> frozenset[str]:
    """Names of operations, arguments, arrays and sizes: whole, and their last parts."""
    all_names: set[str] = set()
    for operation in OPERATIONS.values():
        paths = [leaf.path for leaf in (*operation.leaves, *operation.outputs)]
        all_names |= {operation.name, *operation.call.names, *operation.sizes, *paths}
        all_names |= {name.rsplit(".", 1)[-1] for name in (*operation.sizes, *paths)}
    return frozenset(all_names) - {"result"}


NAMES = names()
SEARCHES = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "partition", "split", "match"})
"""Methods that compare a text with the beginning, or another part, of a name."""


def judging_modules() -> list[Module]:
    return [m for m in modules("spec", "conformance") if set(JUDGING) & set(m.name.split(".")[2:3])]


def exempt_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes in which a name is allowed: docstrings, decorators, messages and members of enumerations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            yield node.body[0]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from node.decorator_list
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
            yield from node.body
        if isinstance(node, ast.JoinedStr | ast.Raise):
            yield node


def names_in(tree: ast.AST) -> list[tuple[int, str]]:
    """Lines whose strings are names, or are searched for in names."""
    excepted = {id(inner) for node in exempt_nodes(tree) for inner in ast.walk(node)}
    hits = []
    for node in ast.walk(tree):
        if id(node) in excepted:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES:
            hits.append((node.lineno, node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            texts = [n for a in node.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
            hits += [(n.lineno, n.value) for n in texts if isinstance(n.value, str) and is_part(n.value)]
    return sorted(set(hits))


def is_part(text: str) -> bool:
    """True if a name begins with the text, which begins with a letter."""
    return bool(text.strip("_")) and text[0].isalpha() and any(name.startswith(text) for name in NAMES)


@pytest.mark.parametrize("module", judging_modules(), ids=lambda m: m.name)
def test_no_judging_module_names_an_argument(module: Module) -> None:
    assert names_in(module.tree) == []


@pytest.mark.parametrize(
    "line",
    [
        'arguments["key"]',
        'x = arguments.array("w_q")',
        'if name.startswith("w"): pass',
        'if operation.name in ("softmax",): pass',
        'sizes = {"n": 3}',
        'd = sizes.get("heads", 1)',
        'leaf.path.endswith("gain")',
        'path = "parameters.attention.w_o"',
    ],
)
def test_a_name_in_code_is_found(line: str) -> None:
    assert names_in(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        '"""The key."""',
        '@mutant(operations=("softmax",))\ndef wrong(): pass',
        'raise ValueError("key")',
        'f"the {key} of key"',
        'class Reason(StrEnum):\n    VALUE = "value"',
        'x = "the keys"',
    ],
)
def test_a_name_in_prose_is_allowed(line: str) -> None:
    assert names_in(ast.parse(line)) == []
