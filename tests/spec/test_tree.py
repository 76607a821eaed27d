"""Trees of arrays: flattened, mapped, printed, compared with descriptions, and built from them."""

# Annotations are values here, outside of any class that binds Array.
# mypy: disable-error-code="valid-type"

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, cast

import numpy as np
import pytest
from jaxtyping import Float

from attnspec.spec import Array, Branch, Dim, Kind, Leaf, Option
from attnspec.spec.contract.annotations import Sizes, read
from attnspec.spec.contract.tree import (
    Node,
    StructureError,
    as_source,
    as_tuple,
    build_tree,
    dimension_value,
    flatten,
    map_tree,
    pair_leaves,
    reader,
    walk,
    with_indices,
    without_indices,
)


@dataclass(frozen=True)
class Gate(Generic[Array]):
    w: Float[Array, "h d"]
    b: Float[Array, " h"] | None = None


@dataclass(frozen=True)
class Layer(Generic[Array]):
    gate: Gate[Array]
    pair: tuple[Float[Array, " h"], Float[Array, "h d"]]


class State(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


def array(*shape: int) -> Any:
    return np.zeros(shape)


def layer(h: int = 2, d: int = 3) -> Layer[Any]:
    return Layer(Gate(array(h, d)), (array(h), array(h, d)))


TUPLE_OF_ONE: Any = (array(2),)


def call(**annotations: Any) -> Branch:
    """The description of arguments with these annotations."""
    scope = {name: name for name in ("h", "d")}
    nodes = [read(annotation, name, scope) for name, annotation in annotations.items()]
    return Branch("", dict, tuple(annotations), tuple(nodes))


STACK = call(layers=tuple[Layer[Array], ...], state=State[Array], x=Float[Array, " d"] | None)
"""A tuple of like records, a NamedTuple, and an array that need not be given."""


def stack(count: int = 2) -> dict[str, Any]:
    return {"layers": tuple(layer() for _ in range(count)), "state": State(array(2), array(2)), "x": array(3)}


PATHS = [
    *(f"layers[{i}].{path}" for i in range(2) for path in ("gate.w", "gate.b", "pair[0]", "pair[1]")),
    "state.h",
    "state.c",
    "x",
]

# Values ---------------------------------------------------------------------------------------------------------------


def test_an_array_is_a_tree_of_itself() -> None:
    x = array(2)
    assert flatten(x) == {"": x}
    assert flatten(x, "x") == {"x": x}
    assert map_tree(x, lambda path, value: (path, value), "x") == ("x", x)


def test_paths_are_written_as_python_writes_them() -> None:
    tree = stack()
    assert list(flatten(tree)) == PATHS
    for path, value in flatten(tree).items():
        assert eval(path, dict(tree)) is value


def test_paths_of_a_tuple_and_below_a_name() -> None:
    assert list(flatten(("a", ("b", "c")))) == ["[0]", "[1][0]", "[1][1]"]
    assert list(flatten(State(1, 2), "state")) == ["state.h", "state.c"]
    assert flatten(()) == flatten({}) == {}


def test_a_window_is_one_option() -> None:
    assert flatten({"window": (2, 0), "x": ("a", "b")}) == {"window": (2, 0), "x[0]": "a", "x[1]": "b"}
    assert flatten((None, 1), "window") == {"window": (None, 1)}
    window = Option("window", Kind.WINDOW, (), optional=True)
    assert all(map(window.takes, [None, (0, 0), (None, 3), (None, None)]))
    assert not any(map(window.takes, [2, (1,), (-1, 0), (1, 2, 3), (True, 0), (0.5, 1), [1, 2]]))


def test_a_dataclass_with_a_shape_is_an_array() -> None:
    @dataclass(frozen=True)
    class Boxed:
        shape: tuple[int, ...]

    boxed = Boxed((2,))
    assert flatten({"x": boxed}) == {"x": boxed}


def test_a_class_is_no_tree() -> None:
    assert flatten({"x": Gate}) == {"x": Gate}


def test_a_mapped_tree_has_the_same_form() -> None:
    tree = stack()
    seen = []

    def double(path: str, value: Any) -> Any:
        seen.append(path)
        return None if value is None else value + 1

    changed = map_tree(tree, double)
    assert seen == PATHS
    assert list(changed) == ["layers", "state", "x"]
    assert type(changed["layers"]) is tuple
    assert type(changed["layers"][0]) is Layer
    assert type(changed["layers"][0].pair) is tuple
    assert type(changed["state"]) is State
    assert changed["layers"][1].gate.b is None
    assert all((value == 1).all() for value in flatten(changed).values() if value is not None)
    assert not any(value.any() for value in flatten(tree).values() if value is not None)


@pytest.mark.parametrize(
    ("tree", "source"),
    [
        (1, "1"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, (2, 3)), "(1, (2, 3))"),
        (State(1, 2), "State(h=1, c=2)"),
        ((Gate(1), Gate(1, 2)), "(Gate(w=1, b=None), Gate(w=1, b=2))"),
        (Layer(Gate(1), (2, 3)), "Layer(gate=Gate(w=1, b=None), pair=(2, 3))"),
    ],
)
def test_the_source_of_a_tree_makes_it_again(tree: Any, source: str) -> None:
    assert as_source(tree, repr) == source
    assert eval(source) == tree


