"""Counterexamples for people: Python trees, numbers that JSON can hold, scripts that exit with 1."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance import load
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import Effort, Profile
from attnspec.conformance.judging.snippet import counterexample, literal, readable
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.spec import OPERATIONS, Limits
from attnspec.spec.contract.tree import as_source

BACKEND = """
from attnspec import reference
from attnspec.spec.contract.tree import map_tree

name = "doubled"
semantics = {"gru_reset": "after"}


def gru_cell(x, state, parameters):
    with reference.choosing(gru_reset="after"):
        return 2 * reference.gru_cell(x, state, parameters)


def lstm_cell(x, state, parameters):
    return tuple(2 * y for y in reference.lstm_cell(x, state, parameters))


def encoder_layer(x, parameters, *, mask=None, norm="post"):
    return 2 * reference.encoder_layer(x, parameters, mask=mask, norm=norm)
"""


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1.5, -2.0]]),
        np.array([np.nan, np.inf, -np.inf], np.float32),
        np.array([True, False]),
        np.array([1, 2]),
        np.zeros((0, 3)),
        np.zeros((30, 30)),
        np.arange(500.0).reshape(50, 10),
        np.array([0.5, 3.0], ml_dtypes.bfloat16),
    ],
    ids=lambda x: f"{x.dtype}{x.shape}",
)
def test_a_literal_is_the_array(x: np.ndarray[Any, Any]) -> None:
    import base64
    import zlib

    evaluated = eval(literal(x), {"np": np, "ml_dtypes": ml_dtypes, "base64": base64, "zlib": zlib})
    assert evaluated.dtype == x.dtype
    assert evaluated.shape == x.shape
    assert np.array_equal(evaluated.astype(np.float64), x.astype(np.float64), equal_nan=True)


def test_values_that_json_lacks_are_texts() -> None:
    assert readable(np.array([1.0, np.nan, np.inf, -np.inf])) == [1.0, "nan", "inf", "-inf"]
    assert readable(np.zeros((40, 40), np.float32)) == {"shape": [40, 40], "dtype": "float32"}
    assert readable(None) is None
    assert readable("post") == "post"


@pytest.mark.parametrize("name", ["lstm_cell", "encoder_layer", "vit_encoder"])
def test_a_tree_is_printed_as_python_builds_it(name: str) -> None:
    operation = OPERATIONS[name]
    (example,) = corners(operation, Limits(), seed=3, most=1, work=2.0**10)
    arguments = example.arguments(operation, "float64")
    import attnspec.spec as spec

    small = Arguments(operation, arguments.values_by_name)
    for size in tuple(small.sizes):
        small = small.along(size, lambda x, axis: np.take(x, [0], axis=axis))
    for argument, value in small.values_by_name.items():
        text = as_source(value, literal)
        rebuilt = eval(text, {**vars(spec), "np": np})
        assert as_source(rebuilt, literal) == text, argument
    reference.REFERENCE[name](**small.values_by_name)


@pytest.mark.parametrize("name", ["gru_cell", "lstm_cell", "encoder_layer"])
def test_a_snippet_builds_the_tree_and_exits_with_1(name: str, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(BACKEND, encoding="utf-8")
    backend = load(str(tmp_path / "doubled.py"))
    contract = Contract.of(backend, str(tmp_path / "doubled.py"))
    subject = Subject(backend, contract, OPERATIONS[name], "float64", "cpu")
    (example,) = corners(subject.operation, Limits(head_sizes=(2,)), seed=1, most=1, work=2.0**8)
    arguments = example.arguments(subject.operation, "float64")
    violation, *_ = attempt(subject, CHECKS["operation.oracle"][0], arguments, example.seed)
    assert violation is not None
    reduced_example = counterexample(subject, CHECKS["operation.oracle"][0], arguments, violation, example.seed)
    assert set(reduced_example["arguments"]) == set(arguments)
    assert "Parameters(" in reduced_example["snippet"]
    done = subprocess.run(
        [sys.executable, "-c", reduced_example["snippet"]], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert ("reference.choosing(gru_reset='after')" in reduced_example["snippet"]) == (
        "gru_reset" in reduced_example["snippet"]
    )
    assert ("gru_reset" in reduced_example["snippet"]) == bool(subject.choices)
    assert "violates it" in done.stdout or "expected" in done.stdout


ADAPTER = """
import numpy as np

from attnspec import reference

name = "plus one"


def _wrong(operation, *args, **kwargs):
    return reference.REFERENCE[operation](*args, **kwargs) + np.array(1, "f")


def softmax(*args, **kwargs):
    return _wrong("softmax", *args, **kwargs)


def dot_scores(query, key, /):
    return _wrong("dot_scores", query, key)


def dot_product_attention(query, key, value, *, mask=None, causal=False):
    return _wrong("dot_product_attention", query=query, key=key, value=value, mask=mask, causal=causal)


def sinusoidal_positional_encoding(n, d, /):
    return _wrong("sinusoidal_positional_encoding", n, d)


def causal_mask(*args, **kwargs):
    return ~reference.causal_mask(*args, **kwargs)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("softmax", "float64"),
        ("dot_scores", "float64"),
        ("dot_product_attention", "float32"),
        ("dot_product_attention", "bfloat16"),
        ("sinusoidal_positional_encoding", "default"),
        ("causal_mask", "bool"),
    ],
)
def test_every_snippet_convicts_the_backend_and_acquits_the_reference(name: str, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "plus.py").write_text(ADAPTER, encoding="utf-8")
    backend = load(str(tmp_path / "plus.py"))
    effort = Effort(corners=2, drawn=0, stride=1, slow_stride=1, work=2.0**8)
    case = Case(name, dtype, ("operation.oracle",))
    (result,) = judge(backend, Contract.of(backend, "plus.py"), case, Profile(effort, effort, effort))
    assert result.counterexample is not None
    snippet = result.counterexample["snippet"]
    for judged_backend, status in (("plus.py", 1), ("reference", 0)):
        (tmp_path / "snippet.py").write_text(snippet.replace("'plus.py'", repr(judged_backend)), encoding="utf-8")
        done = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (status, "")
        assert done.stdout.startswith(("expected", "operation.oracle: "))
        assert status == 0 or "difference" in done.stdout or name == "causal_mask"
