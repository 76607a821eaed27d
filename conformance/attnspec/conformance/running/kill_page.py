"""Making the page of kills, in as many runs as it takes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnspec.conformance.reporting.kill_page import page
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.kept_trials import digest
from attnspec.conformance.running.kill_trials import Extent, kill_data
from attnspec.conformance.running.trial_run import INCOMPLETE, TimeUp, TrialRun


def make_page(file: OutputFile, extent: Extent, run: TrialRun) -> int:
    """Run the trials that are not kept, and write the page and, beside it, its data; or say how far the run came.

    Where the data beside the page are of the present suite and of all that is asked for, no trial is run. Returns the
    exit status: 0, 1 where a mutant survives the matrix or a variant is harmed, and 2 if it is unfinished.
    """
    beside = OutputFile(file.path.with_suffix(".json"), file.option)
    try:
        data = present(beside.path, extent) or kill_data(extent, run)
    except TimeUp as error:
        run.console.print(f"{error}; no page was written")
        return INCOMPLETE
    beside.write(as_text(data))
    file.write(rendered(data, file.path))
    run.console.print(f"wrote {file.path} and {beside.path}")
    survivors = [name for name, entry in data["mutants"].items() if not entry["laws"]]
    return int(bool(survivors) or any(v["harmed"] for v in data["variants"].values()))


def present(path: Path, extent: Extent) -> dict[str, Any] | None:
    """The data in a file, if they are of the present suite and of all that is asked for."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        checks = sum(v["checks"] for v in data["variants"].values())
        same = data["digest"] == digest() and data["seeds"] == extent.seeds and checks >= extent.checks
        judged = (data["mutants"].keys(), {*data["variants"], *data["not_tried"]})
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return data if same and judged == (extent.mutants.keys(), {*extent.variants}) else None


def rendered(data: Mapping[str, Any], path: Path) -> str:
    """The page at a path, with what the page on sensitivity beside it says."""
    sensitivity = path.with_name("sensitivity.md")
    text = sensitivity.read_text(encoding="utf-8") if sensitivity.exists() else ""
    return page(data, text, path.with_suffix(".json").name)


def as_text(data: Mapping[str, Any]) -> str:
    """The data as JSON, with a line for every mutant and variant."""
    lines = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"  {_json(k)}: {_json(v)}" for k, v in value.items())
            lines.append(f" {_json(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {_json(key)}: {_json(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
