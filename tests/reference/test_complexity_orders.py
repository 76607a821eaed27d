"""The lectures' tables of complexity and inductive biases, against the page that derives them."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.spec.errata import ERRATA

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "docs" / "complexity.py"))
CLAIMS: tuple[Any, ...] = PAGE["CLAIMS"]

FAILING = [
    ("S0 “Computational Complexity: CNN's”", "O(n/k)", "2 ≤ k"),
    ("S0 “Computational Complexity: self-attention”", "O(n²d)", ""),
    ("S0 “Computational Complexity: self-attention”", "O(1)", "generating"),
    ("S2 “Machine Translation, solution 3”", "(1) O(M²k)", ""),
    ("S2 “Machine Translation, solution 3”", "(2) O(MNk)", ""),
    ("S2 “Machine Translation, solution 4”", "O(MN + N²)", ""),
]
"""Printed orders that do not hold, for the reasons that the page gives."""


def test_orders_that_do_not_hold() -> None:
    assert [(str(c.source), c.printed, c.domain) for c in CLAIMS if not c.holds] == FAILING


def test_what_does_not_hold_is_among_the_errata() -> None:
    listed = {(e.source, e.operation) for e in ERRATA.values()}
    assert [c.printed for c in CLAIMS if not c.holds and (c.source, c.operation) not in listed] == []


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.holds], ids=lambda c: f"{c.operation}-{c.printed}")
def test_lower_orders_do_not_hold(claim: Any) -> None:
    """Orders with one power less of a symbol fail if counts grow with it."""
    for symbol in claim.symbols:
        lower = replace(claim, order=lambda symbol=symbol, **sizes: claim.order(**sizes) / sizes[symbol])
        doubled = [{s: 64 * (1 + (s == symbol) * more) for s in claim.symbols} for more in (0, 1)]
        small, large = (claim.ratio(sizes) * claim.order(**sizes) for sizes in doubled)
        if large > 1.5 * small:
            assert not lower.holds, symbol


def test_the_drawings_of_the_first_lecture() -> None:
    """Five tokens: with three taps two layers, in an RNN five states, in self-attention one step."""
    paths = {
        "convolution_complexity": ({"t": 5, "d_x": 1, "p_o": 1, "taps": 3}, 2),
        "rnn_complexity": ({"t": 5, "d": 1, "h": 1}, 5),
        "self_attention_complexity": ({"n": 5, "d": 1}, 1),
    }
    for name, (sizes, length) in paths.items():
        assert PAGE["REFERENCE"][name](**sizes).maximum_path_length == length


BIASES = {
    "fully connected": (False, False, False, False),
    "convolution": (True, False, False, False),
    "recurrent": (False, True, False, False),
    "graph layer": (False, False, False, True),
    "self-attention": (True, False, True, True),
}
"""Equivariance to translation among zeros, a later start, permutation, permutation with edges: S4's table.

A translation among zeros is a permutation, so that layers equivariant to permutations have both.
"""


@pytest.mark.parametrize("layer", BIASES)
def test_a_layer_has_the_equivariance_of_the_table_and_no_other(layer: str) -> None:
    assert tuple(PAGE["LAYERS"]) == tuple(BIASES)
    assert tuple(keeps(layer) for keeps in PAGE["CHANGES"].values()) == BIASES[layer]


def test_rows_of_each_layer_depend_on_the_stated_rows() -> None:
    """Rows depend on all rows, neighbours, earlier rows, or rows with an edge."""
    n, d, edges = PAGE["N"], PAGE["D"], PAGE["_EDGES"]
    reached = {}
    for name, layer in PAGE["LAYERS"].items():
        x = np.random.default_rng(1).uniform(-1, 1, (n, d))
        columns = [(layer(x + np.eye(n)[:, [j]]) != layer(x)).any(-1) for j in range(n)]
        reached[name] = np.stack(columns, axis=-1)
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    assert reached["fully connected"].all()
    assert (reached["convolution"] == (abs(distance) <= 1)).all()
    assert (reached["recurrent"] == (distance >= 0)).all()
    assert (reached["graph layer"] == edges).all()
    assert reached["self-attention"].all()
