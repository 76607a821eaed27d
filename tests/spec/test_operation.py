"""Operations read from their Protocols, and Protocols that are refused."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import pytest
from jaxtyping import Bool, Float, Int

from attnspec.spec import OPERATIONS, Array, Axis, Branch, Kind, Operation, Role, operation
from attnspec.spec.contract.annotations import Array_co, InvalidDeclaration, sizes
from attnspec.spec.contract.operation import _OPERATIONS
from attnspec.spec.contract.tree import Leaf


def declared(protocol: Any, name: str = "", **declaration: Any) -> Operation:
    """The operation that a Protocol describes, which leaves the registry at once.

    ``declaration`` are options of `attnspec.spec.operation`, such as ``features``, which are explained there.
    """
    name = name or protocol.__name__.lower()
    operation(name, **{"chapter": "transformer", "formula": "", "sources": [], **declaration})(protocol)
    return _OPERATIONS.pop(name)


def paths(leaves: Any) -> list[str]:
    return [leaf.path for leaf in leaves]


# Protocols ------------------------------------------------------------------------------------------------------------


class Attend(Protocol[Array]):
    """Attention to another sequence."""

    def __call__(
        self,
        reader: Float[Array, "*#batch n d_q"],
        text: Float[Array, "*#batch m d_k"],
        meaning: Float[Array, "*#batch m d_v"],
        u: Float[Array, "h d_q"],
        places: Float[Array, "n d_q"],
        bias: Float[Array, ""],
        *,
        allowed: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


class Reflect(Protocol[Array]):
    """Attention of a sequence to itself."""

    def __call__(
        self, text: Float[Array, "*batch n d"], *, allowed: Bool[Array, "*#batch #n #n"] | None = None
    ) -> Float[Array, "*batch n d"]: ...


class Summary(Protocol[Array]):
    """A state attends to a sequence."""

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        text: Float[Array, "*#batch m d_h"],
        u: Float[Array, "h d_s"],
        *,
        allowed: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


class Weights(Protocol[Array]):
    """Weights and their average."""

    def __call__(
        self,
        scores: Float[Array, "*#batch n m"],
        meaning: Float[Array, "*#batch m d_v"],
        *,
        allowed: Bool[Array, "*#batch #n #m"] | None = None,
    ) -> tuple[Float[Array, "*batch n d_v"], Float[Array, "*batch n m"]]: ...


class Step(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


@dataclass(frozen=True)
class Gates(Generic[Array]):
    w: Float[Array, "4*h d_x"]
    b: Float[Array, " 4*h"] | None = None


class Recur(Protocol[Array]):
    """A layered recurrent network on a sequence that is padded."""

    def __call__(
        self,
        tokens: Int[Array, "*#batch t"],
        embedding: Float[Array, "vocabulary d_x"],
        state: Step[Array],
        layers: Annotated[tuple[Gates[Array], ...], sizes(d_x=("d_x", "h"), count="depth")],
        lengths: Int[Array, "*#batch"],
        clip: float = 1.0,
        *,
        norm: Literal["pre", "post"] = "post",
    ) -> tuple[Float[Array, "*batch t h"], tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]]: ...


RECUR: dict[str, Any] = {
    "lengths": {"lengths": "t"},
    "indices": {"tokens": "vocabulary"},
    "trial_values": {"clip": (1.0, 0.5)},
    "results": "outputs last_h last_c",
    "causal": "t",
    "features": "norm=pre last_c",
}

SELF = {"n": Axis.SELF}

attend, summary = declared(Attend), declared(Summary)
reflect = declared(Reflect, axes=SELF)
weights = declared(Weights, results="pooled weights")
recur = declared(Recur, **RECUR)

# What it takes and gives ----------------------------------------------------------------------------------------------


def test_the_signature_is_taken_apart() -> None:
    assert attend.call.names == tuple(attend.signature.parameters)
    assert attend.defaults == {"allowed": None, "causal": False}
    assert attend.keyword_only == {"allowed", "causal"}
    assert attend.statement == "Attention to another sequence."
    assert attend.protocol is Attend
    assert paths(attend.leaves) == ["reader", "text", "meaning", "u", "places", "bias", "allowed"]
    assert paths(attend.options) == ["causal"]
    assert paths(attend.floats) == ["reader", "text", "meaning", "u", "places", "bias"]
    assert paths(attend.outputs) == ["result"]
    assert attend.differentiable


def test_the_arrays_of_layers_count_once_unless_the_first_differs() -> None:
    assert paths(recur.leaves) == [
        "tokens", "embedding", "state.h", "state.c",
        *("layers[:].w", "layers[:].b") * 2,
        "lengths",
    ]  # fmt: skip
    assert [x.sizes for x in recur.leaves if x.path == "layers[:].w"] == [("h", "d_x"), ("h", "h")]
    assert recur.keyword_only == {"norm"}
    assert {o.path: o.kind for o in recur.options} == {"clip": Kind.NUMBER, "norm": Kind.CHOICE}


def test_the_arrays_of_a_result_have_the_names_that_are_given() -> None:
    assert paths(recur.outputs) == ["outputs", "last_h", "last_c"]
    assert paths(weights.outputs) == ["pooled", "weights"]
    assert isinstance(recur.result, Branch)
    assert [node.path for node in recur.result.nodes] == ["outputs", "result[1]"]


def test_sizes_come_in_order_of_appearance() -> None:
    assert attend.sizes == ("n", "d_q", "m", "d_k", "d_v", "h")
    assert recur.sizes == ("t", "vocabulary", "d_x", "h", "depth")
    assert recur.counts == ("depth",)


def test_a_number_is_a_size_where_it_has_a_meaning_and_a_count_elsewhere() -> None:
    class Draw(Protocol[Array_co]):
        """Two numbers."""

        def __call__(self, n: int, warmup: int) -> Float[Array_co, " {n}"]: ...

    draw = declared(Draw, trial_values={"warmup": (3,)})
    assert [(o.path, o.kind) for o in draw.options] == [("n", Kind.SIZE), ("warmup", Kind.COUNT)]
    assert paths(draw.numbers) == ["n"]
    assert draw.sizes == ("n",)
    assert draw.float_result
    assert not draw.differentiable


# Axes and roles -------------------------------------------------------------------------------------------------------


def test_every_size_has_an_axis() -> None:
    assert [recur.axis(s) for s in recur.sizes] == [Axis.TIME, Axis.VOCABULARY, Axis.WIDTH, Axis.HIDDEN, Axis.LAYER]
    assert recur.axis("layers[1].h") is Axis.HIDDEN
    assert attend.sizes_of(Axis.FEATURE) == ("d_q", "d_k", "d_v")
    assert recur.sizes_of(Axis.LAYER) == ()  # depth counts the items of a tuple and is no axis of an array
    with pytest.raises(KeyError):
        attend.axis("z")


def test_positions_may_be_empty_unless_declared_nonempty_and_features_may_not() -> None:
    assert [attend.least(size) for size in ("n", "m", "h")] == [0, 0, 1]
    assert [declared(Attend, nonempty="m").least(size) for size in ("n", "m", "h")] == [0, 1, 1]


def test_an_operation_may_say_what_its_sizes_count() -> None:
    assert attend.axis("n") is Axis.QUERY
    assert reflect.axis("n") == Axis.QUERY | Axis.KEY
    assert declared(Reflect, axes={"n": Axis.SELF | Axis.TIME}).axis("n") == Axis.POSITION
    assert reflect.axis("d") is Axis.FEATURE


def test_the_role_of_every_array() -> None:
    assert {x.path: attend.role(x) for x in attend.leaves} == {
        "reader": Role.ROWS,
        "text": Role.ROWS,
        "meaning": Role.ROWS,
        "u": Role.WEIGHT,
        "places": Role.ROWS | Role.WEIGHT,
        "bias": Role.WEIGHT,
        "allowed": Role.MASK,
    }
    assert {x.path: recur.role(x) for x in recur.leaves} == {
        "tokens": Role.INDICES,
        "embedding": Role.WEIGHT,
        "state.h": Role.STATE,
        "state.c": Role.STATE,
        "layers[:].w": Role.WEIGHT,
        "layers[:].b": Role.WEIGHT,
        "lengths": Role.LENGTHS,
    }


def test_queries_and_keys_are_distinguished() -> None:
    assert (attend.query_size, attend.key_size) == ("n", "m")
    assert paths(attend.queries) == ["reader"]
    assert paths(attend.attended) == ["text", "meaning"]
    assert not attend.attends_to_itself


def test_self_attention_has_the_same_queries_and_keys() -> None:
    assert reflect.attends_to_itself
    assert paths(reflect.queries) == paths(reflect.attended) == ["text"]


def test_a_state_is_the_query_where_no_axis_counts_queries() -> None:
    assert (summary.query_size, summary.key_size) == (None, "m")
    assert paths(summary.queries) == ["state"]
    assert paths(summary.attended) == ["text"]


def test_scores_have_rows_of_queries_alone() -> None:
    assert paths(weights.queries) == ["scores"]
    assert paths(weights.attended) == ["meaning"]
    assert paths(weights.along("m")) == ["scores", "meaning"]
    assert paths(weights.along("m", Role.MASK)) == ["allowed"]
    assert weights.along(None) == ()


def test_a_network_over_time_attends_to_nothing() -> None:
    assert (recur.query_size, recur.key_size, recur.mask, recur.flag) == (None, None, None, None)
    assert recur.queries == recur.attended == ()
    assert not recur.weighs_keys


def test_a_mask_or_lengths_say_which_positions_count() -> None:
    assert attend.mask is attend.hiding_argument("m") is attend.leaves[-1]
    assert attend.hiding_argument("n") is None
    hides = recur.hiding_argument("t")
    assert isinstance(hides, Leaf)
    assert hides.path == "lengths"
    assert summary.mask is not None


def test_lengths_of_the_keys_are_no_mask() -> None:
    class Padded(Protocol[Array]):
        """A mean."""

        def __call__(
            self, text: Float[Array, "*#batch m d"], lengths: Int[Array, "*#batch"]
        ) -> Float[Array, "*batch d"]: ...

    padded = declared(Padded, lengths={"lengths": "m"})
    hides = padded.hiding_argument("m")
    assert hides is not None
    assert hides.path == "lengths"
    assert padded.mask is None


def test_keys_are_weighed_where_no_result_has_a_number_for_each() -> None:
    assert attend.weighs_keys
    assert summary.weighs_keys
    assert reflect.weighs_keys
    assert not weights.weighs_keys
    assert [o.name for o in OPERATIONS.values() if o.weighs_keys and o.mask is None] == []


def test_every_kind_of_keys_has_a_mask_of_its_own() -> None:
    decoder = OPERATIONS["decoder_layer"]
    assert {keys: leaf.path for keys, leaf in decoder.masks.items()} == {"n": "mask", "m": "memory_mask"}
    assert decoder.mask is decoder.masks["n"]
    assert decoder.separate_keys == ("m",)
    assert paths(decoder.rows("m")) == ["memory"]
    assert paths(decoder.summed_over("n")) == paths(decoder.summed_over("m")) == ["result"]
    assert paths(weights.summed_over("m")) == ["pooled"]
    assert (reflect.separate_keys, attend.separate_keys) == ((), ("m",))


def test_a_flag_makes_results_causal() -> None:
    assert attend.flag == "causal"
    assert attend.causal == ("n", "m")
    assert attend.ordered == ("causal",)


def test_a_flag_of_self_attention_concerns_one_size() -> None:
    class Decode(Protocol[Array]):
        """Self-attention."""

        def __call__(self, text: Float[Array, "*batch n d"], *, causal: bool = False) -> Float[Array, "*batch n d"]: ...

    decode = declared(Decode, axes=SELF)
    assert decode.causal == ("n",)
    assert decode.order_free(Axis.QUERY) == decode.order_free(Axis.KEY) == ("n",)


def test_what_is_causal_by_itself_has_no_flag() -> None:
    assert recur.causal == ("t",)
    assert recur.flag is None
    assert declared(Weights, results="pooled weights", causal="n m").causal == ("n", "m")


def test_causal_sizes_and_time_are_not_order_free() -> None:
    assert attend.order_free(Axis.QUERY) == ("n",)
    assert attend.order_free(Axis.KEY) == ("m",)
    assert recur.order_free(Axis.TIME) == ()
    assert declared(Reflect, axes=SELF, causal="n").order_free(Axis.QUERY) == ()
    assert declared(Reflect, axes={"n": Axis.SELF | Axis.TIME}).order_free(Axis.KEY) == ()


def test_a_causal_mask_has_no_order_free_sizes() -> None:
    assert OPERATIONS["causal_mask"].order_free(Axis.QUERY) == ()


def test_declared_values_are_kept() -> None:
    assert recur.features == ("norm=pre", "last_c")
    assert recur.results == ("outputs", "last_h", "last_c")
    scaling = declared(Attend, scores_scale_with={"u": 2.0})  # scores double if u is multiplied by 2²
    assert scaling.scores_scale_with == {"u": 2.0}


# The registry ---------------------------------------------------------------------------------------------------------


def test_declared_operations_left_the_registry() -> None:
    assert not {"attend", "reflect", "summary", "weights", "recur"} & set(OPERATIONS)


def test_operations_come_in_the_order_of_chapters() -> None:
    names = list(OPERATIONS)
    try:
        operation("attend", chapter="scoring", formula="", sources=[])(Attend)
        of_scoring = [n for n in names if OPERATIONS[n].chapter == "scoring"]
        assert list(OPERATIONS)[: len(of_scoring) + 1] == [*of_scoring, "attend"]
    finally:
        _OPERATIONS.pop("attend", None)
    assert list(OPERATIONS) == names


def test_the_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        OPERATIONS["dot_scores"] = attend  # type: ignore[index]  # this is what must not work


# What is no operation -------------------------------------------------------------------------------------------------


class Undocumented(Protocol[Array]):
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]: ...


class Nothing(Generic[Array]):
    """No Protocol."""

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Results."""
        return x


