"""Machine code that is kept between processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("llvmlite", reason="the kernels need llvmlite")

from attnspec.backends.pytorch.kernels.llvm import code_cache, codegen
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments, Reals, Size
from attnspec.backends.pytorch.kernels.llvm.codegen import Kernel, compiled
from attnspec.backends.pytorch.kernels.llvm.machine_code import object_file
from attnspec.backends.pytorch.kernels.llvm.threads import run

from .concurrency import run_on_threads


class Doubling(Arguments):
    count: Size
    x: Reals


def doubling(bits: int, *, times: float = 2.0) -> Kernel[Doubling]:
    """x[i] *= times, in whole vectors."""
    k = Kernel("doubling", Doubling, bits)
    with k.loop(0, k.argument.count, k.lanes) as i:
        k.store(k.load(k.argument.x, i) * times, k.argument.x, i)
    return k


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which code will be kept; it does not exist yet."""
    monkeypatch.setenv(code_cache.SWITCH, str(tmp_path))
    code_cache._warn.cache_clear()
    return tmp_path / "kernels"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The assembly of every kernel that LLVM has compiled."""
    assemblies: list[str] = []

    def noted(assembly: str) -> bytes:
        assemblies.append(assembly)
        return object_file(assembly)

    monkeypatch.setattr(codegen, "object_file", noted)
    return assemblies


def result(**options: Any) -> float:
    """The kernel's result for 3; its code is looked up again, as in another process."""
    x = torch.full((16,), 3.0)
    run(compiled(doubling)(32, **options), 1, Doubling(count=16, x=x))
    assert (x == x[0]).all()
    return float(x[0])


def test_code_is_compiled_once(folder: Path, compilations: list[str]) -> None:
    assert [result() for _ in range(3)] == [6.0, 6.0, 6.0]
    assert len(compilations) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_other_parameters_are_other_code(folder: Path, compilations: list[str]) -> None:
    assert (result(), result(times=5.0), result(times=5.0)) == (6.0, 15.0, 15.0)
    assert len(compilations) == len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("sources", ["other kernels", "another processor"])
def test_code_of_other_surroundings_is_not_taken(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, sources: str
) -> None:
    result()
    monkeypatch.setattr(code_cache, "_environment", lambda: sources)
    assert result() == 6.0
    assert len(compilations) == 2


@pytest.mark.parametrize("spoil", [lambda x: x[:-7], lambda x: x[:99] + b"?" + x[100:], lambda x: b""])
def test_a_spoilt_file_is_replaced(folder: Path, compilations: list[str], spoil: Any) -> None:
    result()
    (path,) = folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(spoil(content))
    assert result() == 6.0
    assert len(compilations) == 2
    assert path.read_bytes() == content


def test_code_under_the_name_of_other_code_is_not_taken(folder: Path, compilations: list[str]) -> None:
    assert (result(), result(times=5.0)) == (6.0, 15.0)
    first, second = folder.iterdir()
    first.write_bytes(second.read_bytes())
    assert (result(), result(times=5.0)) == (6.0, 15.0)
    assert len(compilations) == 3


def test_nothing_is_kept_of_sources_that_were_replaced(
    folder: Path, compilations: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has loaded other sources than a new process would find."""
    source = tmp_path / "kernel.py"
    source.write_text("before")
    monkeypatch.setattr(code_cache, "_PATHS", (source,))
    monkeypatch.setattr(code_cache, "_TIMES_AT_IMPORT", code_cache._times())
    assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == len(list(folder.iterdir())) == 1
    os.utime(source, (0, 0))  # a module that is loaded from now on may be another one
    assert (result(), result(times=5.0)) == (6.0, 15.0)
    source.unlink()
    assert result(times=7.0) == 21.0
    assert len(compilations) == 4
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("word", ["OFF", "off", "0", "no", "False", "none"])
def test_nothing_is_kept_if_it_is_switched_off(
    word: str, folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.SWITCH, word)
    monkeypatch.chdir(folder.parent)
    assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == 2
    assert not folder.exists()
    assert not Path(word).exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no mode of the user here")
def test_code_in_a_folder_that_others_can_write_to_is_not_run(folder: Path, compilations: list[str]) -> None:
    result()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"ATTNSPEC_CACHE: .*kernels' is open to other users .*0700, got 0777"):
        assert result() == 6.0
    assert len(compilations) == 2


def test_the_folder_that_is_named_may_be_open_to_others(folder: Path, compilations: list[str]) -> None:
    folder.parent.chmod(0o755)
    assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == 1


def test_where_no_folder_can_be_made_kernels_are_compiled(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "file").write_text("no folder")
    named = str(folder.parent / "file" / "inside")
    monkeypatch.setenv(code_cache.SWITCH, named)
    with pytest.warns(RuntimeWarning, match=rf"'{named}/kernels' cannot be created .*: kernels are compiled"):
        assert result() == 6.0
    assert result() == 6.0, "without another warning"
    assert len(compilations) == 2


def test_where_there_is_no_such_user_kernels_are_compiled(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.SWITCH, "~nobody-of-this-name/cache")
    code_cache._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match="ATTNSPEC_CACHE: '~nobody-of-this-name/cache': Could not determine home"):
        assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == 2


def test_where_the_folder_cannot_be_read_kernels_are_compiled(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)  # root may read everywhere
    with pytest.warns(RuntimeWarning, match=r"kernels' cannot be read: kernels are compiled in every process"):
        assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == 2


def test_the_folder_may_be_in_that_of_the_user(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv(code_cache.SWITCH, "~")
    assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == len(list(folder.iterdir())) == 1


def test_where_nothing_can_be_written_kernels_are_compiled(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert (result(), result()) == (6.0, 6.0)
    assert len(compilations) == 2
    assert not list(folder.iterdir())


SMALL = """
import dataclasses, torch
from attnspec.backends import pytorch
dataclasses.dataclass = None  # to make one with all its methods takes two milliseconds
x, w = torch.randn(1, 1, 1, 8, requires_grad=True), torch.randn(8, 8)
pytorch.additive_attention(x, x, x, w, w, w[0]).sum().backward()
pytorch.scaled_dot_product_attention(x, x, x).sum().backward()
pytorch.grouped_query_attention(x, x, x)[0].sum().backward()
"""


def test_small_first_calls_make_no_whole_dataclasses() -> None:
    subprocess.run([sys.executable, "-c", SMALL], check=True, timeout=300)


def test_threads_that_need_a_kernel_at_once_share_one(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code_cache.SWITCH, "off")
    kernel, kernels = compiled(doubling), []
    run_on_threads(lambda: kernels.append(kernel(32)), 8)
    assert len(compilations) == 1
    assert len(kernels) == 8
    assert len(set(map(id, kernels))) == 1