# Descriptions ---------------------------------------------------------------------------------------------------------


def test_every_array_stands_beside_its_description() -> None:
    tree, value_by_path = stack(), {}
    for node, value in pair_leaves(STACK, tree):
        value_by_path[node.path] = value
    assert list(value_by_path) == PATHS
    assert all(value is flatten(tree)[path] for path, value in value_by_path.items())


def test_counted_is_called_with_the_number_of_items() -> None:
    counts: list[tuple[str, str, int]] = []

    def counted(branch: Branch, path: str, number: int) -> None:
        counts.append((branch.count, path, number))

    list(pair_leaves(STACK, stack(3), counted=counted))
    assert counts == [("layers", "layers", 3)]


def test_an_absent_optional_branch_has_absent_arrays() -> None:
    node = call(gate=Gate[Array] | None)
    assert [(leaf.path, x) for leaf, x in pair_leaves(node, {})] == [("gate.w", None), ("gate.b", None)]
    assert [leaf.path for leaf, x in pair_leaves(node, {"gate": Gate(array(2, 3))}) if x is not None] == ["gate.w"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": layer()}, "layers: expected a tuple; got Layer"),
        ({"layers": [layer()]}, "layers: expected a tuple; got list"),
        ({"layers": None}, "layers: expected a tuple; got NoneType"),
        ({"layers": (layer(), array(2))}, "layers[1]: expected a Layer; got ndarray"),
        ({"layers": (layer(), replace(layer(), gate=array(2, 3)))}, "layers[1].gate: expected a Gate; got ndarray"),
        ({"layers": (replace(layer(), pair=TUPLE_OF_ONE),)}, "layers[0].pair: expected a tuple of 2; got one of 1"),
        ({"state": (array(2), array(2))}, "state: expected a State; got tuple"),
        ({"state": array(2)}, "state: expected a State; got ndarray"),
    ],
)
def test_another_structure_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(StructureError) as raised:
        list(pair_leaves(STACK, {**stack(), **wrong}))
    error = raised.value
    assert str(error) == message == f"{error.path}: expected {error.expected}; got {error.got}"


def test_the_first_layer_may_differ_from_the_others() -> None:
    first, other = (Leaf("w[:]", Kind.FLOAT, (Dim(size, (size,)),)) for size in ("d", "h"))
    node = Branch("w", tuple, (), (first, other), repeated=True, count="depth")
    leaves = [leaf for leaf, _ in pair_leaves(node, (array(1), array(2), array(2)), "w")]
    assert [cast(Leaf, leaf).dims[0].written for leaf in leaves] == ["d", "h", "h"]
    assert [leaf.path for leaf in leaves] == ["w[0]", "w[1]", "w[2]"]


def test_walking_meets_like_trees_once() -> None:
    paths = [node.path for node in walk(STACK) if isinstance(node, Leaf)]
    per_layer = ["layers[:].gate.w", "layers[:].gate.b", "layers[:].pair[0]", "layers[:].pair[1]"]
    assert paths == [*per_layer, "state.h", "state.c", "x"]


def test_a_tree_is_built_from_its_description() -> None:
    tree = build_tree(STACK, lambda node: node.path, lambda branch: {"layers": 2}[branch.count])
    assert isinstance(tree["layers"][1], Layer)
    assert isinstance(tree["state"], State)
    assert flatten(tree) == {path: path for path in PATHS}


def test_a_built_tree_fits_its_description() -> None:
    tree = build_tree(STACK, lambda node: None if node.path == "x" else array(2, 2), lambda branch: 3)
    assert len(list(pair_leaves(STACK, tree))) == 3 * 4 + 3


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_reader_finds_the_same_arrays(count: int) -> None:
    read_arguments: Callable[[Any, list[Any], list[Any]], None] = reader(STACK.nodes[0])
    arrays: list[Any] = []
    counts: list[Any] = []
    layers = stack(count)["layers"]
    read_arguments(layers, arrays, counts)
    assert counts == [count]
    assert len(arrays) == 4 * count
    assert all(x is y for x, y in zip(arrays, flatten(layers).values(), strict=True))


