"""The installed package: entry points resolve; the wheel holds the four portions and nothing else."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

from attnspec.spec import VERSION

from .modules import PORTIONS, ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BACKENDS = PROJECT["entry-points"]["attnspec.backends"]
LIBRARIES = {"pytorch": ["torch"], "torch": ["torch"], "jax": ["jax"], "onnx": ["onnx", "onnxruntime"]}
"""Libraries that a registered backend needs, by the first word of its name."""
PLUGIN = "_attnspec_pytest.py"
IGNORED = ("__pycache__", ".*", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that hatchling builds of a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PORTIONS, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (path,) = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_module_and_no_other(wheel: zipfile.ZipFile) -> None:
    sources = {str(m.path.relative_to(ROOT / m.portion)) for m in modules()}
    assert {n for n in wheel.namelist() if n.endswith(".py")} == sources | {PLUGIN}


def test_the_wheel_is_typed(wheel: zipfile.ZipFile) -> None:
    typed = {n for n in wheel.namelist() if n.endswith("py.typed")}
    assert typed == {f"attnspec/{portion}/py.typed" for portion in PORTIONS}


def test_the_wheel_holds_what_the_sources_read(wheel: zipfile.ZipFile) -> None:
    data = [
        path.relative_to(ROOT / portion).as_posix()
        for portion in PORTIONS
        for path in (ROOT / portion / "attnspec").rglob("*.*")
        if path.suffix in {".json", ".txt", ".cpp", ".tsv", ".md"}
        and not any(part.startswith(".") for part in path.parts)
    ]
    assert set(data) <= set(wheel.namelist())


def test_the_wheel_holds_metadata_besides(wheel: zipfile.ZipFile) -> None:
    tops = {n.split("/")[0] for n in wheel.namelist()}
    assert tops == {"attnspec", PLUGIN, f"attnspec-{VERSION}.dist-info"}
    names = {Path(n).name for n in wheel.namelist() if ".dist-info" in n}
    assert names == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


def test_the_console_script_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="attnspec")
    assert callable(script.load())
    done = subprocess.run(
        [Path(sys.executable).parent / "attnspec", "list", "backends"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in BACKENDS)


@pytest.mark.parametrize("command", ["attnspec", f"{sys.executable} -m attnspec"], ids=["script", "module"])
def test_the_command_prints_the_version(command: str, tmp_path: Path) -> None:
    done = subprocess.run([*command.split(), "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"attnspec {VERSION}\n", "")


def test_pytest_rewrites_none_of_a_users_modules(wheel: zipfile.ZipFile) -> None:
    """pytest guesses the modules of a plugin from its distribution's files."""
    from _pytest.config import _iter_rewritable_modules

    assert list(_iter_rewritable_modules(wheel.namelist())) == [PLUGIN.removesuffix(".py")]


def test_the_pytest_plugin_is_registered() -> None:
    (plugin,) = entry_points(group="pytest11", name="attnspec")
    assert hasattr(plugin.load(), "pytest_addoption")


@pytest.mark.parametrize("name", BACKENDS)
def test_registered_backends_resolve(name: str) -> None:
    for library in LIBRARIES.get(name.partition("-")[0], ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    (entry,) = entry_points(group="attnspec.backends", name=name)
    from attnspec.conformance import load

    assert load(name).name == name
    assert entry.load() is not None


def test_the_installed_metadata_is_that_of_the_sources() -> None:
    installed = distribution("attnspec")
    assert installed.version == VERSION
    required = {re.split(r"[ ;<>=!~\[]", r)[0] for r in installed.requires or [] if "extra ==" not in r}
    assert required == {re.split(r"[<>=!~\[]", r)[0] for r in PROJECT["dependencies"]}


def test_every_file_names_the_same_version_and_tools() -> None:
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M) == [VERSION]
    (ruff,) = re.findall(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert re.findall(r"rev: v(.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M) == [ruff]


def test_ci_tests_each_python_of_the_metadata() -> None:
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert re.findall(r"[\d.]+", matrix) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_constraints_are_exact_and_within_the_metadata() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [p for p in pins if not re.fullmatch(r"[a-z0-9.-]+==[\w.]+", p)] == []
    pinned = {name: version for name, _, version in (p.partition("==") for p in pins)}
    extras = [r for rs in PROJECT["optional-dependencies"].values() for r in rs]
    for requirement in [*PROJECT["dependencies"], *extras]:
        match = re.match(r"([a-z0-9-]+)>=([\d.]+)", requirement)
        if match:
            assert release(pinned[match[1]]) >= release(match[2]), requirement


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