class Bare(Protocol):
    """No array type."""

    def __call__(self, n: int) -> int: ...


@pytest.mark.parametrize("protocol", [Undocumented, Nothing, Bare])
def test_a_class_that_is_no_documented_protocol_is_refused(protocol: Any) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        declared(protocol)
    assert str(raised.value) == (f"{protocol.__name__}: expected a Protocol[Array] with a docstring")


@pytest.mark.parametrize("name", ["dot_scores", "attention", "Attend", "attend_to"])
def test_a_name_other_than_that_of_the_class_is_refused(name: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        declared(Attend, name)
    assert str(raised.value) == (f"Attend: name: expected the class's name in snake_case, not yet used; got {name!r}")


def test_a_name_is_not_used_twice() -> None:
    with pytest.raises(
        InvalidDeclaration,
        match=r"^DotScores: name: expected the class's name in snake_case, not yet used; got 'dot_scores'$",
    ):
        declared(OPERATIONS["dot_scores"].protocol, "dot_scores")


def test_a_chapter_exists() -> None:
    with pytest.raises(
        ValueError, match=r"chapter: expected one of scoring, normalization, .*, complexity; got 'alchemy'"
    ):
        operation("attend", chapter="alchemy", formula="", sources=[])


@pytest.mark.parametrize(("declaration", "message"), [
    ({"pooled": "value"}, f"pooled: expected some of {', '.join(attend.call.names)}; got value"),
    ({"linear": "meaning value"}, f"linear: expected some of {', '.join(attend.call.names)}; got value"),
    ({"scores_scale_with": {"w": 1.0}},
     f"scores_scale_with: expected some of {', '.join(paths(attend.leaves))}; got w"),
    ({"ordered": "window"}, f"ordered: expected some of {', '.join(attend.call.names)}; got window"),
    ({"causal": "n t"}, "causal: expected some of n, d_q, m, d_k, d_v, h; got t"),
    ({"chosen": "result"}, "chosen: expected no names; got result"),
    ({"nonempty": "t"}, "nonempty: expected some of n, d_q, m, d_k, d_v, h; got t"),
    ({"features": "scale"}, "features: expected some of allowed, causal, causal=False, causal=True, result; got scale"),
    ({"features": "u"}, "features: expected some of allowed, causal, causal=False, causal=True, result; got u"),
    ({"lengths": {"len": "m"}},
     f"lengths, indices: expected some of {', '.join(paths(attend.leaves))}, causal; got len"),
    ({"indices": {"text": "t"}}, "lengths, indices: expected some of n, d_q, m, d_k, d_v, h; got t"),
    ({"trial_values": {"scale": (1.0,)}}, "trial_values: expected some of causal; got scale"),
    ({"axes": {"t": Axis.TIME}}, "axes: expected some of n, d_q, m, d_k, d_v, h; got t"),
    ({"results": "one two"}, "results: expected names of 1 arrays; got 2"),
])  # fmt: skip
def test_a_declaration_with_an_unknown_name_is_refused(declaration: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        declared(Attend, **declaration)
    assert str(raised.value) == f"Attend: {message}"
    assert "attend" not in OPERATIONS


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ({"results": ""}, "results: expected a name for each of 3 arrays; got none"),
        ({"results": "outputs last_h"}, "results: expected names of 3 arrays; got 2"),
        ({"results": "a b c d"}, "results: expected names of 3 arrays; got 4"),
        ({"trial_values": {}}, "clip: expected `trial_values=` with numbers to try it with"),
        ({"indices": {}}, "tokens: expected `lengths=` or `indices=` to bound the integers"),
        ({"lengths": {}}, "lengths: expected `lengths=` or `indices=` to bound the integers"),
    ],
)
def test_a_declaration_without_examples_is_refused(declaration: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        declared(Recur, **{**RECUR, "features": "", **declaration})
    assert str(raised.value) == f"Recur: {message}"


class UnknownSize(Protocol[Array]):
    """A size that the glossary does not have."""

    def __call__(self, x: Float[Array, "*batch q"]) -> Float[Array, "*batch q"]: ...


class UnknownResult(Protocol[Array]):
    """A size that no argument has."""

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch n d"]: ...


class LateBatch(Protocol[Array]):
    """A rank that is left to the formula."""

    def __call__(self, x: Float[Array, "*coordinates"]) -> Float[Array, ""]: ...


class MaskOfFeatures(Protocol[Array]):
    """A mask that hides no keys."""

    def __call__(self, x: Float[Array, "*batch n d"], drop: Bool[Array, " d"]) -> Float[Array, "*batch n d"]: ...


class MaskOfNothing(Protocol[Array]):
    """A mask that is one number."""

    def __call__(self, x: Float[Array, "*batch n d"], drop: Bool[Array, "*batch"]) -> Float[Array, "*batch n d"]: ...


class MaskOfThree(Protocol[Array]):
    """A mask of a fixed number."""

    def __call__(self, x: Float[Array, "*batch n d"], drop: Bool[Array, "*batch 3"]) -> Float[Array, "*batch n d"]: ...


class BadDefault(Protocol[Array]):
    """A default that is none of the choices."""

    def __call__(
        self,
        x: Float[Array, " d"],
        norm: Literal["pre", "post"] = "none",  # type: ignore[assignment]  # the point
    ) -> Float[Array, " d"]: ...


class Untyped(Protocol[Array]):
    """An argument that is no tree."""

    def __call__(self, x: Float[Array, " d"], names: list[str]) -> Float[Array, " d"]: ...


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (UnknownSize, "size q: expected a name in GLOSSARY, or `axes=` to say what it counts"),
        (UnknownResult, "result: expected sizes that arguments have; got n"),
        (LateBatch, "x: expected *batch first, then sizes; got (*coordinates,)"),
        (MaskOfFeatures, "drop: expected a mask, whose last axis counts keys, blocks or, without keys, steps"),
        (MaskOfNothing, "drop: expected a mask, whose last axis counts keys, blocks or, without keys, steps"),
        (MaskOfThree, "drop: expected a mask, whose last axis counts keys, blocks or, without keys, steps"),
        (BadDefault, "norm: expected a default among ('pre', 'post'); got 'none'"),
        (
            Untyped,
            "names: expected [Array] with its shape, a frozen dataclass or NamedTuple of [Array], a tuple of these, "
            "or an option; got list",
        ),
    ],
)
def test_a_signature_that_no_law_could_judge_is_refused(protocol: Any, message: str) -> None:
    with pytest.raises(InvalidDeclaration) as raised:
        declared(protocol)
    assert str(raised.value) == f"{protocol.__name__}: {message}"


