"""Table of who conforms: ``python docs/site/verdicts.py REPORT… > docs/site/verdicts.json``, from reports as JSON."""

import json
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from attnspec.spec import OPERATIONS, QUESTIONS
from attnspec.spec.contract.precision import DEFAULTS

IMPLEMENTATIONS = {
    "pytorch": ("[attnspec's PyTorch backend](../pytorch.md), on PyTorch", "torch"),
    "torch-native": ("PyTorch's own functions and layers", "torch"),
    "jax-native": ("`jax.nn.dot_product_attention`", "jax"),
    "onnx-runtime": ("ONNX Runtime", "onnxruntime"),
    "onnx-reference": ("ONNX's reference evaluator", "onnx"),
}
"""Title of a backend, and the package whose version the table shows."""


def summary(path: Path) -> dict[str, Any]:
    """Return the verdicts of a report, by operation and dtype."""
    report = json.loads(path.read_text(encoding="utf-8"))
    title, package = IMPLEMENTATIONS[report["backend"]["origin"]]
    results_by_dtype: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for result in report["results"]:
        if result["status"] in ("passed", "failed", "lost"):
            results_by_dtype.setdefault(result["operation"], {}).setdefault(result["dtype"], []).append(result)
    declared = {q: choice["declared"] for q, choice in report["semantics"].items()}
    return {
        "implementation": f"{title} {report['versions'][package].partition('+')[0]}",
        "date": date.fromtimestamp(path.stat().st_mtime).isoformat(),
        "profile": report["profile"],
        "operations": {name: cells(name, by_dtype, declared) for name, by_dtype in sorted(results_by_dtype.items())},
    }


def cells(
    operation: str, by_dtype: Mapping[str, list[Mapping[str, Any]]], declared: Mapping[str, str]
) -> dict[str, str]:
    """Return verdicts in words, by the dtypes that share them."""
    concerned = [QUESTIONS[q] for q in declared if QUESTIONS[q].concerns(OPERATIONS[operation])]
    other = [f"`{q.name}` = `{declared[q.name]}`" for q in concerned if declared[q.name] != q.normative]
    dtypes: dict[str, list[str]] = {}
    for dtype, results in sorted(by_dtype.items(), key=lambda item: [*DEFAULTS, item[0]].index(item[0])):
        failed = sorted({f"`{r['law']}`" for r in results if r["status"] == "failed"})
        lost = any(r["status"] == "lost" for r in results)
        text = f"violates {', '.join(failed)}" if failed else "not judged to the end" if lost else "conforms"
        dtypes.setdefault(", with ".join([text, *([", ".join(other)] if other else [])]), []).append(dtype)
    return {", ".join(names): text for text, names in dtypes.items()}


if __name__ == "__main__":
    print(json.dumps([summary(Path(name)) for name in sys.argv[1:]], ensure_ascii=False, indent=1))
