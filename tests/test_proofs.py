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


@pytest.mark.parametrize("command", ["Admitted.", "Axiom a : False.", "Parameter x : R.", "admit."])
def test_assumptions_are_found(command: str) -> None:
    assert COMPILE["UNPROVED"].search(COMPILE["without_comments"](f"(* a (* comment *) *)\n{command}"))
    assert not COMPILE["UNPROVED"].search(COMPILE["without_comments"](f"(* {command} (* inner *) *)"))


def test_assumptions_are_read_from_what_coq_prints() -> None:
    output = (
        "x\n     : nat\nAxioms:\nClassical_Prop.classic : forall P : Prop, P \\/ ~ P\nlemma : 0 = 1\nlong_name\n  : R\n"
    )
    assert COMPILE["assumptions"](output) == ["Classical_Prop.classic", "lemma", "long_name"]


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
