"""Golden cases: right results are in their intervals, wrong ones are not, and any program can read them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.harness import vectors
from attnspec.conformance.harness.vectors import check_vectors, write_vectors
from attnspec.conformance.inputs.dtypes import half_to_single
from attnspec.conformance.mutants.correct import Formulas, Library
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.shapes import results

PAGE = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text(encoding="utf-8")
SCHEMA = json.loads(Path(vectors.__file__).with_name("vectors.schema.json").read_text(encoding="utf-8"))

PROGRAM = re.findall(r"```python\n(# softmax_vectors\.py\n.*?)```", PAGE, re.DOTALL)[0]
"""The program of the page, which imports only NumPy, JSON and safetensors."""

FILE = "softmax.float32.safetensors"
"""Tensors of softmax in float32."""


def named(*names: str) -> list[Operation]:
    return [OPERATIONS[name] for name in names]


def right_outputs(operation: Operation, dtype: str) -> dict[str, Any]:
    """Results of the NumPy library around the right formulas, under the names of the index."""
    outputs = {}
    for number, (subject, arguments, _) in enumerate(vectors._cases(operation, dtype, None)):
        result = getattr(Library(f"right {dtype}", Formulas()), operation.name)(**arguments.passed)
        for leaf, x in results(subject.operation, result):
            outputs[f"{number}/{leaf.path}"] = np.asarray(half_to_single(np.asarray(x)), order="C")
    return outputs


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Folders with cases of `softmax` in float32, and with right results."""
    (tmp_path / "outputs").mkdir()
    write_vectors(tmp_path / "cases", named("softmax"), ("float32",))
    save_file(right_outputs(OPERATIONS["softmax"], "float32"), tmp_path / "outputs" / FILE)
    return tmp_path / "cases", tmp_path / "outputs"


def replace_first_result(outputs: Path, replacement: Callable[[Any], Any]) -> None:
    """Replace the result of the first case by a function of it; None removes it."""
    tensors = load_file(outputs / FILE)
    tensors["0/result"] = replacement(tensors["0/result"])
    save_file({name: x for name, x in tensors.items() if x is not None}, outputs / FILE)


def faults(folders: tuple[Path, Path]) -> list[str]:
    return [case.fault for case in check_vectors(*folders) if case.fault]


def test_right_results_are_right(folders: tuple[Path, Path]) -> None:
    assert [case.fault for case in check_vectors(*folders)] == [""] * vectors.CASES


def test_a_wrong_number_is_named_with_its_place_and_interval(folders: tuple[Path, Path]) -> None:
    def with_a_wrong_number(x: Any) -> Any:
        x = x.copy()
        x.flat[3] += 1e-5
        return x

    replace_first_result(folders[1], with_a_wrong_number)
    (fault,) = faults(folders)
    assert fault.startswith("result[0, 3]: expected a number in [")
    size = load_file(folders[1] / FILE)["0/result"].size
    assert fault.endswith(f"; 1 of {size} numbers are wrong")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: None, "expected a tensor '0/result'; got 1/result"),
        (lambda x: np.zeros((1, 1), np.float32), "result: expected shape ("),
        (lambda x: np.full_like(x, np.nan), "got nan"),
    ],
    ids=["absent", "of another shape", "NaN"],
)
def test_a_missing_or_wrong_tensor_is_named(
    folders: tuple[Path, Path], wrong: Callable[[Any], Any], message: str
) -> None:
    replace_first_result(folders[1], wrong)
    assert message in faults(folders)[0]


def test_a_choice_changes_what_is_right(tmp_path: Path) -> None:
    write_vectors(tmp_path, named("softmax"), ("float32",), {"fully_masked": "nan"})
    tensors = load_file(tmp_path / FILE)
    ends = [x for name, x in tensors.items() if "lower" in name]
    assert any(np.isnan(x).any() for x in ends)


