"""Backends that can be judged, and messages about others and about unknown names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec.conformance import BackendError, judge, load
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.spec import LAWS

CLASS = """
class Mine:
    name = "mine"

    def dot_scores(self, query, key):
        return query @ key.mT
"""
IMPORTED = "from attnspec.reference import softmax\n"
DEFINED = "def softmax(scores):\n    return scores\n"


def loaded(folder: Path, code: str) -> Any:
    (folder / "mine.py").write_text(code)
    return load(str(folder / "mine.py"))


def test_an_imported_function_makes_no_backend_of_a_file_with_a_class(tmp_path: Path) -> None:
    assert type(loaded(tmp_path, IMPORTED + CLASS)).__name__ == "Mine"


@pytest.mark.parametrize(("module", "hint"), [("jax", "; install it: pip install 'attnspec[jax]'"), ("jix", "")])
def test_the_extra_of_a_missing_package_is_named(module: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError) as raised:
        loaded(tmp_path, f"raise ModuleNotFoundError('no module {module}', name={module!r})")
    assert str(raised.value).partition("mine.py:1)")[2] == hint


def test_a_file_with_a_name_is_the_backend(tmp_path: Path) -> None:
    assert loaded(tmp_path, "name = 'file'\n" + DEFINED + CLASS).name == "file"


@pytest.mark.parametrize(
    ("code", "function", "attribute"),
    [
        (IMPORTED, "softmax, imported from attnspec.reference.normalization,", "Class"),
        (DEFINED, "softmax", "Class"),
        (DEFINED + CLASS, "softmax", "Mine"),
        (DEFINED + CLASS + CLASS.replace("Mine", "Other"), "softmax", "Mine"),
    ],
)
def test_the_message_for_a_file_without_a_name_names_the_function_that_makes_it_a_backend(
    tmp_path: Path, code: str, function: str, attribute: str
) -> None:
    with pytest.raises(BackendError) as raised:
        loaded(tmp_path, code)
    file = str(tmp_path / "mine.py")
    assert str(raised.value) == (
        f"backend {file!r}: name: expected a non-empty string, since the function {function} makes this module a "
        f"backend; got none. Add one, such as name = 'my-kernels', or judge a class as {file}:{attribute}"
    )


def backend(function: Any, **attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(name="mine", rnn_cell=function, **attributes)


def test_an_argument_with_another_name_is_refused_before_the_first_gradient() -> None:
    def function(x: Any, state: Any, p: Any) -> Any:
        return x

    with pytest.raises(ValueError, match=r"^rnn_cell") as raised:
        Contract.of(backend(function, vjp=print))
    assert str(raised.value) == (
        "rnn_cell: expected an argument 'parameters', since vjp passes arguments by name; got 'p'. "
        "The signature is (x, state, parameters)"
    )
    assert Contract.of(backend(function)).operations == ("rnn_cell",)


@pytest.mark.parametrize(
    "function",
    [lambda x, state, parameters, more=None: x, lambda *arguments: arguments, lambda **arguments: arguments, max],
)
def test_signatures_without_other_names_are_accepted(function: Any) -> None:
    assert Contract.of(backend(function, vjp=print)).operations == ("rnn_cell",)


@pytest.mark.parametrize(
    ("options", "limits", "got"),
    [
        ("attn_mask=None, causal=False", {}, "an option 'mask'; got 'attn_mask'"),
        ("mask=None, is_causal=False", {"mask": False}, "an option 'causal'; got 'is_causal'"),
        ("attn_mask=None, causal=False", {"mask": False}, ""),
        ("mask=None, causal=False, is_fast=True", {}, ""),
    ],
)
def test_an_option_with_another_name_is_refused(options: str, limits: Any, got: str) -> None:
    functions: dict[str, Any] = {}
    exec(f"def attend(query, key, value, *, {options}): return value", functions)
    backend = SimpleNamespace(name="mine", limits=limits, scaled_dot_product_attention=functions["attend"])
    if not got:
        assert Contract.of(backend).operations == ("scaled_dot_product_attention",)
        return
    with pytest.raises(ValueError, match=f"^scaled_dot_product_attention: expected {got}. Rename it"):
        Contract.of(backend)


def test_laws_are_selected_by_patterns() -> None:
    contract = Contract.of(load("reference"))
    chosen = {law for case in Plan.of(contract, Settings(laws=("masking.*",))).cases for law in case.laws}
    assert chosen == {law for law in LAWS if law.startswith("masking.")}
    with pytest.raises(
        BackendError, match=r"^law: expected one of .*; got 'maskin\.\*'\. 'attnspec list laws' lists all$"
    ):
        Plan.of(contract, Settings(laws=("maskin.*",)))


def test_a_misspelt_class_or_modifier_gets_the_nearest_names() -> None:
    x = np.zeros((1, 1))
    with pytest.raises(ValueError, match=r"^precision: expected a class among ieee32, .*…; got 'iee32'$"):
        judge("softmax", x, x, precision="iee32")
    with pytest.raises(ValueError, match=r"^precision: expected a modifier among fast-tanh, …; got 'fast-than'$"):
        judge("softmax", x, x, precision="ieee32+fast-than")
