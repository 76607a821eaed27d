"""Adapters that `attnspec init` writes: each conforms as written, and no file is overwritten."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnspec.conformance import BackendError, load
from attnspec.conformance.templates import BUILD, FRAMEWORKS, SUFFIXES, write_adapter

from .test_cli import attnspec

COMPILERS = {"c": "cc", "cuda": "nvcc"}


def written(framework: str, folder: Path) -> str:
    """Write the adapter of a framework, build its library, and return its file name."""
    library = (
        framework if framework in ("torch", "triton", "jax", "mlx") else "torch" if framework == "cuda" else "numpy"
    )
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    name = f"my_{framework}.py"
    done = attnspec("init", "--framework", framework, name, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"judge: attnspec check {name}\n")
    if framework in BUILD:
        if shutil.which(COMPILERS[framework]) is None:
            pytest.skip(f"{COMPILERS[framework]} is not installed")
        (build,) = [line.removeprefix("build: ") for line in done.stdout.splitlines() if line.startswith("build: ")]
        built = subprocess.run(build.split(), cwd=folder, capture_output=True, text=True)
        assert (built.returncode, built.stderr) == (0, "")
    return name


@pytest.mark.parametrize("framework", ["numpy", "c", "torch"])
def test_an_adapter_conforms_as_written(framework: str, tmp_path: Path) -> None:
    done = attnspec("check", written(framework, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"my_{framework} conforms" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["triton", "jax", "mlx"])
def test_an_adapter_of_a_compiler_agrees_with_the_formula_as_written(framework: str, tmp_path: Path) -> None:
    """All laws would take more than ten minutes."""
    name = written(framework, tmp_path)
    interpreted = {"TRITON_INTERPRET": "1"} if framework == "triton" else {}
    done = attnspec("check", name, "--hang-after", "600", "--law", "operation.oracle", folder=tmp_path, **interpreted)
    assert done.returncode == 0, done.stdout
    assert f"my_{framework} conforms" in done.stdout


def test_the_adapter_of_cuda_compiles_and_names_its_device(tmp_path: Path) -> None:
    """Judging it needs a GPU. On another machine its call of the library is the one of the documented adapter."""
    name = written("cuda", tmp_path)
    assert (tmp_path / "libmy_cuda.so").is_file()
    done = attnspec("check", name, "--device", "cpu", folder=tmp_path)
    assert done.returncode == 2
    assert "expected one of cuda" in done.stderr


def test_every_template_is_of_a_framework_and_substitutes_its_names(tmp_path: Path) -> None:
    for framework in FRAMEWORKS:
        files, _ = write_adapter(framework, tmp_path / f"of_{framework}.py")
        assert {file.suffix for file in files} <= set(SUFFIXES)
        assert [file for file in files if "$" in file.read_text(encoding="utf-8")] == []
        compile(files[0].read_text(encoding="utf-8"), str(files[0]), "exec")
        assert f"class Of{framework.capitalize()}(" in files[0].read_text(encoding="utf-8")


REFUSED = {
    ("--framework", "tensorflow", "mine.py"): "--framework: expected one of",
    ("mine.txt",): "init: expected a file named like a Python module, such as mine.py; got 'mine.txt'",
    ("my-kernel.py",): "init: expected a file named like a Python module, such as mine.py; got 'my-kernel.py'",
    ("no/such/mine.py",): "init: expected a file that can be written; got 'no/such/mine.py'",
    ("old.py",): "init: expected a file that does not exist yet; got 'old.py'",
    ("--framework", "c", "kernel.py"): "init: expected a file that does not exist yet; got 'kernel.c'",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_init_refuses_files_that_it_cannot_write(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("old.py", "kernel.c"):
        (tmp_path / name).write_text("kept")
    done = attnspec("init", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert REFUSED[arguments] in done.stderr
    assert [(tmp_path / name).read_text() for name in ("old.py", "kernel.c")] == ["kept", "kept"]
    assert sorted(os.listdir(tmp_path)) == ["kernel.c", "old.py"]


@pytest.mark.parametrize("framework", ["c", "cuda"])
def test_a_library_that_is_not_built_is_named_with_its_command(framework: str, tmp_path: Path) -> None:
    if framework == "cuda" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    files, build = write_adapter(framework, tmp_path / f"unbuilt_{framework}.py")
    with pytest.raises(BackendError) as raised:
        load(str(files[0]))
    assert f"no libunbuilt_{framework}.so: build it by {build}" in str(raised.value)
