"""Sessions of nox, ``nox -s NAME -- ARGUMENTS``: tests, checks, judging, benchmarks and documents.

Every session runs in its own environment, which takes only Python from the machine. ``constraints.txt`` constrains
every installation, except in ``minimums``, which makes its own constraints. ``--force-python 3.13`` runs a session on
another Python.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "tests", "conformance"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_external_run = True

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
CORE, CHECK = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]["check"]
BACKENDS = ("pytorch", "torch-native")
ONNX = ("onnx-runtime", "onnx-reference")
ONNX_TESTS = ("tests/backends/test_onnx_native.py", "tests/backends/test_onnx_nodes.py")
PARALLEL = ("-n", str((os.cpu_count() or 1) + 1))
"""One process more than there are processors, since many tests wait for a process that they have started."""

SWITCHES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ATTNSPEC_TEST_INSTRUCTIONS")

INSTRUCTION_SETS = {
    name: (needed, dict(zip(SWITCHES, values, strict=True)))
    for name, needed, values in (
        ("default", (), ("default", "SSE41", "SSE4_2", "avx2")),
        ("avx2", ("avx2", "fma"), ("avx2", "AVX2", "AVX2", "avx2")),
        ("avx512", ("avx512f", "avx512bw", "avx512vl"), ("avx512", "AVX512_CORE", "AVX512", "avx512")),
        ("amx", ("amx_tile", "amx_bf16"), ("avx512", "AVX512_CORE_AMX", "AVX512", "")),
    )
}
"""For each instruction set, the flags that a processor must have, and the values of `SWITCHES`.

