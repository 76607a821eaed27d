"""Two runs of an adapter: the first proposes a declaration, the second judges the adapter with it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

ADAPTERS = {
    "torch_sdpa": ("torch_sdpa.py", "TorchSDPA"),
    "torch_mha": ("torch_mha.py", "TorchMHA"),
    "jax": ("jax_attention.py", "JaxAttention"),
    "onnx_reference": ("onnx_attention.py", "OnnxReference"),
    "onnx_runtime": ("onnx_attention.py", "OnnxRuntime"),
}
"""Files and classes of the adapters, by name."""


@dataclass(frozen=True)
class Runs:
    """Declaration that was pasted, and violated laws by dtype before and after pasting it."""

    pasted: Mapping[str, Any]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]


def twice(name: str, folder: Path, *options: str) -> Runs:
    """Check an adapter, paste the proposed declaration into a copy in ``folder``, and check the copy.

    ``options`` are passed to ``attnspec check``.
    """
    file, adapter = ADAPTERS[name]
    source, copy = (HERE / file).read_text(encoding="utf-8"), folder / file
    copy.write_text(source, encoding="utf-8")
    first = checked(copy, adapter, options)
    declaration = first["declaration"] or {}
    copy.write_text(pasted(source, adapter, declaration), encoding="utf-8")
    return Runs(declaration, violated(first), violated(checked(copy, adapter, options)))


def pasted(source: str, adapter: str, declaration: Mapping[str, Any]) -> str:
    """Insert the declaration into the source, below the name of the adapter."""
    before, head, body = source.partition(f"class {adapter}(")
    above, name, below = body.partition("    name = ")
    first, end, rest = below.partition("\n")
    lines = "".join(f"    {attribute} = {value!r}\n" for attribute, value in declaration.items())
    return f"{before}{head}{above}{name}{first}{end}{lines}{rest}"


def checked(file: Path, adapter: str, options: tuple[str, ...]) -> Any:
    """Check an adapter and return the JSON report."""
    report = file.with_suffix(".json")
    command = [sys.executable, "-m", "attnspec.conformance", "check", f"{file}:{adapter}", "--json", str(report)]
    subprocess.run([*command, *options], capture_output=True, check=False)
    return json.loads(report.read_text(encoding="utf-8"))


def violated(report: Any) -> dict[str, tuple[str, ...]]:
    """Violated and lost laws of a report, by dtype."""
    found: dict[str, list[str]] = {}
    for r in report["results"]:
        if r["status"] in ("failed", "lost"):
            found.setdefault(r["dtype"], []).append(r["law"])
    return {dtype: tuple(laws) for dtype, laws in found.items()}


def line(name: str, runs: Runs) -> str:
    """Row of the table."""
    counts = [sum(map(len, x.values())) for x in (runs.before, runs.after)]
    left = ", ".join(dict.fromkeys(law for laws in runs.after.values() for law in laws))
    declared = ", ".join(f"`{attribute} = {value!r}`" for attribute, value in runs.pasted.items()) or "nothing"
    return f"| `{name}` | {counts[0]} | {declared} | {counts[1]} | {left or 'none'} |"
