"""What operations call their arguments and sizes changes nothing: laws, verdicts and counts are those of roles.

In a copy of the package every argument and size of three operations gets a name that says nothing, in the Protocol and
in the formula; both are judged with the same seed.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnspec.spec import LAWS, OPERATIONS

from .modules import PORTIONS, ROOT

RENAMED = ("general_attention", "cross_attention", "bahdanau_context")
"""With and without a causal flag, projections, and an axis of queries. No formula gives them arguments by name."""


class Renaming(ast.NodeTransformer):
    """The names of one operation's arguments and sizes exchanged for numbers."""

    def __init__(self, name: str) -> None:
        operation = OPERATIONS[name]
        self.arguments = {old: f"argument_{i}" for i, old in enumerate(operation.call.names)}
        self.sizes = {old: f"size_{i}" for i, old in enumerate(operation.sizes)}
        self.axes = {new: operation.axis(old) for old, new in self.sizes.items()}
        self.causal = operation.causal
        self.flag = operation.flag

    def words(self, text: str) -> str:
        """A text of names, each exchanged."""
        names = {**self.sizes, **self.arguments}
        return re.sub(r"[a-z]\w*", lambda m: names.get(m[0], m[0]), text)

    def shape(self, text: str) -> str:
        """A shape, with its sizes exchanged."""
        return re.sub(r"(?<![*#\w])([a-z]\w*)|(?<=#)([a-z]\w*)|(?<=\w\*)([a-z]\w*)", self._size, text)

    def _size(self, match: re.Match[str]) -> str:
        return self.sizes.get(match[0], match[0])

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """An argument and its annotation."""
        node.arg = self.arguments.get(node.arg, node.arg)
        if node.annotation is not None:
            node.annotation = self.annotation(node.annotation)
        return node

    def annotation(self, node: ast.expr) -> ast.expr:
        """An annotation with its shapes exchanged."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                inner.value = self.shape(inner.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A use of an argument."""
        node.id = self.arguments.get(node.id, node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A signature, the annotation of its result, and the body."""
        if node.returns is not None:
            node.returns = self.annotation(node.returns)
        node.args = self.visit(node.args)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def declaration(self, node: ast.Call) -> None:
        """The words of ``@operation``, with those that no name gives any more."""
        for keyword in node.keywords:
            if keyword.arg in {"pooled", "linear", "ordered", "causal", "sharpened"}:
                for inner in ast.walk(keyword.value):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        inner.value = self.words(inner.value)
        meanings = "{" + ", ".join(f"{name!r}: Axis({axis.value})" for name, axis in self.axes.items()) + "}"
        node.keywords = [k for k in node.keywords if k.arg != "axes"]
        added = {"axes": meanings}
        if self.flag is not None:
            added |= {"causal": repr(self.words(" ".join(self.causal))), "ordered": repr(self.arguments[self.flag])}
        node.keywords += [ast.keyword(word, ast.parse(value, mode="eval").body) for word, value in added.items()]


def rewritten(path: Path, names: Mapping[str, Renaming], kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> None:
    """A chapter of the copy, with the operations among its classes or functions renamed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, kind) and node.name in names:
            renaming = names[node.name]
            if isinstance(node, ast.ClassDef):
                renaming.declaration(next(d for d in node.decorator_list if isinstance(d, ast.Call)))
                node.body = [renaming.visit(inner) for inner in node.body]
            else:
                renaming.visit(node)
    text = ast.unparse(tree)
    if kind is ast.ClassDef:
        text = text.replace("from typing import", "from attnspec.spec.contract.axes import Axis\nfrom typing import", 1)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which the three operations are renamed."""
    folder = tmp_path_factory.mktemp("renamed")
    for portion in PORTIONS:
        shutil.copytree(ROOT / portion, folder / portion, ignore=shutil.ignore_patterns("__pycache__"))
    for chapter in {OPERATIONS[name].chapter for name in RENAMED}:
        own = [name for name in RENAMED if OPERATIONS[name].chapter == chapter]
        protocols = {OPERATIONS[name].protocol.__name__: Renaming(name) for name in own}
        rewritten(folder / "spec" / "attnspec" / "spec" / f"{chapter}.py", protocols, ast.ClassDef)
        formulas = {name: Renaming(name) for name in own}
        rewritten(folder / "reference" / "attnspec" / "reference" / f"{chapter}.py", formulas, ast.FunctionDef)
    return folder


def run(tree: Path, *arguments: str) -> str:
    """What Python prints with the package of a tree."""
    path = os.pathsep.join(str(tree / portion) for portion in PORTIONS)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_copy_has_other_names(copy: Path) -> None:
    show = "print(*o['general_attention'].call.names, *o['bahdanau_context'].sizes)"
    code = f"from attnspec.spec import OPERATIONS as o; {show}"
    assert run(copy, "-c", code).split() == [*(f"argument_{i}" for i in range(6)), *(f"size_{i}" for i in range(4))]


def test_the_same_laws_govern(copy: Path) -> None:
    code = (
        "import json; from attnspec.spec import LAWS;"
        f"print(json.dumps({{x.id: [o.name for o in x.operations if o.name in {RENAMED}] for x in LAWS.values()}}))"
    )
    ours = {law.id: [o.name for o in law.operations if o.name in RENAMED] for law in LAWS.values()}
    assert json.loads(run(copy, "-c", code)) == ours


def verdicts(tree: Path, folder: Path) -> list[Any]:
    """Law, dtype, status and counts of every verdict on the reference."""
    report = folder / "report.json"
    chosen = [word for name in RENAMED for word in ("--operation", name)]
    module = "attnspec.conformance.cli"
    run(tree, "-P", "-m", module, "check", "reference", "--workers", "1", "--json", str(report), *chosen)
    keys = ("operation", "law", "dtype", "status", "examples", "not_judged", "error_ratio")
    return [[r[k] for k in keys] for r in json.loads(report.read_text())["results"]]


@pytest.mark.slow
def test_verdicts_and_counts_stay(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = verdicts(ROOT, tmp_path / "ours"), verdicts(copy, tmp_path / "theirs")
    assert len(ours) > 150
    assert theirs == ours
