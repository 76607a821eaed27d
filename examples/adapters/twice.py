"""Two runs of an adapter: the first proposes a declaration, the second has it."""

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
    """The declaration that was pasted, and the violated laws by dtype before and after."""

    declaration: Mapping[str, Any]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]


def twice(name: str, folder: Path, *options: str) -> Runs:
    """Check an adapter, paste the proposed declaration into a copy, and check the copy.

    The copy goes to ``folder``, ``options`` to ``attnspec check``.
    """
    file, adapter = ADAPTERS[name]
    source, copy = (HERE / file).read_text(encoding="utf-8"), folder / file
    copy.write_text(source, encoding="utf-8")
    first = run_check(copy, adapter, options)
    declaration = first["declaration"] or {}
    copy.write_text(paste_declaration(source, adapter, declaration), encoding="utf-8")
    return Runs(declaration, violated_laws(first), violated_laws(run_check(copy, adapter, options)))


def paste_declaration(source: str, adapter: str, declaration: Mapping[str, Any]) -> str:
    """Return the source with the declaration inserted below the adapter's ``name``."""
    preamble, head, body = source.partition(f"class {adapter}(")
    above, name, below = body.partition("    name = ")
    name_value, end, tail = below.partition("\n")
    lines = "".join(f"    {attribute} = {value!r}\n" for attribute, value in declaration.items())
    return f"{preamble}{head}{above}{name}{name_value}{end}{lines}{tail}"


def run_check(file: Path, adapter: str, options: tuple[str, ...]) -> Any:
    """Check an adapter and return the JSON report."""
    report = file.with_suffix(".json")
    command = [sys.executable, "-m", "attnspec", "check", f"{file}:{adapter}", "--json", str(report)]
    subprocess.run([*command, *options], capture_output=True, check=False)
    return json.loads(report.read_text(encoding="utf-8"))


def violated_laws(report: Any) -> dict[str, tuple[str, ...]]:
    """Return the violated and lost laws of a report, by dtype."""
    laws_by_dtype: dict[str, list[str]] = {}
    for r in report["results"]:
        if r["status"] in ("failed", "lost"):
            laws_by_dtype.setdefault(r["dtype"], []).append(r["law"])
    return {dtype: tuple(laws) for dtype, laws in laws_by_dtype.items()}


def table_row(name: str, runs: Runs) -> str:
    """Return the adapter's row of the table in README.md."""
    counts = [sum(map(len, x.values())) for x in (runs.before, runs.after)]
    left = ", ".join(dict.fromkeys(law for laws in runs.after.values() for law in laws))
    declared = ", ".join(f"`{attribute} = {value!r}`" for attribute, value in runs.declaration.items()) or "nothing"
    return f"| `{name}` | {counts[0]} | {declared} | {counts[1]} | {left or 'none'} |"
