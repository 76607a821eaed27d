"""Checks of JSON documents against their schemas."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

SHOWN = 120
"""Most characters of a message, which may show a whole document."""


@cache
def _validator(file: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))


def schema_fault(document: Any, file: Path) -> str:
    """Return the place and kind of a document's fault by the schema in a file; empty if it has none."""
    fault = best_match(_validator(file).iter_errors(document))
    if fault is None:
        return ""
    place = fault.json_path.removeprefix("$").removeprefix(".")
    message = fault.message if len(fault.message) <= SHOWN else f"{fault.message[:SHOWN]}…"
    return f"{place}: {message}" if place else message
