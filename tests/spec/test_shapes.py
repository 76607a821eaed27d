"""Shapes bound to sizes: what fits, errors for what does not, remembered bindings."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import numpy as np
import pytest
from jaxtyping import Bool, Float, Int

from attnspec.spec import OPERATIONS, Array, ShapeError, bind
from attnspec.spec.contract import shapes
from attnspec.spec.contract.annotations import sizes
from attnspec.spec.contract.shapes import broadcast, results
from attnspec.spec.contract.tree import Leaf, StructureError, pair_leaves

from .test_operation import declared


@dataclass(frozen=True)
class Attention(Generic[Array]):
    w_q: Float[Array, "heads p d"]
    w_k: Float[Array, "heads p d"]
    w_o: Float[Array, "d heads*p"]


@dataclass(frozen=True)
class Layer(Generic[Array]):
    attention: Attention[Array]
    w: Float[Array, "f d"]
    b: Float[Array, " f"] | None = None


@dataclass(frozen=True)
class Gates(Generic[Array]):
    w_x: Float[Array, "4*h d_x"]
    w_h: Float[Array, "4*h h"]


class State(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


class Stack(Protocol[Array]):
    """A stack of layers over a sequence."""

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        layers: Annotated[tuple[Layer[Array], ...], sizes(count="depth")],
        *,
        allowed: Bool[Array, "*#batch #n #n"] | None = None,
        norm: Literal["pre", "post"] = "post",
    ) -> Float[Array, "*batch n d"]: ...


class Recur(Protocol[Array]):
    """A network in layers over time; ``depth`` may also be passed."""

    def __call__(
        self,
        x: Float[Array, "*#batch t d_x"],
        state: State[Array],
        gates: Annotated[tuple[Gates[Array], ...], sizes(d_x=("d_x", "h"), count="depth")],
        lengths: Int[Array, "*#batch"],
        depth: int | None = None,
    ) -> tuple[Float[Array, "*batch t h"], tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]]: ...


class Cut(Protocol[Array]):
    """A sum with one size from an argument, and a product by `sizes`."""

    def __call__(
        self,
        table: Annotated[Float[Array, "rows d"], sizes(rows="n+spare")],
        x: Annotated[Float[Array, "*batch d_x"], sizes(d_x="heads*p")],
        n: int,
        heads: int,
    ) -> tuple[Float[Array, "{n} d"], Float[Array, "*batch heads p"]]: ...


class Fold(Protocol[Array]):
    """A product h*d in which another argument gives d."""

    def __call__(self, x: Float[Array, "*#batch d"], w: Float[Array, "h*d d"]) -> Float[Array, "*batch h"]: ...


def array(*shape: int) -> Any:
    return np.zeros(shape)


def layer(d: int = 4, heads: int = 2, p: int = 3, f: int = 5) -> Layer[Any]:
    attention = Attention(array(heads, p, d), array(heads, p, d), array(d, heads * p))
    return Layer(attention, array(f, d))


def gates(d_x: int = 3, h: int = 2) -> Gates[Any]:
    return Gates(array(4 * h, d_x), array(4 * h, h))


STACK = declared(Stack, axes={"n": OPERATIONS["self_attention"].axis("n")} | {"p": OPERATIONS["dot_scores"].axis("d")})
RECUR = declared(Recur, lengths={"lengths": "t"}, results="outputs h c")
CUT = declared(Cut, results="rows heads")
FOLD = declared(Fold)


def stack(**changed: Any) -> dict[str, Any]:
    return {"x": array(7, 6, 4), "layers": (layer(), layer(heads=3, f=8)), **changed}


def recur(**changed: Any) -> dict[str, Any]:
    arguments = {"x": array(7, 6, 3), "state": State(array(2), array(7, 2)), "lengths": np.zeros(7, int)}
    return {**arguments, "gates": (gates(), gates(2)), **changed}


@pytest.fixture(autouse=True)
def _without_bindings() -> None:
    """Empty the caches of these operations: tests count their entries."""
    for o in (STACK, RECUR, FOLD, OPERATIONS["dot_scores"]):
        o.bindings.clear()


# What fits ------------------------------------------------------------------------------------------------------------


def test_sizes_of_a_flat_call() -> None:
    binding = bind(OPERATIONS["multi_head_attention"], {
        "query": array(5, 1, 3, 2), "key": array(4, 3, 2), "value": array(4, 3, 2), "w_q": array(2, 6, 2),
        "w_k": array(2, 6, 2), "w_v": array(2, 7, 2), "w_o": array(9, 14), "mask": array(3, 1) > 0,
    })  # fmt: skip
    assert binding.sizes == {
        "n": 3, "m": 3, "d_q": 2, "d_k": 2, "d_v": 2, "heads": 2, "p_q": 6, "p_v": 7, "p_o": 9,
    }  # fmt: skip
    assert binding.batch == (5, 4)
    assert binding.result == (5, 4, 3, 9)
    assert binding.origin["m"] == "key"
    assert binding.leaves == OPERATIONS["multi_head_attention"].leaves


def test_sizes_of_layers_are_distinguished() -> None:
    binding = bind(STACK, stack())
    assert binding.sizes == {
        "n": 6, "d": 4, "depth": 2,
        "layers[0].attention.heads": 2, "layers[0].attention.p": 3, "layers[0].f": 5,
        "layers[1].attention.heads": 3, "layers[1].attention.p": 3, "layers[1].f": 8,
    }  # fmt: skip
    assert binding.origin["depth"] == "layers"
    assert binding.origin["layers[1].f"] == "layers[1].w"
    assert binding.result == (7, 6, 4)


def test_present_arrays_have_their_shapes() -> None:
    arguments = stack(allowed=array(1, 6) > 0)
    binding = bind(STACK, arguments)
    values = {node.path: x for node, x in pair_leaves(STACK.call, arguments) if x is not None}
    assert [leaf.path for leaf in binding.leaves] == list(values)
    assert "layers[0].b" not in values
    for leaf in binding.leaves:
        if not leaf.batched:
            assert binding.shape(leaf) == values[leaf.path].shape


def test_the_first_layer_takes_the_input_and_the_others_the_state() -> None:
    binding = bind(RECUR, recur())
    assert binding.sizes == {"t": 6, "d_x": 3, "h": 2, "depth": 2}
    assert [binding.shape(leaf) for leaf in RECUR.outputs] == [(7, 6, 2), (7, 2), (7, 2)]
    assert binding.result == (7, 6, 2)


def test_no_layers_and_no_steps() -> None:
    assert bind(RECUR, recur(x=array(0, 3), gates=())).sizes == {"t": 0, "d_x": 3, "h": 2, "depth": 0}


def test_an_absent_argument_binds_no_size() -> None:
    assert bind(OPERATIONS["softmax"], {"scores": array(3, 4), "mask": None}).sizes == {"n": 3, "m": 4}
    assert bind(OPERATIONS["softmax"], {"scores": array(3, 4)}).sizes == {"n": 3, "m": 4}


@pytest.mark.parametrize("shape", [(3, 4), [3, 4]])
def test_anything_that_has_a_shape_is_an_array(shape: Any) -> None:
    assert bind(OPERATIONS["softmax"], {"scores": SimpleNamespace(shape=shape)}).result == (3, 4)


def test_a_size_is_bound_by_its_number() -> None:
    binding = bind(OPERATIONS["padding_mask"], {"lengths": np.zeros((2, 3), int), "m": 4})
    assert (binding.sizes, binding.origin, binding.result) == ({"m": 4}, {"m": "m"}, (2, 3, 4))


def test_a_product_binds_its_only_unknown_factor() -> None:
    binding = bind(FOLD, {"x": array(7, 3), "w": array(15, 3)})
    assert binding.sizes == {"d": 3, "h": 5}
    assert binding.origin["h"] == "w"
    assert binding.result == (7, 5)


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ((), (), ()),
        ((), (2,), (2,)),
        ((3, 1), (2,), (3, 2)),
        ((1,), (0,), (0,)),
        ((5, 1, 2), (4, 1), (5, 4, 2)),
        ((2,), (3,), None),
        ((0,), (2,), None),
    ],
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...], common: tuple[int, ...] | None) -> None:
    assert broadcast(left, right) == broadcast(right, left) == common
    if common is not None:
        assert np.broadcast_shapes(left, right) == common


# What does not --------------------------------------------------------------------------------------------------------

WRONG_STACKS = {
    "a rank": ({"x": array(4)}, "x: expected (*batch, n, d), rank 2 or more; got (4,)"),
    "a width": (
        {"layers": (layer(), layer(d=5))},
        "layers[1].attention.w_q: expected (heads, p, d) with d = 4 (from x); got (2, 3, 5)",
    ),
    "a head": (
        {"layers": (layer(), replace(layer(), attention=replace(layer().attention, w_k=array(3, 3, 4))))},
        "layers[1].attention.w_k: expected (heads, p, d) with heads = 2 (from layers[1].attention.w_q); got (3, 3, 4)",
    ),
    "a product": (
        {"layers": (layer(), replace(layer(), attention=replace(layer().attention, w_o=array(4, 7))))},
        "layers[1].attention.w_o: expected (d, heads*p) with heads*p = 6; got (4, 7)",
    ),
    "a rank of weights": (
        {"layers": (replace(layer(), w=array(1, 5, 4)),)},
        "layers[0].w: expected (f, d), rank 2; got (1, 5, 4)",
    ),
    "a bias": (
        {"layers": (replace(layer(), b=array(4)),)},
        "layers[0].b: expected (f,) with f = 5 (from layers[0].w); got (4,)",
    ),
    "nothing": ({"layers": (replace(layer(), w=array(0, 4)),)}, "layers[0].w: expected f of at least 1; got (0, 4)"),
    "a mask": ({"allowed": array(6, 5) > 0}, "allowed: expected (*batch, n, n) with n = 6 or 1; got (6, 5)"),
    "a batch of masks": (
        {"allowed": array(3, 6, 6) > 0},
        "allowed: expected a batch that broadcasts with (7,); got batch (3,)",
    ),
    "a list": ({"layers": [layer()]}, "layers: expected a tuple; got list"),
    "another record": ({"layers": (layer(), gates())}, "layers[1]: expected a Layer; got Gates"),
    "no record": ({"layers": (layer(), None)}, "layers[1]: expected a Layer; got NoneType"),
    "no array": (
        {"layers": (replace(layer(), w=[[1.0]]),)},
        "layers[0].w: expected an array of shape (f, d); got list",
    ),
    "no branch": (
        {"layers": (layer(), replace(layer(), attention=array(2)))},
        "layers[1].attention: expected an Attention; got ndarray",
    ),
}


@pytest.mark.parametrize("what", WRONG_STACKS)
def test_what_does_not_fit_is_named_by_its_path(what: str) -> None:
    changed, message = WRONG_STACKS[what]
    for _ in range(2):  # the second refusal is the same, from the cache or not
        with pytest.raises(ShapeError) as raised:
            bind(STACK, stack(**changed))
        error = raised.value
        assert str(error) == f"stack: {message}"
        assert (error.operation, str(error)) == (
            "stack",
            f"stack: {error.argument}: expected {error.expected}; got {error.got}",
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"depth": 3}, "depth: expected depth = 2 (from gates); got 3"),
        ({"gates": (gates(2),)}, "gates[0].w_x: expected (4*h, d_x) with d_x = 3 (from x); got (8, 2)"),
        ({"gates": (gates(), gates(3))}, "gates[1].w_x: expected (4*h, d_x) with d_x = 2 (from state.h); got (8, 3)"),
        ({"gates": (gates(h=3),)}, "gates[0].w_h: expected (4*h, h) with h = 2 (from state.h); got (12, 3)"),
        ({"gates": (Gates(array(9, 3), array(8, 2)),)}, "gates[0].w_x: expected (4*h, d_x) with 4*h = 8; got (9, 3)"),
        ({"state": State(array(2), array(3))}, "state.c: expected (*batch, h) with h = 2 (from state.h); got (3,)"),
        ({"state": (array(2), array(2))}, "state: expected a State; got tuple"),
        ({"lengths": np.zeros(5, int)}, "lengths: expected a batch that broadcasts with (7,); got batch (5,)"),
    ],
)
def test_layers_that_do_not_fit_one_another(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        bind(RECUR, recur(**changed))
    assert str(raised.value) == f"recur: {message}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (16, "w: expected (h*d, d) with h*d a multiple of d = 3; got (16, 3)"),
        (0, "w: expected h of at least 1; got (0, 3)"),
    ],
)
def test_a_product_without_a_whole_factor(rows: int, message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        bind(FOLD, {"x": array(3), "w": array(rows, 3)})
    assert str(raised.value) == f"fold: {message}"


@pytest.mark.parametrize(("n", "rows", "spare"), [(3, 5, 2), (3, 3, 0), (0, 4, 4), (0, 0, 0)])
def test_a_sum_binds_its_only_unknown_part(n: int, rows: int, spare: int) -> None:
    binding = bind(CUT, {"table": array(rows, 2), "x": array(7, 6), "n": n, "heads": 3})
    assert binding.sizes == {"n": n, "spare": spare, "d": 2, "heads": 3, "p": 2}
    assert [binding.shape(leaf) for leaf in CUT.outputs] == [(n, 2), (7, 3, 2)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n": 6}, "table: expected (rows, d) with rows at least n = 6; got (5, 2)"),
        ({"heads": 4}, "x: expected (*batch, d_x) with d_x a multiple of heads = 4; got (6,)"),
        ({"heads": 0}, "heads: expected heads of at least 1; got 0"),
    ],
)
def test_a_size_that_leaves_nothing_for_the_others(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ShapeError) as raised:
        bind(CUT, {"table": array(5, 2), "x": array(6), "n": 3, "heads": 3, **changed})
    assert str(raised.value) == f"cut: {message}"


# What is remembered ---------------------------------------------------------------------------------------------------


def test_shapes_that_were_seen_before_cost_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bind(STACK, stack())
    monkeypatch.setattr(shapes, "_bound", None)
    assert bind(STACK, stack()) is first
    assert len(STACK.bindings) == 1


def test_other_shapes_are_other_calls() -> None:
    calls = [
        stack(),
        stack(x=array(6, 4)),
        stack(allowed=array(6, 6) > 0),
        stack(layers=()),
        stack(layers=(layer(), layer())),
        stack(layers=(replace(layer(), b=array(5)), layer())),
        stack(layers=(layer(), replace(layer(), b=array(5)))),
    ]
    assert len({id(bind(STACK, call)) for call in calls}) == len(calls) == len(STACK.bindings)
    assert [bind(STACK, call).sizes["depth"] for call in calls] == [2, 2, 2, 0, 2, 2, 2]


def test_sizes_that_are_given_as_numbers_are_remembered_too() -> None:
    mask = OPERATIONS["causal_mask"]
    mask.bindings.clear()
    assert [bind(mask, {"n": n, "m": m}).result for n, m in ((2, 3), (3, 2), (2, 3))] == [(2, 3), (3, 2), (2, 3)]
    assert len(mask.bindings) == 2


def test_options_that_no_shape_depends_on_share_a_binding() -> None:
    assert bind(STACK, stack(norm="pre")) is bind(STACK, stack(norm="post"))


def test_the_number_of_remembered_bindings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "REMEMBERED", 3)
    scores = OPERATIONS["dot_scores"]
    for n in range(8):
        assert bind(scores, {"query": array(n, 2), "key": array(4, 2)}).result == (n, 4)
        assert 1 <= len(scores.bindings) <= 3


# Results --------------------------------------------------------------------------------------------------------------


def test_results_stand_beside_their_descriptions() -> None:
    pairs = results(RECUR, (array(6, 2), (array(2), array(2))))
    assert [(leaf.path, x.shape) for leaf, x in pairs] == [("outputs", (6, 2)), ("h", (2,)), ("c", (2,))]
    assert all(isinstance(leaf, Leaf) for leaf, _ in pairs)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (array(6, 2), "result: expected a tuple; got ndarray"),
        ((array(6, 2),), "result: expected a tuple of 2; got one of 1"),
        ((array(6, 2), array(2)), "result[1]: expected a tuple; got ndarray"),
    ],
)
def test_a_result_of_another_structure(value: Any, message: str) -> None:
    with pytest.raises(StructureError) as raised:
        results(RECUR, value)
    assert str(raised.value) == message


def test_a_refusal_is_remembered_like_a_binding() -> None:
    scores = OPERATIONS["dot_scores"]
    wrong = {"query": np.ones((2, 3)), "key": np.ones((4, 5))}
    for arguments in (wrong, {name: x.copy() for name, x in wrong.items()}):
        with pytest.raises(ShapeError, match=r"dot_scores: key: expected .*; got \(4, 5\)"):
            bind(scores, arguments)
    assert len(scores.bindings) == 1
    assert bind(scores, {**wrong, "key": np.ones((4, 3))}).result == (2, 4)
