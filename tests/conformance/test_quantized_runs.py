"""``attnspec check`` of backends that take quantised operands, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.remote.description import contract_from, described

BACKEND = """
import torch
from attnspec.backends.bases.torch import TorchBackend
from attnspec.spec import Quantized

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantized(x):
    if not isinstance(x, Quantized):
        return x
    codes, scales = x.codes, x.scales.float()
    if codes.dtype is torch.float4_e2m1fn_x2:
        pairs = codes.view(torch.uint8)
        codes = E2M1[torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).int()]
    if x.global_scale is not None:
        scales = scales * x.global_scale
    for axis, size in enumerate(x.shape):
        scales = scales.repeat_interleave(size // scales.shape[axis], axis)
    return codes.float() * scales


class Backend(TorchBackend):
    name = "mine"
    limits = {{"dtypes": ("bfloat16",), "operand_formats": {{
        "scaled_dot_product_attention": ("mxfp8", "nvfp4", {{"key": "e4m3-per-head", "value": "int8-per-channel"}})}}}}

    def scaled_dot_product_attention(self, query, key, value, *, mask=None, causal=False):
        dtype = getattr(torch, query.dtype) if isinstance(query, Quantized) else query.dtype
        query, key, value = (dequantized(x).float() for x in (query, key, value))
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
        return (scores.softmax(-1) @ value{defect}).to(dtype)


backend = Backend()
"""

LAW = "quantization.operands-are-exact"


def verdicts(folder: Path, defect: str) -> list[dict[str, Any]]:
    """Verdicts of a run on the backend with this text behind its values."""
    (folder / "mine.py").write_text(BACKEND.format(defect=defect), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "mine.py:backend", "--isolated"]
    subprocess.run([*command, "--law", LAW, "--workers", "1", "--json", "r.json"], cwd=folder, check=False)
    return provided(folder)


def provided(folder: Path) -> list[dict[str, Any]]:
    """Verdicts of the report in a folder on operations that the backend has."""
    results = json.loads((folder / "r.json").read_text(encoding="utf-8"))["results"]
    return [result for result in results if result["status"] != "not-provided"]


@pytest.mark.parametrize(("defect", "status"), [("", "passed"), (" * 1.02", "failed")])
def test_tensors_with_scales_reach_a_backend_in_another_process(tmp_path: Path, defect: str, status: str) -> None:
    (result,) = verdicts(tmp_path, defect)
    assert result["status"] == status, result
    if defect:
        assert "with query, key, value in mxfp8, the result" in result["message"]
        counterexample = result["counterexample"]
        assert list(counterexample["arguments"])[:4] == ["query.codes", "query.scales", "key.codes", "key.scales"]
        assert counterexample["arguments"]["key.codes"]["dtype"] == "float8_e4m3fn"
        script = subprocess.run(
            [sys.executable, "-c", counterexample["snippet"]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert script.returncode == 1, script.stderr
        assert "\nkey = Quantized(codes=array(" in script.stdout


def test_formats_survive_the_way_to_the_judge() -> None:
    formats = {"dot_scores": ("mxfp8", {"key": "int8-per-token"})}
    contract = Contract.of(Library("quantised", operand_formats=formats))
    sent = json.loads(json.dumps(described(contract)))
    assert contract_from(sent, "quantised").limits == contract.limits


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (
            {"attention": ("mxfp8",)},
            "limits operand_formats: expected names of operations, such as .*; got 'attention'",
        ),
        ({"dot_scores": ({"keys": "mxfp8"},)}, "operand_formats: dot_scores: expected names of arguments, such as key"),
    ],
)
def test_formats_of_unknown_operations_or_arguments_are_refused(formats: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contract.of(Library("quantised", operand_formats=formats))


def test_sizes_that_exclude_blocks_are_left_out(tmp_path: Path) -> None:
    backend = BACKEND.format(defect="").replace('"dtypes"', '"head_sizes": (24,), "dtypes"').replace('"nvfp4", ', "")
    (tmp_path / "other.py").write_text(backend, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "other.py:backend", "--isolated"]
    subprocess.run([*command, "--law", LAW, "--workers", "1", "--json", "r.json"], cwd=tmp_path, check=False)
    (result,) = provided(tmp_path)
    assert result["status"] == "not-applicable"
    assert "no allowed size is a multiple of 32, the block of mxfp8" in result["reason"]
