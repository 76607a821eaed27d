"""From annotations to descriptions: kinds, shapes, and the scopes of size names."""

# Annotations are values here, outside of any class that binds Array.
# mypy: disable-error-code="valid-type"

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple

import pytest
from jaxtyping import Bool, Complex, Float, Int, Shaped, UInt

from attnspec.spec import Array, Branch, Dim, Kind, Leaf, Option
from attnspec.spec.contract.annotations import InvalidDeclaration, _renamed, dims, names, read, sizes
from attnspec.spec.contract.tree import Node, walk


@dataclass(frozen=True)
class Cell(Generic[Array]):
    w_x: Float[Array, "h d"]
    w_h: Float[Array, "h h"]


@dataclass(frozen=True)
class Projections(Generic[Array]):
    w_q: Float[Array, "heads p d"]
    w_o: Float[Array, "d heads*p"]


@dataclass(frozen=True)
class Layer(Generic[Array]):
    attention: Projections[Array]
    w: Float[Array, "f d"]
    cell: Annotated[Cell[Array], sizes(d="f")]


class State(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


def scope(*known: str) -> dict[str, str]:
    return {name: name for name in known}


def shapes(node: Node) -> dict[str, list[str]]:
    """The dimensions of every array by path, with the sizes in full."""
    return {x.path: ["*".join(d.factors) for d in x.core] for x in walk(node) if isinstance(x, Leaf)}


# Kinds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "kind", "optional"),
    [
        (Float[Array, "*#batch n d"], Kind.FLOAT, False),
        (Float[Array, "*#batch n d"] | None, Kind.FLOAT, True),
        (None | Float[Array, "*#batch n d"], Kind.FLOAT, True),
        (Bool[Array, "*#batch #n #m"] | None, Kind.BOOL, True),
        (Int[Array, "*#batch"], Kind.INT, False),
        (Annotated[Float[Array, " d"], "learned"], Kind.FLOAT, False),
    ],
)
def test_array_annotations_have_a_kind(annotation: Any, kind: Kind, optional: bool) -> None:
    node = read(annotation, "x", {})
    assert isinstance(node, Leaf)
    assert (node.path, node.kind, node.optional) == ("x", kind, optional)


@pytest.mark.parametrize(
    ("annotation", "kind", "choices", "optional"),
    [
        (bool, Kind.CHOICE, (False, True), False),
        (Literal["pre", "post"], Kind.CHOICE, ("pre", "post"), False),
        (int, Kind.COUNT, (), False),
        (int | None, Kind.COUNT, (), True),
        (float, Kind.NUMBER, (), False),
        (float | None, Kind.NUMBER, (), True),
    ],
)
def test_option_annotations_have_a_kind(annotation: Any, kind: Kind, choices: tuple[Any, ...], optional: bool) -> None:
    assert read(annotation, "x", {}) == Option("x", kind, choices, optional)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("*#batch n d", (Dim("batch", ("batch",), True, True), Dim("n", ("n",)), Dim("d", ("d",)))),
        ("*batch {n} {m}", (Dim("batch", ("batch",), True), Dim("n", ("n",)), Dim("m", ("m",)))),
        ("#n #m", (Dim("n", ("n",), broadcast=True), Dim("m", ("m",), broadcast=True))),
        ("p_o heads*p_v", (Dim("p_o", ("p_o",)), Dim("heads*p_v", ("heads", "p_v")))),
        ("4*h d", (Dim("4*h", ("4", "h")), Dim("d", ("d",)))),
        ("3", (Dim("3", ("3",)),)),
        ("p_o d_s+d_h", (Dim("p_o", ("p_o",)), Dim("d_s+d_h", ("d_s+d_h",)))),
        ("1+d n+1", (Dim("1+d", ("1+d",)), Dim("n+1", ("n+1",)))),
        ("1+h*d p+2*h", (Dim("1+h*d", ("1+h*d",)), Dim("p+2*h", ("p+2*h",)))),
    ],
)
def test_shape_texts_become_dimensions(text: str, expected: tuple[Dim, ...]) -> None:
    assert dims(text, "x", {}) == expected


def test_a_sum_has_the_names_of_its_scope() -> None:
    (d,) = dims("d+h", "x", {"d": "layers[:].d", "h": "h"})
    assert d.sizes == ("layers[:].d", "h")
    assert not d.plain