Our own kernels, the last switch, have no version without AVX2 on x86: ``default`` runs them with AVX2.
"""


def group(name: str) -> list[str]:
    """Return the requirements of a dependency group; pip reads groups only from version 25.1 on."""
    return list(nox.project.dependency_groups(PROJECT, name))


def install(session: nox.Session, *requirements: str, constraints: Path = CONSTRAINTS) -> None:
    """Install under constraints, and unset the machine's variables for imports and pytest.

    Nothing is compiled at installation, since most installed modules are never imported. The rest compile at import.
    """
    session.env.update(PYTHONPATH=None, PYTEST_ADDOPTS=None, PYTHONDONTWRITEBYTECODE=None)
    session.install("-q", "--no-compile", "-c", str(constraints), *requirements)


def install_project(
    session: nox.Session, *requirements: str, extras: str = "", constraints: Path = CONSTRAINTS
) -> None:
    """Install the project, editable, and requirements; not isolated, for constraints to hold."""
    install(session, *PROJECT["build-system"]["requires"], "editables", *requirements, constraints=constraints)
    install(session, "--no-build-isolation", "-e", f".[{extras}]" if extras else ".", constraints=constraints)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, except those marked slow; arguments are those of pytest.

    Slow are tests that compile, that judge many backends, and those with backends that hang, end their process or forge
    verdicts. ``nox -s tests -- -m slow`` runs them, and only them.
    """
    install_project(session, *group("test"), extras="check,cpu,triton,onnx")
    session.run("python", "-m", "pytest", *PARALLEL, "-m", "not slow", *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """Check a change: style, types, mutants, and the tests that import files that it changes.

    Changes are those since ``origin/main``, or since the commit in the argument. Trials of mutants are kept between
    runs; only those that a change concerns are repeated. CI runs all tests, the slow ones too.
    """
    install_project(session, *group("lint"), *group("typing"), *group("test"), extras="check,cpu,triton")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    output = session.run("python", "-m", "tests.touched", *session.posargs, silent=True)
    files = str(output).split()
    session.log(f"{len(files)} files of tests: {' '.join(files)}")
    failed = False
    try:
        session.run("python", "-m", "pytest", *PARALLEL, "-m", "not slow", *files)
    except CommandFailed:
        failed = True  # judge the mutants nevertheless: they may fail for another reason
    if {"tests", "tests/conformance/test_mutants.py"} & {*files}:
        session.run("attnspec", "mutants", "--profile", "quick", "--keep", str(ROOT / ".nox" / "mutants.trials"))
    if failed:
        session.error("tests failed")


@nox.session
def processors(session: nox.Session) -> None:
    """Test the backends under each instruction set of the processor, with one thread and two.

    Arguments are those of pytest. An instruction set that the processor lacks gives a warning, no failure.
    """
    install_project(session, *group("test"), extras="check,cpu")
    arguments = session.posargs or ["-n", "logical", "tests/backends"]
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(re.findall(r"\w+", cpuinfo.read_text())) if cpuinfo.exists() else set()
    failed = []
    for name, (needed, settings) in INSTRUCTION_SETS.items():
        if lacking := set(needed) - flags:
            session.warn(f"{name}: not tested, since this processor lacks {', '.join(sorted(lacking))}")
            continue
        for threads in ("1", "2"):
            session.log(f"{name}, {threads} thread(s)")
            env = {**settings, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
            try:
                session.run("python", "-m", "pytest", *arguments, env=env)
            except CommandFailed:
                failed.append(f"{name}, {threads} thread(s)")
    if failed:
        session.error(f"tests failed under {'; '.join(failed)}")


@nox.session(venv_backend="none")
def proofs(session: nox.Session) -> None:
    """Compile the proofs with Coq and print the theorems; nothing is installed, and ``coqc`` has to be there."""
    session.run(sys.executable, "proofs/compile.py")


@nox.session
def conformance(session: nox.Session) -> None:
    """Judge a backend (``attnspec check``'s arguments); default: ``pytorch`` and ``torch-native``, isolated."""
    install_project(session, extras="check,cpu")
    for arguments in [session.posargs] if session.posargs else [[b, "--isolated"] for b in BACKENDS]:
        session.run("attnspec", "check", *arguments)


@nox.session
def matrix(session: nox.Session) -> None:
    """Judge all of PyTorch's kernels (``attnspec matrix``'s arguments); default: write ``docs/matrix``."""
    install_project(session, extras="check,torch")
    folder = ROOT / "docs" / "matrix"
    folder.mkdir(exist_ok=True)
    written = [
        f"--{form}={folder / f'torch.{end}'}" for form, end in (("json", "json"), ("markdown", "md"), ("html", "html"))
    ]
    session.run("attnspec", "matrix", *(session.posargs or ["torch", *written]))


@nox.session
def jax(session: nox.Session) -> None:
    """Judge JAX's own attention, and test its adapter (``attnspec check``'s arguments).

    JAX compiles every shape anew, so a check takes longer than elsewhere, and counts as hanging after 60 seconds only.
    """
    install_project(session, *group("test"), extras="check,jax")
    session.run("python", "-m", "pytest", "-n", "logical", "tests/backends/test_jax_native.py")
    session.run("attnspec", "check", "jax-native", *(session.posargs or ["--isolated", "--hang-after", "60"]))


@nox.session
def onnx(session: nox.Session) -> None:
    """Judge ONNX Runtime and ONNX's reference evaluator, and test their adapter (``attnspec check``'s arguments).

    Both violate, as docs/adapters.md says; that is no failure of the session.
    """
    install_project(session, *group("test"), extras="check,onnx")
    session.run("python", "-m", "pytest", "-n", "logical", *ONNX_TESTS)
    for arguments in [session.posargs] if session.posargs else [[b, "--profile", "quick"] for b in ONNX]:
        session.run("attnspec", "check", *arguments, success_codes=[0, 1])


@nox.session
def transformers(session: nox.Session) -> None:
    """Compare converted layers with those of Hugging Face transformers (pytest's arguments)."""
    install_project(session, *group("test"), "transformers", extras="check,cpu")
    session.run("python", "-m", "pytest", "tests/backends/test_nn_hugging_face.py", *session.posargs)


@nox.session
def interpreted(session: nox.Session) -> None:
    """Judge the Triton kernels of additive attention on the CPU, in Triton's interpreter; slow."""
    install_project(session, extras="check,cpu,triton")
    operations = ("additive_scores", "additive_attention", "bahdanau_context")
    chosen = session.posargs or [argument for name in operations for argument in ("--operation", name)]
    session.run("attnspec", "check", "tests/backends/interpreted_triton.py", "--hang-after", "600", *chosen)


@nox.session
def typing(session: nox.Session) -> None:
    """Check types with mypy --strict, over the whole tree."""
    install_project(session, *group("typing"), extras="check,cpu,triton")
    session.run("mypy", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff: rules and format."""
    install(session, *group("lint"))
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site into ``build/site/html``, with warnings as errors, and test its links."""
    install_project(session, *group("site"), extras="check,cpu")
    source, built = ROOT / "build" / "site" / "source", ROOT / "build" / "site" / "html"
    shutil.rmtree(source.parent, ignore_errors=True)
    session.run("python", "docs/site/pages.py", str(source))
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-c", "docs/site", str(source), str(built))
    session.run("python", "-m", "pytest", "tests/test_site.py", env={"ATTNSPEC_SITE": str(built)})


@nox.session
def mutants(session: nox.Session) -> None:
    """Judge the suite by mutants and honest variants (``attnspec mutants``'s arguments)."""
    install_project(session, extras="check,cpu")
    session.run("attnspec", "mutants", *session.posargs)


@nox.session
def rediscovery(session: nox.Session) -> None:
    """Judge public defects of attention kernels, and write ``docs/rediscovery.md``."""
    install_project(session, extras="check")
    session.run("python", "docs/rediscovery.py")


def build_wheel(session: nox.Session, folder: Path) -> str:
    """Build the wheel, copy the programs of a third party beside it, and return the wheel's URL."""
    install(session, "build", *PROJECT["build-system"]["requires"])
    session.run("python", "-m", "build", "-q", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT))
    shutil.copytree(ROOT / "tests" / "typing" / "consumer", folder, dirs_exist_ok=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.as_uri()


@nox.session
def core(session: nox.Session) -> None:
    """Judge arrays with the wheel and its four dependencies; the command names the extra that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder).resolve()
        install(session, f"attnspec @ {build_wheel(session, outside)}")
        with session.chdir(outside):
            session.run("python", "-W", "error", "core.py")
            session.run("attnspec", "--version", success_codes=[2])


@nox.session
def consumer(session: nox.Session) -> None:
    """Use the wheel outside of the repository, as a third party would: type-check, import, judge."""
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder).resolve()
        install(session, f"attnspec[check,cpu] @ {build_wheel(session, outside)}", *group("typing"))
        with session.chdir(outside):
            session.run("mypy", "--strict", ".")
            session.run("python", "-W", "error", "imports.py")
            session.run("attnspec", "check", "adapter.py", "--profile", "quick", *session.posargs)
            session.run("python", "-m", "pytest", "-q", "-W", "error", "-n", "logical", "suite.py")


@nox.session
def minimums(session: nox.Session) -> None:
    """Test specification, reference and command line with the oldest versions of the metadata.

    PyTorch alone stays at the version of ``constraints.txt``: its older releases have CPU builds only on an index of
    their own.
    """
    required = [*CORE, *CHECK, *group("test")]
    oldest = Path(session.create_tmp()) / "oldest.txt"
    oldest.write_text("\n".join([*(re.sub(">=", "==", r) for r in required), *pinned("torch")]) + "\n")
    install_project(session, *group("test"), extras="check,torch", constraints=oldest)
    session.run("python", "-m", "pytest", "-n", "logical", "tests/spec", "tests/reference", *session.posargs)
    session.run("attnspec", "check", "reference", "--profile", "quick")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the PyTorch backend against PyTorch's own ways (``python -m benchmarks``'s arguments)."""
    install_project(session, extras="bench,triton")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Check the PyTorch backend on a GPU (``python -m benchmarks.gpu``'s arguments); ``-- --dry-run`` needs none.

    ``nox --no-venv`` takes the environment at hand, without installing anything. ``ATTNSPEC_WHEELS`` names a folder of
    wheels that replaces the package index. Nothing is constrained, since ``constraints.txt`` has PyTorch without CUDA.
    """
    if session.venv_backend == "none":
        folders = [str(ROOT / portion) for portion in ("spec", "reference", "backends", "conformance")]
        session.env["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        session.run(sys.executable, "-m", "benchmarks.gpu", *session.posargs, external=True)
        return
    wheels = os.environ.get("ATTNSPEC_WHEELS")
    source = ["--no-index", "--find-links", str(Path(wheels).resolve())] if wheels else []
    session.env.update(PYTHONPATH=None, PYTHONDONTWRITEBYTECODE=None)
    session.install("-q", *source, *PROJECT["build-system"]["requires"], "editables")
    session.install("-q", *source, "--no-build-isolation", "-e", ".[check,cpu,triton]")
    session.run("python", "-m", "benchmarks.gpu", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Train the example models (``python -m examples``'s arguments); default: both."""
    install_project(session, extras="examples")
    for arguments in [session.posargs] if session.posargs else [["bahdanau"], ["transformer"]]:
        session.run("python", "-m", "examples", *arguments)


def pinned(package: str) -> list[str]:
    """Return the lines of ``constraints.txt`` on one package."""
    return [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{package}==")]
