"""Results as they are read: what is no document of ours is refused, with what was expected and what was found."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from benchmarks.results import FILE, SCHEMA, Measurement, Run

PARTS = ("machine", "device", "ceilings", "measurements")
MACHINE = ("time", "device", "cores", "instructions", "system", "python", "versions")
FIELDS = tuple(f.name for f in fields(Measurement))
REQUIRED = tuple(f.name for f in fields(Measurement) if f.default is MISSING)


def read(folder: Path) -> Run:
    """The run in a folder; ``ValueError`` in words that follow "expected …; " if there is none."""
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"got a folder without {FILE}" if folder.is_dir() else "there is no such folder") from None
    except NotADirectoryError:
        raise ValueError("got a file") from None
    except OSError as error:
        raise ValueError(f"got a {FILE} that cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"got a {FILE} that is no text") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"got a {FILE} that is no JSON from {place} on") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"got a {FILE} with schema {schema!r} instead of {SCHEMA!r}")
    _named(document, PARTS, f"a {FILE}")
    _named(document["machine"], MACHINE, "a machine")
    measurements = tuple(_measurement(i, m) for i, m in enumerate(document["measurements"]))
    return Run(document["machine"], document["device"], document["ceilings"], measurements)


def _measurement(place: int, entry: Any) -> Measurement:
    what = f"measurement {place}"
    _named(entry, REQUIRED, what)
    if unknown := [name for name in entry if name not in FIELDS]:
        raise ValueError(f"got {what} with {unknown[0]!r}, which is unknown")
    quartiles = entry.get("quartiles")
    return Measurement(**{**entry, "quartiles": tuple(quartiles) if quartiles else None})


def _named(entry: Any, names: tuple[str, ...], what: str) -> None:
    absent = [name for name in names if not isinstance(entry, dict) or name not in entry]
    if absent:
        raise ValueError(f"got {what} without {absent[0]!r}")
