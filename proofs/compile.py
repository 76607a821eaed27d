"""Compilation of the proofs; prints the theorems and their assumptions: ``nox -s proofs``."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
ALLOWED = (
    "ClassicalDedekindReals.sig_not_dec",
    "ClassicalDedekindReals.sig_forall_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
)
"""Axioms of Coq's real numbers; theorems may use no others."""

UNPROVED = re.compile(
    r"\b(Admit\w*|admit|give_up|Axioms?|Parameters?|Conjectures?|Abort|bypass_check"
    r"|Unset\s+[\w\s]*Checking|Type In Type)\b"
)
"""Commands that assume a statement or skip a check."""

UNCHECKED = re.compile(r"^.*(?:is assumed to be|relies on).*$", re.MULTILINE)
"""Lines by which ``Print Assumptions`` reports definitions whose check was skipped."""

THEOREM = re.compile(r"^(?:Theorem|Corollary) (\w+)", re.MULTILINE)

DEFINITION = re.compile(r"^(?:Definition|Fixpoint|Inductive|Record) (\w+)", re.MULTILINE)

STATED = ("Rounding.v", "Bound.v")
"""Files whose definitions are printed, since the bound's statement consists of them."""

SECONDS = 120
"""Time limit for all files together."""


def files() -> list[str]:
    """Return the names of the files in the order in which they are compiled."""
    return [line for line in (FOLDER / "_CoqProject").read_text("utf-8").split() if line.endswith(".v")]


def without_comments(text: str) -> str:
    """Remove comments, also nested ones."""
    while "(*" in text:
        shorter = re.sub(r"\(\*(?:(?!\(\*|\*\)).)*\*\)", " ", text, flags=re.DOTALL)
        if shorter == text:
            raise ValueError("proofs: a comment has no end")
        text = shorter
    return text


def code(name: str) -> str:
    """Return the text of a file without comments."""
    return without_comments((FOLDER / name).read_text("utf-8"))


def unproved() -> list[str]:
    """Return commands that assume something, with their files."""
    return [f"{name}: {match}" for name in files() for match in UNPROVED.findall(code(name))]


def named(pattern: re.Pattern[str], among: Iterable[str]) -> list[str]:
    """Return what a pattern names in the files ``among``, with their modules."""
    return [f"{Path(name).stem}.{found}" for name in among for found in pattern.findall(code(name))]


def theorems() -> list[str]:
    """Return the names of all theorems, with their modules."""
    return named(THEOREM, files())


def assumptions(output: str) -> list[str]:
    """Return the names of the assumptions in what ``Print Assumptions`` has printed."""
    _, _, listed = f"\n{output}".partition("\nAxioms:\n")
    return re.findall(r"^([\w.']+)(?=\s*:|$)", listed, re.MULTILINE)


def compiled(folder: Path, name: str, deadline: float) -> str:
    """Compile one file and return what it prints; exit with its message if it fails."""
    command = ["coqc", "-q", "-Q", ".", "attnspec", name]
    left = max(deadline - time.monotonic(), 1)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        sys.exit(f"proofs: {name} was not compiled within {SECONDS} seconds for all files")
    if done.returncode:
        sys.exit(f"proofs: {name} does not compile\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Compile all files in a temporary folder, print definitions and theorems, and exit with 1 if they assume more."""
    if not shutil.which("coqc"):
        sys.exit("proofs: coqc is missing. Debian and Ubuntu have it: apt-get install coq libcoq-flocq")
    if claims := unproved():
        sys.exit(f"proofs: nothing may be assumed; found {', '.join(claims)}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in files():
            shutil.copy(FOLDER / name, folder)
            began = time.monotonic()
            compiled(folder, name, start + SECONDS)
            print(f"{name}: {time.monotonic() - began:.1f} s")
        modules = " ".join(Path(name).stem for name in files())
        header = f"From Coq Require Import Reals List Permutation.\nFrom attnspec Require Import {modules}.\n"
        names = theorems()
        checks = "".join(f"Print {name}.\n" for name in named(DEFINITION, STATED))
        checks += "".join(f"Check {name}.\n" for name in names)
        # One tuple of all theorems, since the assumptions of each take two seconds to collect.
        together = f"Definition theorems := ({', '.join(f'@{name}' for name in names)}).\nPrint Assumptions theorems.\n"
        (folder / "Printed.v").write_text(f"{header}Open Scope R_scope.\n{checks}{together}", "utf-8")
        output = compiled(folder, "Printed.v", start + SECONDS)
    print(output)
    if unchecked := UNCHECKED.findall(output):
        sys.exit(f"proofs: nothing may be left unchecked; Coq reports {'; '.join(unchecked)}")
    assumed = sorted(set(assumptions(output)))
    print(f"{len(names)} theorems, in {time.monotonic() - start:.0f} s. They assume: {', '.join(assumed)}")
    if foreign := [name for name in assumed if name not in ALLOWED]:
        sys.exit(f"proofs: expected the assumptions of the real numbers alone; got {', '.join(foreign)}")


if __name__ == "__main__":
    main()
