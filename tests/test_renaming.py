"""Names of arguments and sizes change nothing: laws, verdicts and counts follow roles.

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

    def renamed_text(self, text: str) -> str:
        names = {**self.sizes, **self.arguments}
        return re.sub(r"[a-z]\w*", lambda m: names.get(m[0], m[0]), text)

    def shape(self, text: str) -> str:
        return re.sub(r"(?<![*#\w])([a-z]\w*)|(?<=#)([a-z]\w*)|(?<=\w\*)([a-z]\w*)", self._size, text)

    def _size(self, match: re.Match[str]) -> str:
        return self.sizes.get(match[0], match[0])

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.arguments.get(node.arg, node.arg)
        if node.annotation is not None:
            node.annotation = self.annotation(node.annotation)
        return node

    def annotation(self, node: ast.expr) -> ast.expr:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                inner.value = self.shape(inner.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
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
        """Rewrite ``@operation(…)``; declare the axes and the flag that new names no longer imply."""
        for keyword in node.keywords:
            if keyword.arg in {"pooled", "linear", "ordered", "causal", "scores_scale_with"}:
                for inner in ast.walk(keyword.value):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        inner.value = self.renamed_text(inner.value)
        meanings = "{" + ", ".join(f"{name!r}: Axis({axis.value})" for name, axis in self.axes.items()) + "}"
        node.keywords = [k for k in node.keywords if k.arg != "axes"]
        added = {"axes": meanings}
        if self.flag is not None:
            added |= {
                "causal": repr(self.renamed_text(" ".join(self.causal))),
                "ordered": repr(self.arguments[self.flag]),
            }
        node.keywords += [ast.keyword(word, ast.parse(value, mode="eval").body) for word, value in added.items()]


def rename_in_file(path: Path, names: Mapping[str, Renaming], kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> None:
    """Rename the operations among the classes or functions of a chapter of the copy."""
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
def renamed_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which the three operations are renamed."""
    folder = tmp_path_factory.mktemp("renamed")
    for portion in PORTIONS:
        shutil.copytree(ROOT / portion, folder / portion, ignore=shutil.ignore_patterns("__pycache__"))
    for chapter in {OPERATIONS[name].chapter for name in RENAMED}:
        own = [name for name in RENAMED if OPERATIONS[name].chapter == chapter]
        protocols = {OPERATIONS[name].protocol.__name__: Renaming(name) for name in own}
        rename_in_file(folder / "spec" / "attnspec" / "spec" / f"{chapter}.py", protocols, ast.ClassDef)
        formulas = {name: Renaming(name) for name in own}
        rename_in_file(folder / "reference" / "attnspec" / "reference" / f"{chapter}.py", formulas, ast.FunctionDef)
    return folder


def run(tree: Path, *arguments: str) -> str:
    """Return the output of Python with the package of a tree."""
    path = os.pathsep.join(str(tree / portion) for portion in PORTIONS)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_copy_has_other_names(renamed_tree: Path) -> None:
    show = "print(*o['general_attention'].call.names, *o['bahdanau_context'].sizes)"
    code = f"from attnspec.spec import OPERATIONS as o; {show}"
    assert run(renamed_tree, "-c", code).split() == [
        *(f"argument_{i}" for i in range(6)),
        *(f"size_{i}" for i in range(4)),
    ]


def test_the_same_laws_govern(renamed_tree: Path) -> None:
    code = (
        "import json; from attnspec.spec import LAWS;"
        f"print(json.dumps({{x.id: [o.name for o in x.operations if o.name in {RENAMED}] for x in LAWS.values()}}))"
    )
    ours = {law.id: [o.name for o in law.operations if o.name in RENAMED] for law in LAWS.values()}
    assert json.loads(run(renamed_tree, "-c", code)) == ours


def verdicts(tree: Path, folder: Path) -> list[Any]:
    """Law, dtype, status and counts of every verdict on the reference."""
    report = folder / "report.json"
    chosen = [word for name in RENAMED for word in ("--operation", name)]
    module = "attnspec.conformance.cli"
    run(tree, "-P", "-m", module, "check", "reference", "--workers", "1", "--json", str(report), *chosen)
    keys = ("operation", "law", "dtype", "status", "examples", "not_judged", "error_ratio")
    return [[r[k] for k in keys] for r in json.loads(report.read_text())["results"]]


@pytest.mark.slow
def test_renaming_changes_no_verdict_and_no_count(renamed_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = verdicts(ROOT, tmp_path / "ours"), verdicts(renamed_tree, tmp_path / "theirs")
    assert len(ours) > 150
    assert theirs == ours