def test_sizes_of_a_sum_may_stand_for_products_and_one_for_a_sum() -> None:
    (d,) = dims("d+h", "x", {"h": "2*layers[:].h"})
    assert (d.factors, d.sizes) == (("d+2*layers[:].h",), ("d", "layers[:].h"))
    (d,) = dims("tokens", "x", {"tokens": "1+rows*columns"})
    assert (d.written, d.factors, d.sizes) == ("tokens", ("1+rows*columns",), ("rows", "columns"))
    wanted = r"^x: expected products of sizes, and sums of these; got n\+1 in 2\*tokens$"
    with pytest.raises(InvalidDeclaration, match=wanted):
        dims("2*tokens", "x", {"tokens": "n+1"})


@pytest.mark.parametrize(
    "text", ["n *batch", "+1 d", "d+", "h*+p", "h+d*", "n -1", "... d", "_ d", "N", "heads* p", "n=3"]
)
def test_a_malformed_dimension_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidDeclaration,
        match=r"^x: expected \*batch first, then names, products or sums of these; got '.*' in '.*'$",
    ):
        dims(text, "x", {})


def test_the_message_shows_what_was_written() -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        read(Float[Array, "*batch n-1"], "parameters.w", {})
    assert str(raised.value) == (
        "parameters.w: expected *batch first, then names, products or sums of these; got 'n-1' in '*batch n-1'"
    )


# Scopes ---------------------------------------------------------------------------------------------------------------


def test_a_size_around_a_record_is_that_of_the_record() -> None:
    assert shapes(read(Cell[Array], "cell", scope("d", "h"))) == {"cell.w_x": ["h", "d"], "cell.w_h": ["h", "h"]}


def test_any_other_size_belongs_to_the_record() -> None:
    node = read(Cell[Array], "cell", scope("d"))
    assert shapes(node) == {"cell.w_x": ["cell.h", "d"], "cell.w_h": ["cell.h", "cell.h"]}


def test_the_outermost_record_that_names_a_size_owns_it() -> None:
    node = read(Layer[Array], "layer", {})
    assert shapes(node) == {
        "layer.attention.w_q": ["layer.attention.heads", "layer.attention.p", "layer.d"],
        "layer.attention.w_o": ["layer.d", "layer.attention.heads*layer.attention.p"],
        "layer.w": ["layer.f", "layer.d"],
        "layer.cell.w_x": ["layer.cell.h", "layer.f"],
        "layer.cell.w_h": ["layer.cell.h", "layer.cell.h"],
    }


def test_a_record_of_one_argument_does_not_share_sizes_with_another() -> None:
    forward, backward = (read(Cell[Array], name, scope("d")) for name in ("forward", "backward"))
    assert shapes(forward)["forward.w_h"] == ["forward.h"] * 2
    assert shapes(backward)["backward.w_h"] == ["backward.h"] * 2


def test_a_named_tuple_is_a_record() -> None:
    node = read(State[Array], "state", scope("h"))
    assert isinstance(node, Branch)
    assert (node.build, node.names) == (State, ("h", "c"))
    assert shapes(node) == {"state.h": ["h"], "state.c": ["h"]}


def test_sizes_rename_those_of_a_record() -> None:
    node = read(Annotated[Cell[Array], sizes(d="h")], "cell", scope("h"))
    assert shapes(node) == {"cell.w_x": ["h", "h"], "cell.w_h": ["h", "h"]}


def test_a_size_may_stand_for_a_product() -> None:
    node = read(Annotated[Cell[Array], sizes(d="2*h")], "cell", scope("h"))
    assert shapes(node)["cell.w_x"] == ["h", "2*h"]
    (written,) = [x.dims[1].written for x in walk(node) if isinstance(x, Leaf) and x.path == "cell.w_x"]
    assert written == "d"


def test_an_array_may_have_a_product_that_jaxtyping_cannot_check() -> None:
    node = read(Annotated[Float[Array, "*batch n d"], sizes(d="heads*p")], "x", scope("n", "heads", "p"))
    assert shapes(node) == {"x": ["n", "heads*p"]}


def test_a_sum_may_name_a_size_that_nothing_else_does() -> None:
    table = Annotated[Float[Array, "rows d"], sizes(rows="n+spare")]
    assert names(table, "table") == ["rows", "d", "n", "spare"]
    assert shapes(read(table, "table", scope("n", "d", "spare"))) == {"table": ["n+spare", "d"]}


