"""The first verdict on a kernel that declares nothing: what to paste if it is right, its defect if it is wrong."""

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

from attnspec.conformance.explaining import inquiry
from attnspec.conformance.explaining.declaration import Declaration, lines, with_attributes
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.description import contract_from, described
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.reporting.junit import as_junit
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import closing_line, headline, violations
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.running import suite
from attnspec.conformance.running.in_process import InProcess
from attnspec.conformance.running.messages import JUDGED_AGAIN, PASTE, paste_text
from attnspec.conformance.running.settings import Settings

from .first_kernels import C_SOURCE, RIGHT, WRONG
from .test_cli import attnspec, write_backend
from .test_declaring import contract
from .test_left_out import cut_to_fit
from .test_report import SCHEMA

PASTED = paste_text("into the backend", conforms=True, accepted=False)


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each diagnosis enough time even on a busy processor."""
    monkeypatch.setattr(inquiry, "SECONDS", 120)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_kernel_conforms_after_one_paste(kind: str, tmp_path: Path) -> None:
    code = RIGHT[kind]
    for library in ("torch", "jax"):
        if f"import {library}" in code and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if "ctypes" in code:
        if shutil.which("cc") is None:
            pytest.skip("there is no C compiler")
        (tmp_path / "mine.c").write_text(C_SOURCE, encoding="utf-8")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", "libmine.so", "mine.c", "-lm"], cwd=tmp_path, check=True)
    call = ["check", write_backend(tmp_path, code), "--json", "r.json", "--hang-after", "60"]
    if "import torch" in code:  # gradients at two dtypes take long
        call += ["--dtype", "float32"]
    first = attnspec(*call, folder=tmp_path)
    assert first.returncode == 1, first.stdout + first.stderr
    assert first.stdout.startswith("mine conforms as declared below\n"), first.stdout
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    assert (report["verdict"], report["conforms_as_observed"], report["exit_status"]) == ("violates", True, 1)
    before, body, after = code.partition('name = "mine"\n')
    indent = before.rpartition("\n")[2]
    place = "into the body of class Backend" if indent else "at the end of the module"
    pasted = first.stdout.partition(paste_text(place, conforms=True, accepted=False))[2].strip()
    block = "".join(f"{indent}{line}\n" for line in pasted.splitlines())
    write_backend(tmp_path, before + body + block + after)
    second = attnspec(*call, folder=tmp_path)
    assert second.returncode == 0, second.stdout + second.stderr


@pytest.mark.slow
@pytest.mark.parametrize("defect", WRONG)
def test_a_defect_is_named_and_shown_beside_undeclared_choices(defect: str, tmp_path: Path) -> None:
    code, operation, laws = WRONG[defect]
    if "import torch" in code:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    dtype = "float64" if defect == "masked scores filled with −10⁹" else "float32"
    path = tmp_path / "wrong.py"
    path.write_text(code, encoding="utf-8")
    backend = load(str(path))
    own_contract = contract_of(backend, str(path), "cpu")
    case = next(case for case in cases(own_contract, operations=(operation,)) if case.dtype == dtype)
    run = InProcess(backend, own_contract, replace(case, laws=laws), Settings())
    failed = [r for r in run.judged({}) if r.violates]
    explanation = run.explanation(failed)
    assert explanation.diagnosis is not None
    assert explanation.diagnosis.same[0] == defect
    shown = {**{r.law: r for r in failed}, **run.shown_as_observed(failed, explanation)}
    for law in set(laws) - set(explanation.undeclared["laws"]):
        example = shown[law].counterexample
        assert example is not None
        mask = example["arguments"].get("mask")
        assert not isinstance(mask, list) or np.asarray(mask).any(-1).all()
        (tmp_path / "script.py").write_text(example["snippet"], encoding="utf-8")
        script = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
        assert script.returncode == 1, script.stderr


EXPLAINED = Result("softmax", "semantics.fully_masked", "float32", Status.FAILED, "declared", "observed nan")
HOLDS = replace(EXPLAINED, status=Status.PASSED, reason=None, message="")
PROPOSED = Declaration(
    {"semantics": {"fully_masked": "nan"}},
    {("softmax", "semantics.fully_masked", "float32"): "semantics fully_masked = nan"},
    {"semantics": ("fully_masked = nan: What does a row without attendable keys give?",)},
)


def report(*, accept: bool = False, again: Status = Status.PASSED) -> Report:
    """Report of a run with one explained violation, judged again as declared."""
    settings = Settings(accept_observed=accept)
    as_declared = Report(
        with_attributes(contract(), PROPOSED.attributes), settings, (replace(HOLDS, status=again),), 1.0
    )
    return Report(contract(), settings, (EXPLAINED,), 2.0, declaration=PROPOSED, as_declared=as_declared)


def test_what_only_has_to_be_declared_is_said_in_the_verdict() -> None:
    first = report()
    assert (first.verdict, first.exit_status, first.conforms_as_observed) == ("violates", 1, True)
    assert "mine conforms as declared below" in headline(first)
    assert "1 of 1 laws hold" in closing_line(first)
    assert [text.plain for text in violations(first)] == ["", *PROPOSED.all_reasons]
    document = json.loads(first.as_text())
    jsonschema.validate(document, SCHEMA)
    assert (document["conforms_as_observed"], document["declaration_reasons"]) == (True, PROPOSED.all_reasons)
    assert PASTED in " ".join(as_html(first).split())
    assert ElementTree.fromstring(as_junit(first)).get("failures") == "1"


def test_an_accepted_declaration_gives_the_exit_status_0() -> None:
    accepted = report(accept=True)
    assert (accepted.verdict, accepted.exit_status) == ("conforms", 0)
    document = json.loads(accepted.as_text())
    jsonschema.validate(document, SCHEMA)
    assert (document["verdict"], document["accept_observed"]) == ("conforms", True)
    assert "because of --accept-observed" in " ".join(as_html(accepted).split())
    assert ElementTree.fromstring(as_junit(accepted)).get("failures") == "0"


@pytest.mark.parametrize("accept", [False, True])
def test_a_declaration_under_which_a_law_fails_is_not_accepted(accept: bool) -> None:
    violating = report(accept=accept, again=Status.FAILED)
    assert (violating.verdict, violating.exit_status, violating.conforms_as_observed) == ("violates", 1, False)
    assert "mine violates" in headline(violating)


def test_an_unexplained_violation_ends_the_proposal() -> None:
    other = replace(EXPLAINED, law="operation.oracle")
    assert Report(contract(), Settings(), (EXPLAINED,), 1.0, declaration=PROPOSED).is_explained
    assert not Report(contract(), Settings(), (EXPLAINED, other), 1.0, declaration=PROPOSED).is_explained
    assert not Report(contract(), Settings(), (HOLDS,), 1.0, declaration=PROPOSED).is_explained


MODULE_SEMANTICS = 'semantics = {"attendable_nan": "hidden"}\n'
CLASS = """
from attnspec import reference


