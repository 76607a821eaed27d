"""Sessions of attnspec. Extra arguments pass through: ``nox -s conformance -- torch-native --profile full``."""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "tests", "conformance"]
nox.options.error_on_external_run = True

ROOT = Path(__file__).parent
CONSTRAINTS = str(ROOT / "constraints.txt")
BACKENDS = ("pytorch", "torch-native")


def install(session: nox.Session, *what: str) -> None:
    """Install under the constraints, which take the small CPU build of PyTorch."""
    session.install("-q", "-c", CONSTRAINTS, *what, env={"PIP_CONSTRAINT": CONSTRAINTS})


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return nox.project.dependency_groups(nox.project.load_toml(ROOT / "pyproject.toml"), name)  # type: ignore[return-value]


@nox.session
def tests(session: nox.Session) -> None:
    """The tests of the project itself: reference, errata, laws, mutants, backends, command line."""
    install(session, "-e", ".[cpu,triton,bench]", *group("test"))
    session.run("python", "-m", "pytest", "-n", "logical", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Verdicts on PyTorch's own attention and on ours, or on the backend that is named."""
    install(session, "-e", ".[cpu]")
    if session.posargs:
        session.run("attnspec", "check", *session.posargs)
        return
    for backend in BACKENDS:
        session.run("attnspec", "check", backend, "--profile", "quick")


@nox.session
def typing(session: nox.Session) -> None:
    """mypy --strict over the whole tree."""
    install(session, "-e", ".[cpu,triton,bench]", *group("typing"))
    session.run("mypy", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: lint and format."""
    install(session, *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def mutants(session: nox.Session) -> None:
    """The kill matrix: every mutant is killed, no honest variant is harmed."""
    install(session, "-e", ".[cpu]")
    session.run("attnspec", "mutants", *session.posargs)


@nox.session
def consumer(session: nox.Session) -> None:
    """What a third party does: install the wheel, type-check an adapter against it, judge the adapter."""
    install(session, "build", "hatchling")
    folder = Path(session.create_tmp())
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.run("python", "-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("*.whl")
    install(session, f"attnspec[cpu] @ {wheel.as_uri()}", *group("typing"))
    sample = folder / "adapter.py"
    shutil.copy(ROOT / "tests" / "typing" / "consumer.py", sample)
    with session.chdir(folder):
        session.run("mypy", "--strict", "adapter.py")
        session.run("attnspec", "check", "adapter.py", "--profile", "quick")


@nox.session
def minimums(session: nox.Session) -> None:
    """The oldest versions that the metadata allows, without PyTorch, whose old CPU builds are not at hand."""
    oldest = ["numpy==2.3.0", "jaxtyping==0.3.2", "hypothesis==6.130.0", "pytest==9.0.0", "pytest-xdist==3.8.0"]
    session.install("-q", "-e", ".", *oldest, "typer==0.15.1", "rich==13.9.4", "mpmath", "scipy", "beartype")
    session.run("python", "-m", "pytest", "tests/spec", "tests/reference", *session.posargs)
    session.run("attnspec", "check", "reference", "--profile", "quick")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks: this backend against PyTorch, compiled formulas and the limits of the machine."""
    install(session, "-e", ".[bench,triton]")
    session.run("python", "-m", "benchmarks", *session.posargs)
