"""How small an error of gain, scale or gradient is convicted: what the page says, and that it is so."""

import re
import runpy
from pathlib import Path

import pytest

from attnspec.conformance import load
from attnspec.conformance.judging.declaration import Contract
from attnspec.spec.contract.operation import OPERATIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE, SPREADS = (DOCS / "sensitivity.md").read_text(encoding="utf-8").split("\n## ")
MAKING = runpy.run_path(str(DOCS / "sensitivity.py"))

GAIN = {"bfloat16": 2e-3, "float16": 3e-4, "float32": 1e-6, "float64": 1e-13}
"""The greatest relative error of gain or scale that may escape; of a gradient, ten times that."""

NUMBER = re.compile(r"(\d\.\de-\d\d), (\d\.\de-\d\d)")


def rows(page: str = PAGE) -> dict[tuple[str, str], list[str]]:
    """The cells of a table, by operation and dtype."""
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {(operation.strip("`"), dtype): cells for operation, dtype, *cells in table}


def test_every_attention_is_on_the_page() -> None:
    attention = {o.name for o in OPERATIONS.values() if o.asked and o.asking and o.mask and o.float_result and o.pooled}
    assert attention
    assert {(name, dtype) for name in attention for dtype in GAIN} <= set(rows())


@pytest.mark.parametrize(("operation", "dtype"), rows())
def test_small_errors_are_convicted(operation: str, dtype: str) -> None:
    for cell, factor in zip(rows()[operation, dtype], (1, 1, 10), strict=True):
        found = NUMBER.match(cell)
        assert found or cell == "–"
        assert found is None or float(found[1]) <= factor * GAIN[dtype]
        assert found is None or float(found[2]) <= factor * GAIN[dtype]


FOUND = re.compile(r"(-?\d\.\d\d) \((\d\.\d\d)\)")


@pytest.mark.parametrize(("operation", "dtype"), rows(SPREADS))
def test_errors_together_are_within_limits_that_tell(operation: str, dtype: str) -> None:
    squares, means, few, many = rows(SPREADS)[operation, dtype]
    assert [(float(x) < 0.8, 1 <= float(limit) < 1.1) for x, limit in FOUND.findall(squares)] == [(True, True)] * 2
    assert all(abs(float(x)) < float(limit) < 0.2 for x, limit in FOUND.findall(means))
    # one key that is left out, or counts without being attendable, is an error of 1
    assert all(float(x) < 1 for x in (few, many) if x != "–")


@pytest.mark.parametrize("dtype", GAIN)
def test_the_page_says_what_is_measured(dtype: str) -> None:
    operation = "scaled_dot_product_attention"
    backend = load("pytorch")
    contract = Contract.of(backend)
    for function, cell in zip(MAKING["FILTERS"], rows()[operation, dtype], strict=True):
        concerned = MAKING["judged"](contract, function)
        check, case = next(x for x in concerned if (x[1].operation, x[1].dtype) == (operation, dtype))
        found = NUMBER.match(cell)
        assert found
        # estimates from samples, of an error that depends on the machine: the page gives its order of magnitude
        assert 0.5 < MAKING["smallest"](backend, contract, check, case)[0] / float(found[1]) < 2
