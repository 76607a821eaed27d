"""The proofs assume nothing, and documentation, reference and specification agree with them."""

import re
import runpy

import pytest

from attnspec.reference.defining.two_point import _PRIMITIVE
from attnspec.spec import LAWS
from attnspec.spec.contract.precision import precision

from .modules import ROOT

COMPILE = runpy.run_path(str(ROOT / "proofs" / "compile.py"))


def test_nothing_is_assumed() -> None:
    assert COMPILE["unproved"]() == []


@pytest.mark.parametrize(
    "command",
    [
        "Admitted.",
        "Admit Obligations.",
        "Axiom a : False.",
        "Parameter x : R.",
        "admit.",
        "Unset Guard Checking.",
        "Unset Positivity Checking.",
        "Local Unset  Universe\nChecking.",
        "#[bypass_check(guard)]",
    ],
)
def test_assumptions_are_found(command: str) -> None:
    assert COMPILE["UNPROVED"].search(COMPILE["without_comments"](f"(* a (* comment *) *)\n{command}"))
    assert not COMPILE["UNPROVED"].search(COMPILE["without_comments"](f"(* {command} (* inner *) *)"))


def test_assumptions_are_read_from_what_coq_prints() -> None:
    output = (
        "x\n     : nat\nAxioms:\nClassical_Prop.classic : forall P : Prop, P \\/ ~ P\nlemma : 0 = 1\nlong_name\n  : R\n"
    )
    for printed in (output, output[output.index("Axioms:") :]):
        assert COMPILE["assumptions"](printed) == ["Classical_Prop.classic", "lemma", "long_name"]


@pytest.mark.parametrize("reported", ["loop is assumed to be positive.", "loop relies on an unsafe hierarchy."])
def test_skipped_checks_are_read_from_what_coq_prints(reported: str) -> None:
    assert COMPILE["UNCHECKED"].findall(f"Axioms:\n{reported}\nlemma : 0 = 1\n") == [reported]
    assert not COMPILE["UNCHECKED"].search("Axioms:\nlemma : 0 = 1\n")


def test_the_documentation_states_the_number_of_theorems() -> None:
    text = (ROOT / "docs" / "proved.md").read_text(encoding="utf-8")
    assert re.findall(r"all (\d+) theorems", text) == [str(len(COMPILE["theorems"]()))]


def test_every_file_is_compiled() -> None:
    assert sorted(COMPILE["files"]()) == sorted(path.name for path in (ROOT / "proofs").glob("*.v"))


def test_the_theorems_that_the_documentation_names_exist() -> None:
    text = (ROOT / "docs" / "proved.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z]\w+\.\w{2,})`", text))
    assert {"Bound.attention_bound", "Laws.softmax_row_sum", "Moments.dot_product_variance"} <= named
    assert named - set(COMPILE["theorems"]()) == set()


def test_the_laws_that_the_documentation_names_exist() -> None:
    text = (ROOT / "docs" / "proved.md").read_text(encoding="utf-8")
    laws = re.findall(r"^\| [^|]* \| `([^`]+)` \| `([^`]+)` \|", text, re.MULTILINE)
    assert len(laws) == 4
    assert [name for name, _ in laws if name not in LAWS] == []
    checks = ROOT / "conformance" / "attnspec" / "conformance" / "laws"
    assert [file for _, file in laws if not (checks / file).exists()] == []


def test_primitive_polynomials_are_those_of_the_reference() -> None:
    text = (ROOT / "proofs" / "TwoPoint.v").read_text(encoding="utf-8")
    (listed,) = re.findall(r"Definition primitive : list N := \[([\d; ]+)\]%N", text)
    assert [int(x) for x in listed.split(";")] == [*_PRIMITIVE.values()]


def test_the_classes_of_the_proofs_are_those_of_the_specification() -> None:
    text = (ROOT / "proofs" / "Formats.v").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^Theorem (\w+) :\s+within_bound (.*)\.$", text, re.MULTILINE))
    assert len(stated) == 4
    for name, numbers in stated.items():
        p = precision(name.replace("_", "-"))
        powers = re.findall(r"\(bpow radix2 \((-\d+)\)\)|\b(0)\b", numbers)
        fields = (p.accumulation, p.smallest, p.weights, p.weights_smallest, p.output, p.output_smallest)
        assert tuple(2.0 ** int(power) if power else 0.0 for power, _ in powers) == fields
        assert (p.inputs, p.stored, p.scaled, p.weights_scaled) == (0, 0, 0, 0)