def test_a_reference_only_operation_may_have_arrays_of_any_rank() -> None:
    assert declared(LateBatch, reference_only=True).leaves[0].free


def test_a_declaration_may_give_an_unknown_size_an_axis() -> None:
    assert declared(UnknownSize, axes={"q": Axis.WIDTH}).sizes_of(Axis.WIDTH) == ("q",)


class Counted(Protocol[Array]):  # type: ignore[misc]
    """A number instead of an array."""

    def __call__(self, x: Float[Array, "*batch d"]) -> int: ...


class Perhaps(Protocol[Array]):
    """An array that may be missing."""

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"] | None: ...


class Twins(Protocol[Array]):
    """Two arrays."""

    def __call__(self, x: Float[Array, "*batch d"]) -> tuple[Float[Array, "*batch d"], Float[Array, "*batch d"]]: ...


@pytest.mark.parametrize("protocol", [Counted, Perhaps], ids=lambda p: str(p.__name__))
def test_a_result_without_arrays_is_refused(protocol: Any) -> None:
    with pytest.raises(
        InvalidDeclaration, match=rf"^{protocol.__name__}: result: expected an array or a tree of arrays, none"
    ):
        declared(protocol, axes={"d": Axis.WIDTH})


def test_results_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidDeclaration, match=r"^Twins: results: expected a name for each array; got a, a$"):
        declared(Twins, axes={"d": Axis.WIDTH}, results="a a")


