"""Compilation of the proofs, with the statements and the assumptions of the named theorems: ``nox -s proofs``."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
THEOREMS = {
    "Laws": ("softmax_row_sum", "permutation_equivariance_of_keys", "permutation_equivariance", "causal_prefix"),
    "Moments": ("dot_product_mean", "dot_product_variance", "scaled_dot_product_variance"),
    "TwoPoint": ("two_point_design_is_exact",),
    "Rounding": ("evaluated_dot_product", "dot_product_error", "total_error", "three_roundings"),
    "Pooling": ("pooling_error", "pooling_error_squares", "pooling_error_farthest", "mass_moved"),
    "Bound": ("attention_bound", "exact_kernel", "empty_row"),
    "Formats": (
        *(
            "computed_model",
            "computed_normal",
            "computed_rounded",
            "computed_sum",
            "nearest_sum",
            "scale_by_reciprocal",
            "scale_by_division",
        ),
        *("exponent_to_base_e", "exponent_to_base_2", "quotient_by_division", "quotient_by_reciprocal"),
        *("binary32", "binary64", "bfloat16", "binary16"),
        *("nearest_kernel", "ieee32", "ieee64", "mixed_bfloat16", "mixed_float16"),
    ),
}
"""Theorems by file, whose statements and assumptions are printed."""

ALLOWED = (
    "ClassicalDedekindReals.sig_not_dec",
    "ClassicalDedekindReals.sig_forall_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
)
"""Assumptions of Coq's real numbers, and no other."""

UNPROVED = re.compile(r"\b(Admitted|admit|Axioms?|Parameters?|Conjecture|Abort|bypass_check|Unset Guard Checking)\b")
"""Commands by which a file claims what it does not prove."""

SECONDS = 120
NEEDED = "coqc is missing. Debian and Ubuntu have it: apt-get install coq libcoq-flocq"


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


def unproved() -> list[str]:
    """Return commands that assume something, with their files."""
    texts = ((name, without_comments((FOLDER / name).read_text("utf-8"))) for name in files())
    return [f"{name}: {match}" for name, text in texts for match in UNPROVED.findall(text)]


def assumptions(output: str) -> list[str]:
    """Return the names of the assumptions in what ``Print Assumptions`` has printed."""
    _, _, listed = output.partition("\nAxioms:\n")
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
    """Compile all files in a temporary folder, print the theorems, and exit with 1 if anything is assumed."""
    if not shutil.which("coqc"):
        sys.exit(f"proofs: {NEEDED}")
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
        modules = " ".join(THEOREMS)
        header = f"From Coq Require Import Reals List Permutation.\nFrom attnspec Require Import Sums {modules}.\n"
        names = [f"{module}.{name}" for module, theorems in THEOREMS.items() for name in theorems]
        checks = "".join(f"Check {name}.\n" for name in names)
        # One tuple of all theorems, since the assumptions of each take two seconds to collect.
        together = f"Definition theorems := ({', '.join(f'@{name}' for name in names)}).\nPrint Assumptions theorems.\n"
        (folder / "Printed.v").write_text(f"{header}Open Scope R_scope.\n{checks}{together}", "utf-8")
        output = compiled(folder, "Printed.v", start + SECONDS)
    print(output)
    assumed = sorted(set(assumptions(output)))
    print(f"{len(names)} theorems, in {time.monotonic() - start:.0f} s. They assume: {', '.join(assumed)}")
    if foreign := [name for name in assumed if name not in ALLOWED]:
        sys.exit(f"proofs: expected the assumptions of the real numbers alone; got {', '.join(foreign)}")


if __name__ == "__main__":
    main()