def test_a_size_may_stand_for_a_sum() -> None:
    node = read(Annotated[Cell[Array], sizes(d="h+k")], "cell", {"h": "h", "k": "p.k"})
    assert shapes(node)["cell.w_x"] == ["h", "h+p.k"]
    with pytest.raises(InvalidDeclaration, match=r"^cell: d: expected a size around the record, h; got k$"):
        read(Annotated[Cell[Array], sizes(d="h+k")], "cell", scope("h"))


def test_an_optional_record() -> None:
    node = read(Annotated[Cell[Array], sizes(d="h")] | None, "cell", scope("h"))
    assert isinstance(node, Branch)
    assert node.optional
    assert shapes(node)["cell.w_x"] == ["h", "h"]


def test_layers_have_sizes_of_their_own() -> None:
    node = read(tuple[Layer[Array], ...], "layers", scope("d"))
    assert isinstance(node, Branch)
    assert (node.repeated, node.count, node.names, len(node.nodes)) == (True, "layers", (), 2)
    assert shapes(node) == {
        "layers[:].attention.w_q": ["layers[:].attention.heads", "layers[:].attention.p", "d"],
        "layers[:].attention.w_o": ["d", "layers[:].attention.heads*layers[:].attention.p"],
        "layers[:].w": ["layers[:].f", "d"],
        "layers[:].cell.w_x": ["layers[:].cell.h", "layers[:].f"],
        "layers[:].cell.w_h": ["layers[:].cell.h", "layers[:].cell.h"],
    }
    (w,) = [x for x in walk(node.node(3)) if isinstance(x, Leaf) and x.path == "layers[:].w"]
    assert w.at((3,)).sizes == ("layers[3].f", "d")


def test_the_first_layer_may_take_what_the_others_give() -> None:
    node = read(Annotated[tuple[Cell[Array], ...], sizes(d=("d", "2*h"), count="depth")], "layers", scope("d", "h"))
    assert isinstance(node, Branch)
    assert node.count == "depth"
    assert shapes(node.node(0))["layers[:].w_x"] == ["h", "d"]
    assert shapes(node.node(1)) == shapes(node.node(2)) == {"layers[:].w_x": ["h", "2*h"], "layers[:].w_h": ["h", "h"]}


def test_layers_that_are_all_alike_are_described_once() -> None:
    node = read(Annotated[tuple[Cell[Array], ...], sizes(count="depth")], "layers", scope("d", "h"))
    assert isinstance(node, Branch)
    assert node.node(0) is node.node(1)
    assert len(shapes(node)) == 2


def test_a_tuple_of_fixed_length_shares_its_sizes() -> None:
    node = read(Annotated[tuple[Cell[Array], Cell[Array]], sizes(d="f")], "cells", scope("f", "h"))
    assert isinstance(node, Branch)
    assert not node.repeated
    assert shapes(node) == {
        "cells[0].w_x": ["h", "f"],
        "cells[0].w_h": ["h", "h"],
        "cells[1].w_x": ["h", "f"],
        "cells[1].w_h": ["h", "h"],
    }


def test_size_names_in_records_are_listed_only_if_deep() -> None:
    assert names(Float[Array, "*#batch #n 2*d"], "x") == ["n", "d"]
    assert names(Layer[Array], "layer") == names(int, "n") == []
    assert names(tuple[Float[Array, " h"], Cell[Array]], "result") == ["h"]
    assert names(tuple[Float[Array, " h"], Cell[Array]], "result", deep=True) == ["h", "h", "d", "h", "h"]


# Declarations that are refused ----------------------------------------------------------------------------------------

WANTED = "[Array] with its shape, a frozen dataclass or NamedTuple of [Array], a tuple of these, or an option"


@dataclass
class NotFrozen(Generic[Array]):
    w: Float[Array, " d"]


@dataclass(frozen=True)
class Empty(Generic[Array]):
    pass


@dataclass(frozen=True)
class Quoted(Generic[Array]):
    w: "Float[Array, ' d']"


@dataclass(frozen=True)
class WithShapeField(Generic[Array]):
    shape: Float[Array, " d"]


@dataclass(frozen=True)
class Derived(Generic[Array]):
    w: Float[Array, " d"]
    double: Float[Array, " d"] = field(init=False)