class ProductOnly(Protocol[Array]):
    """Two sizes of which only the product is known."""

    def __call__(self, x: Float[Array, "*batch d_k*d_v"]) -> Float[Array, "*batch d_k"]: ...


class BroadcastOnly(Protocol[Array]):
    """A size whose axis may be 1."""

    def __call__(self, x: Float[Array, "*batch #d_k"]) -> Float[Array, "*batch d_k"]: ...


class OptionalOnly(Protocol[Array]):
    """A size of an array that may be missing."""

    def __call__(
        self, x: Float[Array, "*batch d"], w: Float[Array, " h"] | None = None
    ) -> Float[Array, "*batch h"]: ...


class LayersOnly(Protocol[Array]):
    """A size of layers, of which there may be none."""

    def __call__(self, x: tuple[Float[Array, "*batch d"], ...]) -> Float[Array, "*batch d"]: ...


class Eponymous(Protocol[Array]):
    """An argument that is called like the result."""

    def __call__(self, x: Float[Array, "*batch d"], result: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]: ...


@pytest.mark.parametrize(
    ("protocol", "size"), [(ProductOnly, "d_k"), (BroadcastOnly, "d_k"), (OptionalOnly, "h"), (LayersOnly, "d")]
)
def test_a_size_that_no_argument_binds_is_refused(protocol: Any, size: str) -> None:
    with pytest.raises(
        InvalidDeclaration,
        match=rf"^{protocol.__name__}: size {size}: expected an axis or argument that",
    ):
        declared(protocol)


def test_an_argument_named_result_is_refused() -> None:
    with pytest.raises(InvalidDeclaration, match=r"^Eponymous: result: expected another name for an argument$"):
        declared(Eponymous)
