"""Trials that are kept in a file, so that a run which is broken off goes on where it was."""

import ast
import hashlib
import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from attnspec.conformance.running.trials import Failure, Key, Outcome, Task

SCHEMA = "attnspec-trials/2"

JUDGES = {
    "spec": ("contract", "laws", "*.py"),
    "reference": ("budget", "defining", "*.py"),
    "conformance": ("inputs", "judging", "laws", "mutants", "variants", "running/trials.py"),
}
"""What an outcome depends on, of the packages in ``attnspec``: folders, and files or patterns of files."""

ASIDE = ("errata.py",)
"""Files there that decide nothing."""

READ_AT_RUN_TIME = ("spec",)
"""Packages whose docstrings are data: formulas and edges are read from them."""


def digest() -> str:
    """A digest of the specification, the reference and the suite: of laws, inputs, mutants and variants.

    It is one of syntax trees: comments, layout and docstrings that nobody reads at run time do not change it. Reports,
    the command line and what says how trials are run are not in it.
    """
    found = hashlib.sha256()
    for package, parts in JUDGES.items():
        for folder in map(Path, import_module(f"attnspec.{package}").__path__):
            judges = {path for part in parts for path in _modules(folder, part)}
            for path in sorted(judges, key=lambda path: path.relative_to(folder).as_posix()):
                found.update(f"{package}/{path.relative_to(folder).as_posix()}\n".encode())
                text = path.read_text(encoding="utf-8")
                found.update(syntax(text, docstrings=package in READ_AT_RUN_TIME).encode())
    return found.hexdigest()[:16]


class _WithoutDocstrings(ast.NodeTransformer):
    """Removes strings that stand alone: the docstrings of modules, classes, functions and constants."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else node


@cache
def syntax(text: str, *, docstrings: bool) -> str:
    """The syntax tree of a module, without positions."""
    tree = ast.parse(text)
    return ast.dump(tree if docstrings else _WithoutDocstrings().visit(tree))


def _modules(folder: Path, part: str) -> list[Path]:
    """The modules of a folder that a part of it names."""
    named = folder / part
    found = named.rglob("*.py") if named.is_dir() else folder.glob(part)
    return [path for path in found if path.name not in ASIDE]


class KeptTrials:
    """The outcomes in a file of JSON lines, of which the first says what they were judged by.

    ``ValueError`` for a file of something else, or of trials that were judged by other laws.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[Key, Outcome] = {}
        head = {"schema": SCHEMA, "digest": digest()}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1] or text
        rows = [_read(line) for line in whole.splitlines()]
        if rows and rows[0].get("schema") != SCHEMA:
            raise ValueError(f"{path}: expected trials that 'attnspec mutants --keep' wrote; got something else")
        if rows and rows[0] != head:
            expected, got = head["digest"], rows[0].get("digest")
            message = f"{path}: expected trials judged by the present suite, {expected}; got {got}"
            raise ValueError(f"{message}; without this file they are judged anew")
        for row in rows[1:]:
            failures = tuple(Failure(*f) for f in row["failures"])
            key = (row["subject"], row["profile"], row["seed"], row["every"])
            self._outcomes[key] = Outcome(
                failures, row["checks"], row["seconds"], row["largest"], row["lost"], tuple(row["powerless"])
            )
        # A line that was not written to its end is not kept.
        path.write_text(whole or json.dumps(head) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._outcomes)

    def outcome(self, task: Task) -> Outcome | None:
        """What became of a task; None if it was not judged yet."""
        return self._outcomes.get(task.key)

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep what became of a task."""
        self._outcomes[task.key] = outcome
        subject, profile, seed, every = task.key
        row = {
            "subject": subject,
            "profile": profile,
            "seed": seed,
            "every": every,
            "failures": outcome.failures,
            "checks": outcome.evaluations,
            "seconds": round(outcome.seconds, 3),
            "largest": outcome.largest,
            "lost": outcome.lost,
            "powerless": outcome.powerless,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _read(line: str) -> dict[str, Any]:
    """A line as an object, an empty one for a line that is none."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