@dataclass(frozen=True)
class Hidden(Generic[Array]):
    _w: Float[Array, " d"]


@dataclass(frozen=True)
class Unnamed(Generic[Array]):
    cell: list[Array]


@dataclass(frozen=True)
class Flagged(Generic[Array]):
    w: Float[Array, " d"]
    causal: bool


class Plain(Generic[Array]):
    w: Float[Array, " d"]


@pytest.mark.parametrize(
    ("annotation", "path", "got"),
    [
        (str, "x", "str"),
        (Any, "x", "Any"),
        (dict[str, Array], "x", "dict"),
        (list[Float[Array, " d"]], "x", "list"),
        (Cell, "x", "Cell"),
        (tuple[()], "x", "tuple"),
        (Plain[Array], "x", "Plain"),
        (Unnamed[Array], "x.cell", "list"),
        (Flagged[Array], "x.causal", "bool"),
        (tuple[Float[Array, " d"], bool], "x[1]", "bool"),
        (tuple[int, ...], "x[:]", "int"),
    ],
)
def test_an_annotation_that_is_no_tree_is_refused(annotation: Any, path: str, got: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        read(annotation, "x", {})
    assert str(raised.value) == f"{path}: expected {WANTED}; got {got}"


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Cell[float], "x: expected Cell[Array], generic in its arrays; got Cell"),
        (NotFrozen[Array], "x: expected a frozen dataclass; got NotFrozen"),
        (Empty[Array], "x: expected a record with fields; got Empty"),
        (Quoted[Array], "x: expected annotations that are not strings; got Quoted"),
        (WithShapeField[Array], "x: expected no field named shape, which arrays have; got WithShapeField"),
        (Derived[Array], "x: expected fields that its constructor takes; got Derived"),
        (Hidden[Array], "x: expected fields without a leading underscore; got Hidden"),
    ],
)
def test_an_invalid_record_is_refused(annotation: Any, message: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        read(annotation, "x", {})
    assert str(raised.value) == message


def test_a_union_of_two_arrays_is_refused() -> None:
    with pytest.raises(InvalidDeclaration, match=r"^x: expected \[Array\] with its shape, .*; got .*Float.*Int"):
        read(Float[Array, " d"] | Int[Array, " d"], "x", {})


@pytest.mark.parametrize(("annotation", "known", "message"), [
    (Annotated[Cell[Array], sizes(d="k")], ("n", "h"), "cell: d: expected a size around the record, n, h; got k"),
    (Annotated[Cell[Array], sizes(d="2*k")], ("h",), "cell: d: expected a size around the record, h; got k"),
    (Annotated[Cell[Array], sizes(d="h")], (), "cell: d: expected a size around the record, none; got h"),
    (Annotated[tuple[Cell[Array], ...], sizes(d=("d", "k"))], ("d",),
     "cell: d: expected a size around the record, d; got k"),
    (Annotated[Cell[Array], sizes(zz="d")], ("d",), "cell: sizes: expected some of h, d; got zz"),
    (Annotated[tuple[Cell[Array], ...], sizes(zz="d")], ("d",), "cell: sizes: expected some of h, d; got zz"),
    (Annotated[Float[Array, "n d"], sizes(zz="d")], ("d",), "cell: sizes: expected some of n, d; got zz"),
    (Annotated[Float[Array, "n d"], sizes(d="h*k")], ("n", "h"),
     "cell: d: expected a size around the record, n, h; got k"),
])  # fmt: skip
def test_sizes_that_are_not_around_the_record_are_refused(
    annotation: Any, known: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        read(annotation, "cell", scope(*known))
    assert str(raised.value) == message


def test_misdeclared_is_a_type_error() -> None:
    assert issubclass(InvalidDeclaration, TypeError)


@pytest.mark.parametrize("dtype", [Complex, UInt, Shaped], ids=lambda d: str(d.__name__))
def test_an_array_of_another_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(InvalidDeclaration, match=r"^x: expected an array of Float, Int or Bool; got "):
        read(dtype[Array, "d"], "x", {})


@pytest.mark.parametrize("new", [3, ("d", "d", "d"), ("d", 3)])
def test_a_renaming_to_no_size_is_refused(new: Any) -> None:
    with pytest.raises(InvalidDeclaration, match=r"^x: d_q: expected a size around the record, or a pair; got "):
        _renamed({"d": "d"}, sizes(d_q=new), "x", 1)