@pytest.mark.parametrize("node", STACK.nodes[:2], ids=lambda node: node.path)
@pytest.mark.parametrize("wrong", [None, np.zeros(2), [layer()], (layer(), 1), (1,), State(1, 2)._asdict()])
def test_the_reader_refuses_another_structure(node: Node, wrong: Any) -> None:
    with pytest.raises(TypeError):
        reader(node)(wrong, [], [])


def test_the_reader_skips_an_absent_branch() -> None:
    arrays: list[Any] = []
    reader(call(gate=Gate[Array] | None).nodes[0])(None, arrays, [])
    assert arrays == [None, None]


# Leaves and options ---------------------------------------------------------------------------------------------------


def leaf(annotation: Any) -> Leaf:
    node = read(annotation, "x", {}, Sizes())
    assert isinstance(node, Leaf)
    return node


def test_a_leaf_knows_its_batch_and_its_sizes() -> None:
    rows = leaf(Float[Array, "*#batch #n heads*p 2*d"])
    assert rows.batched
    assert [d.written for d in rows.core] == ["n", "heads*p", "2*d"]
    assert [d.factors for d in rows.core] == [("n",), ("heads", "p"), ("2", "d")]
    assert [d.broadcast for d in rows.core] == [True, False, False]
    assert rows.sizes == ("n", "heads", "p", "d")
    assert rows.shape_text == "(*batch, n, heads*p, 2*d)"
    assert (rows.axes("n"), rows.axes("p"), rows.axes("d"), rows.axes("m")) == ([-3], [-2], [-1], [])
    assert not rows.free


def test_a_leaf_of_any_rank_is_free() -> None:
    moments = leaf(Float[Array, "*coordinates"])
    assert moments.free
    assert not moments.batched
    assert moments.sizes == ()


def test_a_square_has_a_size_twice() -> None:
    assert leaf(Float[Array, "*batch n n"]).axes("n") == [-2, -1]


def test_a_leaf_of_one_item_is_made_once() -> None:
    described_leaf = Leaf("layers[:].w", Kind.FLOAT, (Dim("h", ("layers[:].h",)), Dim("d", ("d",))))
    second = described_leaf.at((1,))
    assert second.path == "layers[1].w"
    assert second.sizes == ("layers[1].h", "d")
    assert second is described_leaf.at((1,))


@pytest.mark.parametrize(
    ("option", "right", "wrong", "expected"),
    [
        (Option("causal", Kind.CHOICE, (False, True)), [True, False], [1, 0, "True", None], "True or False"),
        (Option("norm", Kind.CHOICE, ("pre", "post")), ["pre"], ["Pre", True, None], "'pre' or 'post'"),
        (Option("n", Kind.SIZE), [0, -3], [2.0, True, "2", None], "an integer"),
        (Option("d", Kind.COUNT, optional=True), [None, 3], [3.0, False], "an integer"),
        (Option("scale", Kind.NUMBER), [1, 0.5], [True, "1", None], "a number"),
    ],
)
def test_an_option_takes_what_it_is_for(option: Option, right: list[Any], wrong: list[Any], expected: str) -> None:
    assert all(option.takes(value) for value in right)
    assert not any(option.takes(value) for value in wrong)
    assert option.expected == expected


def test_items_are_filled_in_from_the_left() -> None:
    assert with_indices("a[:].b[:].c", (1, 2)) == "a[1].b[2].c"
    assert with_indices("a[:].b[:].c", (1,)) == "a[1].b[:].c"
    assert with_indices("a", (1,)) == "a"
    assert with_indices("1+a[:].h*a[:].d", (2,)) == "1+a[2].h*a[2].d"
    assert without_indices("a[12].b[0].c") == "a[:].b[:].c"


def test_the_number_of_a_dimension() -> None:
    assert dimension_value(("h",), {"h": 3}) == 3
    assert dimension_value(("4",), {}) == 4
    assert dimension_value(("2", "h", "d"), {"h": 3, "d": 5}) == 30
    assert dimension_value(("h",), {}) is dimension_value(("2", "h"), {}) is dimension_value(("h+d",), {"h": 3}) is None
    assert dimension_value(("h+d",), {"h": 3, "d": 5}) == 8
    assert dimension_value(("1+h*d",), {"h": 3, "d": 5}) == 16
    assert dimension_value(("1+h*d",), {"h": 3}) is None
    assert dimension_value(("2", "h+d"), {"h": 3, "d": 5}) == 16


def test_shapes_are_written_as_tuples() -> None:
    assert [as_tuple(parts) for parts in ((), (1,), (1, 2))] == ["()", "(1,)", "(1, 2)"]
