"""JSON and page of the checks on a GPU."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import STATUSES
from benchmarks.page import markdown_table

FILE, PAGE = "gpu.json", "README.md"
SCHEMA = "attnspec-gpu/1"
IDENTITY = ("device", "versions", "commit")


def write(folder: Path, number: int, stage: Mapping[str, Any], *, dry: bool) -> None:
    """Add a stage to the results of a folder; those of another machine, version or commit are dropped."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = stage["machine"]
    results: dict[str, Any] = {"schema": SCHEMA, "dry_run": dry, "machine": machine, "stages": {}}
    if (folder / FILE).exists():
        earlier = json.loads((folder / FILE).read_text("utf-8"))
        if not machine:  # the stage ended before it described the machine
            machine = results["machine"] = earlier["machine"]
        same = all(earlier["machine"].get(name) == machine.get(name) for name in IDENTITY)
        if earlier["schema"] == SCHEMA and earlier["dry_run"] == dry and same:
            results["stages"] = earlier["stages"]
    results["stages"][str(number)] = {name: value for name, value in stage.items() if name != "machine"}
    results["stages"] = dict(sorted(results["stages"].items()))
    (folder / FILE).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / PAGE).write_text("\n".join(page(results)) + "\n", encoding="utf-8")


def page(results: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the page: machine, number of outcomes by stage, and a table of the checks of each stage."""
    machine = results["machine"]
    yield f"# {'Dry run' if results['dry_run'] else 'Checks'} on {machine.get('device', 'an unknown device')}"
    yield ""
    if results["dry_run"]:
        yield "Without a GPU: small sizes on the processor. Times say nothing."
        yield ""
    for name, value in machine.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        yield f"- {name}: {text or 'unknown'}"
    yield ""
    stages = results["stages"]
    rows: list[tuple[str, ...]] = [("stage", *STATUSES, "seconds")]
    for number, stage in stages.items():
        counts = Counter(check["status"] for check in stage["checks"])
        cells = [str(counts[status]) for status in STATUSES]
        rows.append((f"{number} {stage['title']}", *cells, str(stage["seconds"])))
    yield from markdown_table(rows)
    yield ""
    yield "`used` is the used share of what is allowed: error over budget, or least speedup over the measured one."
    for number, stage in stages.items():
        yield from ("", f"## {number} {stage['title']}", "")
        yield from markdown_table([("check", "result", "used", "ms", "remark"), *map(_row, stage["checks"])])


def _row(check: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = ("" if check[name] is None else f"{check[name]:.3g}" for name in ("used", "milliseconds"))
    return check["name"], check["status"], *numbers, check["remark"]
