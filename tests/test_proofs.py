"""The proofs assume nothing, and the theorems that the documentation names are in their files."""

import re
import runpy

import pytest

from .modules import ROOT

COMPILE = runpy.run_path(str(ROOT / "proofs" / "compile.py"))
STATEMENT = re.compile(r"^(?:Theorem|Corollary) (\w+)", re.MULTILINE)


def theorems(name: str) -> list[str]:
    return STATEMENT.findall(COMPILE["without_comments"]((ROOT / "proofs" / name).read_text(encoding="utf-8")))


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


def test_every_theorem_is_printed() -> None:
    stated = {(name.removesuffix(".v"), theorem) for name in COMPILE["files"]() for theorem in theorems(name)}
    assert stated == {(name, theorem) for name, printed in COMPILE["THEOREMS"].items() for theorem in printed}
