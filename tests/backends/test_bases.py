"""Conversion and gradients of the bases, and their messages to users."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import ml_dtypes
import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend, devices, gradients
from attnspec.spec import OPERATIONS, Array, ShapeError, operation
from attnspec.spec.contract.annotations import sizes
from attnspec.spec.contract.backend import Backend
from attnspec.spec.contract.operation import _OPERATIONS
from tests.budgets import assert_gradients_within_budgets

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.bool_, np.int64)


class Arrays(NumPyBackend):
    name = "arrays"


class Tensors(TorchBackend):
    name = "tensors"

    def dot_scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT

    def location_scores(self, query: Tensor, w: Tensor) -> Tensor:
        return query.new_zeros(*query.shape[:-1], w.shape[0])

    def softmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return (scores if mask is None else scores.masked_fill(~mask, 0)).exp()


BASES = (Arrays(), Tensors())


@pytest.fixture
def jax_base() -> Any:
    pytest.importorskip("jax", reason="JAX is not installed")
    from attnspec.backends.bases.jax import JaxBackend

    class Jax(JaxBackend):
        name = "jax"

        def dot_scores(self, query: Any, key: Any) -> Any:
            return query @ key.swapaxes(-1, -2)

    return Jax()


def layouts(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [array, array.swapaxes(0, 2), array[:, ::2], array[::-1], np.broadcast_to(array[:, :1], array.shape)]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_conversion_keeps_numbers_dtype_and_shape(base: Any, dtype: Any) -> None:
    for array in layouts(np.arange(24).reshape(2, 3, 4).astype(dtype)):
        back = base.to_numpy(base.from_numpy(array, device="cpu"))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_conversion_keeps_empty_and_scalar_shapes(base: Any, shape: tuple[int, ...]) -> None:
    assert base.to_numpy(base.from_numpy(np.ones(shape), device="cpu")).shape == shape


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_tensors_of_8_bits_hold_the_same_bits(name: str) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4).view(getattr(ml_dtypes, name))
    tensor = Tensors().from_numpy(array, device="cpu")
    assert tensor.dtype is getattr(torch, name)
    np.testing.assert_array_equal(tensor.view(torch.uint8).numpy(), array.view(np.uint8))


def test_tensors_of_4_bits_hold_two_codes_in_a_byte() -> None:
    array = np.arange(16, dtype=np.uint8).reshape(2, 8).view(ml_dtypes.float4_e2m1fn)
    tensor = Tensors().from_numpy(array, device="cpu")
    assert tensor.dtype is torch.float4_e2m1fn_x2
    assert tensor.view(torch.uint8)[0].tolist() == [0x10, 0x32, 0x54, 0x76]


def test_strides_survive_conversion() -> None:
    for array in layouts(np.arange(24.0).reshape(2, 3, 4)):
        elements = tuple(abs(stride) // 8 for stride in array.strides)
        assert Tensors().from_numpy(array, device="cpu").stride() == elements
        assert tuple(s // 8 for s in Arrays().from_numpy(array, device="cpu").strides) == elements


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_conversion_copies_both_ways(base: Any) -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    converted = base.from_numpy(array, device="cpu")
    kept = base.to_numpy(converted)
    converted[0] = 1
    assert array[0] == 0
    assert kept[0] == 0
    assert base.to_numpy(converted)[0] == 1


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_an_absent_device_is_named(base: Any, device: str) -> None:
    with pytest.raises(ValueError, match=rf"^device: expected .*cpu.*; got '{device}'$"):
        base.from_numpy(np.ones(1), device=device)


def test_a_foreign_result_is_named() -> None:
    with pytest.raises(TypeError, match=r"^result: expected a torch.Tensor; got ndarray$"):
        Tensors().to_numpy(np.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^result: expected a NumPy array; got Tensor$"):
        Arrays().to_numpy(torch.ones(1))  # type: ignore[arg-type]


def test_numpy_has_no_gradients() -> None:
    assert not hasattr(Arrays(), "vjp")


def test_bases_are_backends_without_operations() -> None:
    assert isinstance(Arrays(), Backend)
    assert not [name for name in OPERATIONS if hasattr(Arrays(), name)]


def test_vjp_gives_every_float_argument_its_gradient() -> None:
    query, key, cotangent = (torch.randn(2, 3, dtype=torch.float64) for _ in range(3))
    key = key.requires_grad_()
    cotangent = torch.randn(2, 2, dtype=torch.float64)
    by_argument = Tensors().vjp("dot_scores", {"query": query, "key": key}, cotangent)
    gradients = by_argument["query"], by_argument["key"]
    assert_gradients_within_budgets(gradients, cotangent, "dot_scores", query, key)
    assert not query.requires_grad
    assert key.grad is None


def test_vjp_counts_arguments_by_name() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    cotangent = torch.randn(2, 2, dtype=torch.float64)
    by_argument = Tensors().vjp("dot_scores", {"query": x, "key": x}, cotangent)
    assert_gradients_within_budgets((by_argument["query"], by_argument["key"]), cotangent, "dot_scores", x, x)


def test_vjp_is_zero_for_an_argument_without_influence() -> None:
    gradients = Tensors().vjp("location_scores", {"query": torch.randn(2, 3), "w": torch.randn(4, 3)}, torch.ones(2, 4))
    assert {name: tuple(g.shape) for name, g in gradients.items()} == {"query": (2, 3), "w": (4, 3)}
    assert not any(bool(g.any()) for g in gradients.values())


def test_vjp_leaves_masks_out() -> None:
    arguments = {"scores": torch.zeros(1, 2), "mask": torch.tensor([[True, False]])}
    with torch.no_grad():
        gradients = Tensors().vjp("softmax", arguments, torch.ones(1, 2))
    assert list(gradients) == ["scores"]
    assert gradients["scores"].tolist() == [[1.0, 0.0]]


def test_check_names_the_argument_each_time() -> None:
    check = Check("scaled_dot_product_attention")
    query, value = torch.ones(2, 3, 4), torch.ones(6, 4)
    assert check(query, query, query, None) == (2, 3, 4)
    for _ in range(2):
        with pytest.raises(
            ShapeError, match=r"^scaled_dot_product_attention: value: .*m = 3 \(from key\); got \(6, 4\)"
        ):
            check(query, query, value, None)
    with pytest.raises(TypeError, match=r"mask: expected torch.bool, True = may attend; got torch.float32$"):
        check(query, query, query, torch.ones(3, 3))


def test_devices_begin_with_the_cpu() -> None:
    assert devices()[0] == "cpu"


@pytest.mark.parametrize(
    ("module", "absent"),
    [("numpy", ("torch", "jax")), ("contract", ("torch", "jax")), ("torch", ("jax", "triton", "numba"))],
)
def test_a_base_imports_no_other_framework(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, attnspec.backends.bases.{module}; print(*sorted({{*{absent}}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_jax_conversion_and_gradients(jax_base: Any) -> None:
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.bool_):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        back = jax_base.to_numpy(jax_base.from_numpy(array, device="cpu"))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
    query, cotangent = (jax_base.from_numpy(np.ones((2, size), np.float32), device="cpu") for size in (3, 2))
    gradients = jax_base.vjp("dot_scores", {"query": query, "key": 2 * query}, cotangent)
    assert {name: float(g[0, 0]) for name, g in gradients.items()} == {"query": 4.0, "key": 2.0}


def test_jax_names_what_it_cannot_keep(jax_base: Any) -> None:
    assert "float64" not in jax_base.limits.dtypes
    with pytest.raises(ValueError, match=r"^dtype: expected one that JAX keeps .*; got float64$"):
        jax_base.from_numpy(np.ones(2), device="cpu")
    with pytest.raises(ValueError, match=r"^device: expected one of cpu; got 'abacus'$"):
        jax_base.from_numpy(np.ones(2, np.float32), device="abacus")
    with pytest.raises(TypeError, match=r"^result: expected a jax.Array; got ndarray$"):
        jax_base.to_numpy(np.ones(2))


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate(Generic[Array]):
    w: Float[Array, "h d"]
    b: Float[Array, " h"] | None = None


class State(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


class Gated(Protocol[Array]):
    """Layers of gates on a state, and an offset that need not be given."""

    def __call__(
        self,
        x: Float[Array, "*#batch d"],
        state: State[Array],
        gates: Annotated[tuple[Gate[Array], ...], sizes(d=("d", "h"))],
        offset: Gate[Array] | None = None,
        *,
        norm: Literal["pre", "post"] = "post",
    ) -> tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]:
        """The state after the last layer."""
        ...


@pytest.fixture
def gated() -> Iterator[Check]:
    """The check of an operation over trees, registered for the time of the test."""
    operation("gated", chapter="recurrent", formula="", sources=[], results="h c")(Gated)
    yield Check("gated")
    _OPERATIONS.pop("gated")


def gate(h: int, d: int, bias: bool = False, dtype: torch.dtype = torch.float32) -> Gate[Tensor]:
    return Gate(torch.ones(h, d, dtype=dtype), torch.ones(h, dtype=dtype) if bias else None)


def state(h: int = 2) -> State[Tensor]:
    return State(torch.ones(h), torch.ones(5, h))


def test_check_reads_trees(gated: Check) -> None:
    for _ in range(2):
        for gates in ((gate(2, 3), gate(2, 2, bias=True)), (gate(2, 3, bias=True),), ()):
            assert gated(torch.ones(5, 1, 3), state(), gates, None) == (5, 5, 2)
            assert gated(torch.ones(3), state(), gates, gate(2, 3)) == (5, 2)


def test_check_names_an_option_that_is_no_choice(gated: Check) -> None:
    arguments = torch.ones(5, 3), state(), (gate(2, 3),), None
    for norm in ("pre", "post"):
        assert gated(*arguments, norm=norm) == (5, 2)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^gated: norm: expected 'pre' or 'post'; got None$"):
            gated(*arguments, norm=None)
    with pytest.raises(TypeError, match=r"^gated: expected an option among norm; got 'causal'$"):
        gated(*arguments, causal=True)


@pytest.mark.parametrize(("changed", "error", "message"), [
    ({"x": torch.ones(5, 4)}, ShapeError, "gates[0].w: expected (h, d) with d = 4 (from x); got (2, 3)"),
    ({"gates": (gate(2, 3), gate(2, 3))}, ShapeError, "gates[1].w: expected (h, d) with d = 2 "),
    ({"offset": gate(2, 4)}, ShapeError, "offset.w: expected (h, d) with d = 3 (from x); got (2, 4)"),
    ({"state": (torch.ones(2), torch.ones(2))}, TypeError, "state: expected a State; got tuple"),
    ({"gates": [gate(2, 3)]}, TypeError, "gates: expected a tuple; got list"),
    ({"gates": (gate(2, 3), torch.ones(2, 2))}, TypeError, "gates[1]: expected a Gate; got Tensor"),
    ({"gates": (Gate(np.ones((2, 3))),)}, TypeError, "gates[0].w: expected a torch.Tensor; got ndarray"),
    ({"gates": (gate(2, 3), gate(2, 2, dtype=torch.float64))}, TypeError,
     "gates[1].w: expected torch.float32 like the others; got torch.float64"),
    ({"offset": Gate(torch.ones(2, 3, device="meta"))}, ValueError,
     "offset.w: expected a tensor on cpu like the others; got meta"),
])  # fmt: skip
def test_check_names_the_path(gated: Check, changed: dict[str, Any], error: type[Exception], message: str) -> None:
    inputs = {"x": torch.ones(5, 3), "state": state(), "gates": (gate(2, 3), gate(2, 2)), "offset": None, **changed}
    for _ in range(2):
        with pytest.raises(error) as raised:
            gated(*inputs.values())
        assert str(raised.value).startswith(f"gated: {message}")


@pytest.mark.parametrize("dynamic", [False, True])
def test_check_reads_trees_in_compiled_code(gated: Check, dynamic: bool) -> None:
    def width(x: Tensor, gates: tuple[Gate[Tensor], ...]) -> Tensor:
        return x.new_zeros(gated(x, state(), gates, None))

    torch.compiler.reset()
    compiled = torch.compile(width, fullgraph=True, backend="eager", dynamic=dynamic)
    assert compiled(torch.ones(5, 3), (gate(2, 3), gate(2, 2))).shape == (5, 2)


class Fourfold(Protocol[Array]):
    """A size that occurs only in a product."""

    def __call__(self, x: Float[Array, "*#batch d"], w: Float[Array, "4*h d"]) -> Float[Array, "*batch h"]:
        """The products, summed in fours."""
        ...


@pytest.mark.parametrize("dynamic", [False, True])
def test_check_reads_products_in_compiled_code(dynamic: bool) -> None:
    operation("fourfold", chapter="recurrent", formula="", sources=[])(Fourfold)
    check = Check("fourfold")
    _OPERATIONS.pop("fourfold")

    def summed(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.mT).reshape(*x.shape[:-1], 4, check(x, w)[-1]).sum(-2)

    torch.compiler.reset()
    compiled = torch.compile(summed, fullgraph=True, backend="eager", dynamic=dynamic)
    for d, h in ((3, 2), (5, 7)):
        x, w = torch.randn(6, d), torch.randn(4 * h, d)
        assert torch.equal(compiled(x, w), summed(x, w)), "eager runs the same operations"
        assert check(x, w) == (6, h)


def test_gradients_come_by_path() -> None:
    def total(state: State[Tensor], gates: tuple[Gate[Tensor], ...], times: int) -> State[Tensor]:
        return State(state.h * gates[0].w * times, gates[1].w + state.c.detach())

    threes, fives = (torch.full((2,), x, dtype=torch.float64) for x in (3.0, 5.0))
    arguments = {"state": State(threes, threes), "gates": (Gate(fives), Gate(fives, fives)), "times": 7}
    by_path = gradients(total, arguments, State(torch.ones(2), 2 * torch.ones(2)))
    assert {path: g.tolist() for path, g in by_path.items()} == {
        "state.h": [35.0, 35.0],
        "state.c": [0.0, 0.0],
        "gates[0].w": [21.0, 21.0],
        "gates[1].w": [2.0, 2.0],
        "gates[1].b": [0.0, 0.0],
    }
    alone = gradients(total, arguments, State(None, torch.ones(2)))
    assert alone["gates[1].w"].tolist() == [1.0, 1.0]
    assert not alone["gates[0].w"].any()


@pytest.mark.parametrize("wrong", [2.0, True, "2", None, torch.tensor(2)], ids=repr)
def test_check_names_a_size_that_is_no_integer(wrong: Any) -> None:
    check, x = Check("split_heads"), torch.zeros(3, 4)
    with pytest.raises(TypeError) as raised:
        check(x, wrong)
    assert str(raised.value) == f"split_heads: heads: expected an integer; got {wrong!r}"


@pytest.mark.parametrize(("wrong", "got"), [(torch.zeros(3), "Tensor"), (np.ones(2), "ndarray"), ([2], "list")])
def test_check_names_the_type_of_what_is_no_number(wrong: Any, got: str) -> None:
    with pytest.raises(TypeError, match=rf"^split_heads: heads: expected an integer; got {got}$"):
        Check("split_heads")(torch.zeros(3, 4), wrong)


def test_check_takes_integers_of_numpy() -> None:
    check, x = Check("split_heads"), torch.zeros(3, 4)
    assert check(x, np.int64(2)) == check(x, 2) == (2, 3, 2)
