"""Diagnoses name the operand whose scales or codes are misread, and how."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.explaining import inquiry
from attnspec.conformance.inputs.quantization import element_of, exact_values
from attnspec.conformance.mutants import MUTANTS
from attnspec.spec import Quantized

from .test_quantized import SDPA, attention, misread, operand, operands, values
from .test_quantized_runs import BACKEND, LAW

START: Any = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "diagnosis.py"))["start_inquiry"]

NAMES = {
    "of the block before": "scale of the block before",
    "transposed": "scales read transposed",
    "left out": "scales of quantised operands left out",
    "applied twice": "scales applied twice",
    "as exponents": "exponents read as scales",
    "of the first block alone": "scale of the first block in every block",
    "global scale left out": "global scale left out",
}
"""Names of the mutants with the defects of ``test_quantized``."""

MISREADING = [mutant.name for mutant in MUTANTS.values() if mutant.operand_formats and "2 %" not in mutant.name]
"""Mutants whose single numbers are wrong, not only their sum."""


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each diagnosis enough time even on a busy processor."""
    monkeypatch.setattr(inquiry, "SECONDS", 120)


@pytest.mark.parametrize("changed", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("defect", NAMES)
def test_judge_names_the_defect_and_the_operand(defect: str, changed: int) -> None:
    quantized, arrays = misread(defect, changed, "float32")
    diagnosis = judge(SDPA, attention(*arrays), *quantized).diagnosis
    assert f"“{NAMES[defect]}”" in diagnosis
    assert diagnosis.endswith(f" This concerns {['query', 'key', 'value'][changed]}.")


def test_operands_that_give_the_same_numbers_are_all_named() -> None:
    query, key, value = operands("e4m3-per-tensor", "bfloat16")
    arrays = values(Quantized(query.codes, query.scales**2), key, value)
    diagnosis = judge(SDPA, attention(*arrays).astype(ml_dtypes.bfloat16), query, key, value).diagnosis
    assert diagnosis.endswith("Scales are applied twice. This concerns query; or key.")


def test_the_scale_of_another_head_is_named_in_a_large_call() -> None:
    query = np.random.default_rng(0).standard_normal((2, 4, 512, 32)).astype(ml_dtypes.bfloat16)
    key, value = (operand("e4m3-per-head", (2, 4, 512, 32), seed, "bfloat16") for seed in (1, 2))
    wrong = Quantized(value.codes, np.roll(value.scales, 1, 1))
    output = attention(query, *values(key, wrong)).astype(ml_dtypes.bfloat16)
    diagnosis = judge(SDPA, output, query, key, value).diagnosis
    assert "“scale of the head before”" in diagnosis
    assert diagnosis.endswith("This concerns value.")


@pytest.mark.parametrize("name", MISREADING)
def test_check_names_every_misreading(name: str) -> None:
    diagnosis = START(name).diagnosis()
    assert diagnosis is not None
    assert name in diagnosis.same


@pytest.mark.parametrize(
    ("report", "name", "operand"),
    [
        ("flashinfer-ai/flashinfer#4979", "scales of quantised operands left out", "key, value"),
        ("vllm-project/vllm#42080", "scales of quantised operands left out", "query"),
        ("sgl-project/sglang#18904", "scales of quantised operands left out", "key_pages, value_pages"),
    ],
)
def test_check_names_what_was_reported(report: str, name: str, operand: str) -> None:
    diagnosis = START(report).diagnosis()
    assert diagnosis is not None
    assert diagnosis.same == (name,)
    assert diagnosis.sentence.endswith(f" This concerns {operand}.")


def test_a_backend_in_another_process_is_diagnosed(tmp_path: Path) -> None:
    """Its MXFP8 is right; in NVFP4, judged second, it forgets the global scale."""
    backend = BACKEND.format(defect="").replace("scales = scales * x.global_scale", "pass")
    backend = backend.replace('{"dtypes"', '{"mask": False, "dtypes"')
    (tmp_path / "mine.py").write_text(backend, encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "mine.py:backend", "--isolated"]
    subprocess.run([*command, "--law", LAW, "--workers", "1", "--json", "r.json"], cwd=tmp_path, check=False)
    (diagnosis,) = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["diagnoses"]
    assert diagnosis["same"] == ["global scale left out"]
    assert diagnosis["sentence"].endswith("This concerns query, key, value.")


@pytest.mark.parametrize("form", ["e4m3-per-tensor", "int8-per-token", "mxfp8", "nvfp4-along-tokens"])
def test_an_element_has_its_own_scales(form: str) -> None:
    quantized = operand(form, (3, 2, 32, 32), 0)
    element = element_of(quantized, 2, (2, 1))
    assert (exact_values(element, "x") == exact_values(quantized, "x")[2, 1]).all()


def test_an_element_of_blocks_of_the_batch_has_the_scale_of_its_block() -> None:
    quantized = Quantized(np.ones((4, 2, 8, 8), np.int8), np.array([[1, 2], [3, 4]], np.float32)[..., None, None])
    assert (exact_values(element_of(quantized, 2, (2, 1)), "x") == 4).all()
