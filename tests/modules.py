"""The modules of the package, for tests that read their source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PORTIONS = ("spec", "reference", "backends", "conformance")
"""Folders with one distribution of the namespace ``attnspec`` each; PEP 420 calls them portions."""


@dataclass(frozen=True)
class Module:
    """One file of a portion."""

    portion: str
    path: Path

    @property
    def name(self) -> str:
        """The name that it is imported by."""
        parts = self.path.relative_to(ROOT / self.portion).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def public(self) -> bool:
        """True if no part of its name is private."""
        return not any(part.startswith("_") for part in self.name.split("."))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def imports(self) -> Iterator[str]:
        """Every module that it imports, wherever the statement stands, absolute; ``from a import b`` is ``a.b``."""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                dots = node.level  # one leading dot means the module's own package, each further one its parent
                above = package[: len(package) + 1 - dots] if dots else []
                origin = [*above, *([node.module] if node.module else [])]
                yield from (".".join([*origin, alias.name]) for alias in node.names)


def modules(*portions: str) -> list[Module]:
    """The modules of the given portions, or of all."""
    return [
        Module(portion, path)
        for portion in portions or PORTIONS
        for path in sorted((ROOT / portion / "attnspec").rglob("*.py"))
    ]