class Mine:
    name = "mine"
    softmax = staticmethod(reference.softmax)
"""


@pytest.mark.parametrize("chosen", ["", ":Mine", ":mine"])
def test_attributes_of_the_module_beside_a_class_are_refused(chosen: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CLASS + "\n\nmine = Mine()\n" + MODULE_SEMANTICS, encoding="utf-8")
    with pytest.raises(BackendError, match=r"semantics: .* Paste it into the body of class Mine, or rename it$"):
        load(f"{path}{chosen}")


@pytest.mark.parametrize(
    "code",
    [
        CLASS + "    semantics = {}\n" + MODULE_SEMANTICS + "\n\nclass Other(Mine):\n    semantics = semantics\n",
        MODULE_SEMANTICS + CLASS + "    semantics = semantics\n",
        MODULE_SEMANTICS + CLASS + "\n\nclass Other(Mine):\n    semantics = {**semantics}\n",
        MODULE_SEMANTICS + CLASS + '\n\nname = "module"\nsoftmax = reference.softmax\n',
        CLASS + "\n\nfrom attnspec.spec.contract import limits, precision, semantics\n",
    ],
    ids=["own attribute", "the module's value", "another class has it", "the module is a backend", "modules"],
)
def test_attributes_of_a_module_that_may_be_read_are_accepted(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    assert load(f"{tmp_path / 'mine.py'}:Mine").name == "mine"


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("place", ["at the end of the module", "into the body of class Mine", "into the backend"])
def test_the_text_above_the_attributes_says_where_to_paste_them(place: str, accepted: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CLASS + '\n\nname = "module"\nsoftmax = reference.softmax\n', encoding="utf-8")
    module = load(str(path))
    backend = {"at": module, "into the body": module.Mine(), "into the backend": SimpleNamespace(**vars(module))}
    (judged,) = [x for begin, x in backend.items() if place.startswith(begin)]
    own_contract = contract_of(judged, "mine", "cpu")
    assert contract_from(json.loads(json.dumps(described(own_contract))), "mine").place == own_contract.place == place
    first = replace(report(accept=accepted), contract=own_contract)
    assert f"paste these attributes {place}. Judged once more with them, it conforms;" in first.paste_heading
    assert ("the exit status is 0 because" in first.paste_heading) is accepted
    assert ("until then the exit status is 1" in first.paste_heading) is not accepted


def test_attributes_are_read_as_if_they_were_pasted() -> None:
    attributes: dict[str, Any] = {
        "semantics": {"softmax": {"fully_masked": "nan"}, "*": {"rejection": "unchecked"}},
        "precision": {"float32": "tf32"},
        "limits": {"dtypes": ("float32",), "max_length": 40},
    }
    pasted = with_attributes(contract(), ast.literal_eval(repr(attributes)))
    assert pasted == contract(**attributes)


def test_a_suite_judges_again_what_it_proposes_to_paste() -> None:
    def message(attention: Any) -> str:
        judged = SimpleNamespace(name="mine", limits={"dtypes": ("float32",)}, scaled_dot_product_attention=attention)
        own_contract = contract_of(judged, "mine", "cpu")
        case = replace(cases(own_contract)[0], laws=("operation.oracle", "operation.rejection"))
        with pytest.raises(pytest.fail.Exception) as failed:
            suite.run_case(judged, own_contract, case, Settings(), lambda name, value: None)
        return str(failed.value)

    proposed = "rejection = unchecked, not raises: Does a shape or an index that violates the Protocol raise"
    heading = f"{JUDGED_AGAIN}:".format(place="into the backend", judged="scaled_dot_product_attention-float32")
    right = message(cut_to_fit)
    assert right.startswith(proposed)
    assert right.endswith(f'{heading}\nsemantics = {{"rejection": "unchecked"}}')
    wrong = message(lambda *arrays, **options: cut_to_fit(*arrays, **options) * np.float32(2))
    assert "operation.oracle is violated" in wrong
    assert PASTE.format(place="into the backend") in wrong
    assert heading not in wrong


@pytest.mark.parametrize("conforms", [False, True])
def test_the_page_and_the_table_propose_alike(conforms: bool) -> None:
    status = Status.PASSED if conforms else Status.FAILED
    shown = report(again=status)
    page = " ".join(as_html(shown).split())
    assert shown.proposal == (PROPOSED.all_reasons if conforms else list(lines(PROPOSED.explained)))
    for line in (*shown.proposal, shown.paste_heading):
        assert line in page
    assert [text.plain for text in violations(shown)][-len(shown.proposal) :] == shown.proposal
