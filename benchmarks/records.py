"""File of results (JSON Lines): a header with machine and versions, then measurements."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Run

SCHEMA = "attnspec-benchmarks/2"
FILE = "results.jsonl"
FORMER_FILE = "results.json"
"""File name before schema 2, when a run was one JSON document."""

Check = Callable[[Any], bool]


def _integer(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _object(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(check(v) for v in value.values())


KINDS: Mapping[Any, tuple[str, Check]] = {
    str: ("a string", _string),
    int: ("an integer", _integer),
    float: ("a number", _number),
    int | None: ("an integer or null", _or_null(_integer)),
    float | None: ("a number or null", _or_null(_number)),
    tuple[float, float] | None: (
        "two numbers or null",
        _or_null(lambda value: isinstance(value, list) and len(value) == 2 and all(map(_number, value))),
    ),
    Mapping[str, Any]: ("an object", _object(lambda value: True)),
    Mapping[str, int]: ("an object of integers", _object(_integer)),
    Mapping[str, str]: ("an object of strings", _object(_string)),
    Mapping[str, Mapping[str, float]]: ("an object of objects of numbers", _object(_object(_number))),
}
"""For each type of a field, its name in messages, and a check of the JSON value."""

HEADER = {"device": str, "machine": Mapping[str, Any], "ceilings": Mapping[str, Mapping[str, float]]}
MACHINE = {
    "time": str, "device": str, "cores": int, "instructions": str, "system": str, "python": str,
    "versions": Mapping[str, str],
}  # fmt: skip
LOADS = {"load_before": float | None, "load_after": float | None}
DEFAULTS = {f.name: f.default for f in fields(Measurement) if f.default is not MISSING}
FIELDS: Mapping[str, Any] = {f.name: f.type for f in fields(Measurement)}
REQUIRED = {name: kind for name, kind in FIELDS.items() if name not in DEFAULTS}


def write(run: Run, folder: Path) -> None:
    """Write all results to a folder; the file is replaced atomically."""
    path = folder / FILE
    part = path.with_suffix(".part")
    part.write_text("".join(line + "\n" for line in _lines(run)), encoding="utf-8")
    part.replace(path)


def _lines(run: Run) -> Iterator[str]:
    yield _compact({"schema": SCHEMA, "device": run.device, "machine": run.machine, "ceilings": run.ceilings})
    for m in run.measurements:
        record = {name: getattr(m, name) for name in FIELDS}
        record = {name: value for name, value in record.items() if name in REQUIRED or value != DEFAULTS[name]}
        # JSON has no infinities
        yield _compact(record | ({"error": "inf"} if m.error == inf else {}))


def _compact(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def present(folder: Path) -> bool:
    """Return whether a folder has results, in the current or the former format."""
    return (folder / FILE).exists() or (folder / FORMER_FILE).exists()


def read(folder: Path) -> Run:
    """Read the results of a folder; the message of its ``ValueError`` is only "got …"."""
    header, *records = [_parsed(number, line) for number, line in enumerate(_lines_of(folder), 1)]
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"got a {FILE} whose first line has schema {schema!r} instead of {SCHEMA!r}")
    _check(header, HEADER, "line 1")
    _check(header["machine"], MACHINE, "the machine in line 1")
    _check({**dict.fromkeys(LOADS), **header["machine"]}, LOADS, "the machine in line 1")
    measurements = tuple(_measurement(f"line {number}", record) for number, record in enumerate(records, 2))
    return Run(header["machine"], header["device"], header["ceilings"], measurements)


def _lines_of(folder: Path) -> list[str]:
    try:
        # not `splitlines`: error messages may contain line separators that JSON does not escape
        return (folder / FILE).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        if (folder / FORMER_FILE).exists():
            raise ValueError(f"got a {FORMER_FILE}, the format of earlier versions, which is no longer read") from None
        raise ValueError(f"got a folder without {FILE}" if folder.is_dir() else "there is no such folder") from None
    except NotADirectoryError:
        raise ValueError("got a file") from None
    except OSError as error:
        raise ValueError(f"got a {FILE} that cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"got a {FILE} that is not UTF-8 text") from error


def _parsed(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"got a {FILE} that is not JSON from line {number}, column {error.colno} on") from error


def _measurement(where: str, record: Any) -> Measurement:
    _check(record, REQUIRED, where)
    if unknown := [name for name in record if name not in FIELDS]:
        raise ValueError(f"got a {FILE} with the unknown field {unknown[0]!r} in {where}")
    if record.get("error") == "inf":
        record = {**record, "error": inf}
    _check({**DEFAULTS, **record}, FIELDS, where)
    quartiles = record.get("quartiles")
    return Measurement(**{**record, "quartiles": tuple(quartiles) if quartiles else None})


def _check(record: Any, expected: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` unless a record has the expected fields with values of their kinds."""
    for name, kind in expected.items():
        if not isinstance(record, dict) or name not in record:
            raise ValueError(f"got a {FILE} without {name!r} in {where}")
        kind_text, fits = KINDS[kind]
        if not fits(record[name]):
            raise ValueError(f"got a {FILE} where {name!r} in {where} is {_brief(record[name])} instead of {kind_text}")


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"
