"""A matrix as data, from which tables, pages and JSON are made: rows, cells, violations."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "attnspec-matrix/1"
DIRECTIONS = ("forward", "backward")


class State(StrEnum):
    """Outcome of a cell."""

    CONFORMS = "conforms"
    DEVIATES = "deviates"
    VIOLATES = "violates"
    NOT_OFFERED = "not offered"
    NOT_JUDGED = "not judged"


class Confirmation(StrEnum):
    """Outcome of the attempt to reproduce a violation without attnspec."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    NO_PROGRAM = "no program"


@dataclass(frozen=True)
class Violation:
    """A violated law, its smallest input, and a program that shows it without attnspec.

    ``why`` is the reason why it was not confirmed, or why there is no program.
    """

    operation: str
    law: str
    statement: str
    reason: str
    message: str
    arguments: Mapping[str, Any]
    confirmation: Confirmation
    why: str = ""
    program: str = ""


@dataclass(frozen=True)
class Cell:
    """One direction of a row at one dtype.

    ``reason`` is the library's own if it does not offer the call, else the reason why nothing was judged. ``partly``
    maps refused operations to reasons, in a cell that offers others. ``following`` names laws that may hold once the
    violations are corrected. ``held`` counts the laws that hold, on ``examples`` examples. ``profile`` is set if
    another profile judged the cell, because the matrix's own had no example.
    """

    dtype: str
    direction: str
    state: State
    reason: str = ""
    partly: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    following: tuple[str, ...] = ()
    held: int = 0
    examples: int = 0
    error_ratio: float | str = 0.0
    profile: str = ""


@dataclass(frozen=True)
class Row:
    """One way to call the library, with its cells.

    ``limits`` lists excluded inputs, ``deviations`` declared non-normative choices by question, ``precision`` the
    precision class per dtype.
    """

    name: str
    origin: str
    operations: tuple[str, ...]
    limits: tuple[str, ...]
    deviations: Mapping[str, str]
    precision: Mapping[str, str]
    notes: Mapping[str, str]
    cells: tuple[Cell, ...]

    def cell(self, dtype: str, direction: str) -> Cell:
        """Return the cell of a dtype and direction."""
        return next(c for c in self.cells if (c.dtype, c.direction) == (dtype, direction))


@dataclass(frozen=True)
class Matrix:
    """All rows of a library, and the conditions of the run; ``date`` is in UTC."""

    library: str
    device: str
    date: str
    profile: str
    seed: int
    seconds: float
    interrupted: bool
    versions: Mapping[str, str]
    dtypes: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Title of the matrix: library, version and device."""
        return f"{self.library} {self.versions.get(self.library, '')} on {self.device}".replace("  ", " ")

    def violations(self) -> Iterator[tuple[Row, Cell, Violation]]:
        """Yield every violation, in the order of the rows."""
        for row in self.rows:
            for cell in row.cells:
                for violation in cell.violations:
                    yield row, cell, violation

    def counts(self) -> dict[State, int]:
        """Return the number of cells in each state."""
        states = [cell.state for row in self.rows for cell in row.cells]
        return {state: states.count(state) for state in State}

    def as_json(self) -> dict[str, Any]:
        """Return the matrix as plain JSON, which ``matrix.schema.json`` describes."""
        return {"schema": SCHEMA, **asdict(self)}

    def as_text(self) -> str:
        """Return the matrix as the text of a JSON document."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Matrix":
        """Return the matrix that plain JSON describes."""
        fields = {k: v for k, v in data.items() if k != "schema"}
        rows = tuple(map(_row, fields.pop("rows")))
        return cls(**{**fields, "dtypes": tuple(fields["dtypes"])}, rows=rows)


def _row(data: Mapping[str, Any]) -> Row:
    lists = {name: tuple(data[name]) for name in ("operations", "limits")}
    return Row(**{**data, **lists, "cells": tuple(map(_cell, data["cells"]))})


def _cell(data: Mapping[str, Any]) -> Cell:
    violations = tuple(Violation(**{**v, "confirmation": Confirmation(v["confirmation"])}) for v in data["violations"])
    following = tuple(data["following"])
    return Cell(**{**data, "state": State(data["state"]), "violations": violations, "following": following})
