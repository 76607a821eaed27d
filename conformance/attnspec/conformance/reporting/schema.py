"""Checks of JSON documents against their schemas, without another package."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
"""Python's types of the types of JSON."""

SHOWN = 60
"""Most characters of a wrong value in a message."""


@cache
def _schema(file: Path) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


def schema_fault(document: Any, file: Path) -> str:
    """Return the first fault of a document by the schema in a file; empty if it has none."""
    schema = _schema(file)
    return next(_faults(document, schema, "", schema.get("$defs", {})), "")


def _faults(x: Any, schema: Mapping[str, Any], path: str, definitions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a value; the schemas use only the keywords that are read here."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]

    def fault(expected: str) -> str:
        text = repr(x)
        return f"{path + ': ' if path else ''}expected {expected}; got {text[:SHOWN]}{'…' * (len(text) > SHOWN)}"

    types = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if types and not any(_is(x, name) for name in types):
        yield fault(f"type {' or '.join(types)}")
        return
    choices = [schema["const"]] if "const" in schema else schema.get("enum", [x])
    if not any(x == choice and type(x) is type(choice) for choice in choices):
        yield fault(" or ".join(map(repr, choices)))
    if "anyOf" in schema and not any(next(_faults(x, s, path, definitions), "") == "" for s in schema["anyOf"]):
        # The last alternative is the one with contents; the others are null and texts.
        yield from _faults(x, schema["anyOf"][-1], path, definitions)
    if "pattern" in schema and isinstance(x, str) and not re.search(schema["pattern"], x):
        yield fault(f"a text that matches {schema['pattern']}")
    if "minimum" in schema and x < schema["minimum"]:
        yield fault(f"at least {schema['minimum']}")
    if isinstance(x, list):
        for i, item in enumerate(x):
            yield from _faults(item, schema.get("items", {}), f"{path}[{i}]", definitions)
    if isinstance(x, dict):
        prefix = f"{path}." if path else ""
        yield from (f"{prefix}{key}: expected this key; got none" for key in schema.get("required", []) if key not in x)
        if len(x) < schema.get("minProperties", 0):
            yield fault(f"at least {schema['minProperties']} keys")
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, item in x.items():
            if key not in known and others is False:
                yield f"{prefix}{key}: expected no such key; got one"
            else:
                yield from _faults(item, known.get(key, others or {}), f"{prefix}{key}", definitions)


def _is(x: Any, name: str) -> bool:
    return isinstance(x, TYPES[name]) and (name == "boolean" or not isinstance(x, bool))
