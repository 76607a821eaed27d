"""Digests of the code that trials run: equal digests mean equal outcomes.

Imports are followed. Digests are of syntax trees without docstrings: comments, layout and docstrings change none.
"""

import ast
import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path

from attnspec.conformance.judging.cases import governing_laws
from attnspec.conformance.judging.checks import CHECKS
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.running.trials import Trial, run_trial
from attnspec.reference.defining.definition import REFERENCE
from attnspec.spec.contract.operation import OPERATIONS

LAWS = "attnspec.conformance.laws."


def digest(trial: Trial, *, assigned: bool) -> str:
    """Return the digest of a trial.

    It covers the code that every trial runs, the module of the mutant or variant, and its operations' Protocols,
    references and checks. If its ``assigned`` laws killed a mutant, only their checks are covered: no others ran.
    """
    subject = trial.subject
    laws = frozenset(subject.breaks) if assigned and isinstance(subject, Mutant) else None
    return _digest(subject.alteration.__module__, subject.operations, laws)


@cache
def _digest(alteration: str, operations: tuple[str, ...], laws: frozenset[str] | None) -> str:
    modules, names = {run_trial.__module__, alteration}, list(operations)
    for operation in map(OPERATIONS.__getitem__, operations):
        governing = governing_laws(operation)
        # All laws are named, since a law's position among them determines its examples. The formula's check always
        # counts: it guides the search for examples.
        relevant = [law for law in governing if laws is None or law in laws or law == FORMULA]
        checks = [check for law in relevant for check in CHECKS[law] if check.concerns(operation)]
        names += (*governing, *(check.name for check in checks))
        modules |= {operation.protocol.__module__, REFERENCE[operation.name].__module__}
        modules |= {check.function.__module__ for check in checks}
    reached = sorted(set().union(*map(_reached, modules)))
    return _hashed("\n".join((*names, *(f"{module} {_read(module)[1]}" for module in reached))))


@cache
def _modules() -> dict[str, Path]:
    """Map module names to files, for the specification, the reference and the suite."""
    return {
        ".".join(("attnspec", portion, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
        for portion in ("spec", "reference", "conformance")
        for folder in map(Path, import_module(f"attnspec.{portion}").__path__)
        for path in folder.rglob("*.py")
    }


@cache
def _reached(module: str) -> frozenset[str]:
    """Return a module and all modules that it imports, directly or indirectly."""
    modules, unread = {module}, [module]
    while unread:
        new = _read(unread.pop())[0] - modules
        modules |= new
        unread += new
    return frozenset(modules)


@cache
def _read(module: str) -> tuple[frozenset[str], str]:
    """Return the modules that any statement imports names from, and a digest of the code.

    ``import package`` only fills a registry, and does not count. A law may use the reference of another operation
    (:meth:`Subject.for_operation`) whose Protocol it imports: that reference counts.
    """
    known, names = _modules(), set[str]()
    tree = without_docstrings(known[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {x if (x := f"{node.module}.{alias.name}") in known else node.module or "" for alias in node.names}
    if module.startswith(LAWS):
        names |= {name.replace("attnspec.spec.", "attnspec.reference.") for name in names}
    return frozenset(names & known.keys()), _hashed(ast.dump(tree))


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else node


def without_docstrings(text: str) -> ast.Module:
    """Return the syntax tree of a module without docstrings."""
    tree: ast.Module = _WithoutDocstrings().visit(ast.parse(text))
    return tree


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