def test_the_index_follows_its_schema(folders: tuple[Path, Path]) -> None:
    jsonschema.validate(json.loads((folders[0] / "index.json").read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: [], "'attnspec vectors write' has written: [] is not of type 'object'"),
        (lambda index: index | {"schema_version": 2}, "schema_version: 1 was expected"),
        (lambda index: {"schema_version": 1, "attnspec": "0"}, "'cases' is a required property"),
        (lambda index: index | {"cases": [7]}, "cases[0]: 7 is not of type 'object'"),
        (lambda index: damaged_case(index, file="../cases/" + FILE), "cases[0].file: '../cases/"),
        (lambda index: damaged_case(index, results={}), "cases[0].results: {} should be non-empty"),
        (lambda index: damaged_result(index, lower="absent"), f"{FILE}: expected a tensor 'absent' of shape ["),
        (lambda index: damaged_result(index, shape=[7]), "expected a tensor '0/lower result' of shape [7]; got ["),
        (lambda index: damaged_result(index, shape=[True]), "result.shape[0]: True is not of type 'integer'"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_refused(
    folders: tuple[Path, Path], damage: Callable[[dict[str, Any]], Any], message: str
) -> None:
    file = folders[0] / "index.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        list(check_vectors(*folders))


def damaged_case(index: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return index | {"cases": [index["cases"][0] | changes, *index["cases"][1:]]}


def damaged_result(index: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return damaged_case(index, results={"result": index["cases"][0]["results"]["result"] | changes})


def test_a_program_without_attnspec_reads_the_cases(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    write_vectors(tmp_path / "cases", named("softmax"))
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    subprocess.run([sys.executable, "-I", "program.py", "cases", "outputs"], cwd=tmp_path, check=True)
    assert not faults((tmp_path / "cases", tmp_path / "outputs"))


def test_the_commands_write_and_check_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = ("vectors", "write", "cases", "--operation", "softmax", "--dtype", "float32")
    written = CliRunner().invoke(app, write)
    assert written.exit_code == 0
    assert written.stdout.startswith(f"{vectors.CASES} cases of 1 operation in cases, ")
    Path("outputs").mkdir()
    assert CliRunner().invoke(app, ("vectors", "check", "cases", "outputs")).exit_code == 2
    save_file(right_outputs(OPERATIONS["softmax"], "float32"), Path("outputs", FILE))
    checked = CliRunner().invoke(app, ("vectors", "check", "cases", "outputs"))
    assert (checked.exit_code, checked.stdout) == (0, "8 of 8 cases of 1 operation are right\n")
    replace_first_result(Path("outputs"), lambda x: None)
    checked = CliRunner().invoke(app, ("vectors", "check", "cases", "outputs"))
    assert checked.exit_code == 1
    assert checked.stdout.startswith("wrong: softmax/float32/0: expected a tensor")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("write", "cases", "--operation", "softmaxx"), "--operation: expected one of softmax"),
        (("write", "cases", "--dtype", "float8"), "--dtype: expected one of float32, float16, bfloat16"),
        (("write", "cases", "--choice", "fully_masked=one"), "--choice fully_masked: expected one of zero"),
        (("check", "nowhere", "outputs"), "nowhere/index.json: expected an index that 'attnspec vectors write'"),
    ],
)
def test_unusable_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ("vectors", *arguments))
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_file_of_another_format_is_refused(folders: tuple[Path, Path]) -> None:
    (folders[1] / FILE).write_text("numbers", encoding="utf-8")
    with pytest.raises(ValueError, match="expected tensors in the safetensors format"):
        list(check_vectors(*folders))


@pytest.mark.slow
def test_right_results_of_all_operations_are_right_in_200_kilobytes_each(tmp_path: Path) -> None:
    operations = [o for o in OPERATIONS.values() if not o.reference_only]
    write_vectors(tmp_path / "cases", operations)
    assert sum(file.stat().st_size for file in (tmp_path / "cases").iterdir()) < 200_000 * len(operations)
    (tmp_path / "outputs").mkdir()
    for file in (tmp_path / "cases").glob("*.safetensors"):
        name, dtype, _ = file.name.split(".")
        save_file(right_outputs(OPERATIONS[name], dtype), tmp_path / "outputs" / file.name)
    cases = list(check_vectors(tmp_path / "cases", tmp_path / "outputs"))
    assert {case.operation for case in cases} == {o.name for o in operations}
    assert not [case for case in cases if case.fault]
