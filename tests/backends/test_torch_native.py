"""The adapter of ``F.scaled_dot_product_attention``: what it presents and what it does not hide."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.torch_native import backend
from attnspec.spec import OPERATIONS, QUESTIONS, ShapeError

torch.set_num_threads(1)
attention = backend.scaled_dot_product_attention


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def test_it_provides_one_operation() -> None:
    assert [name for name in OPERATIONS if hasattr(backend, name)] == ["scaled_dot_product_attention"]


def test_it_declares_one_deviation() -> None:
    deviations = {q: getattr(backend.semantics, q) for q in QUESTIONS}
    assert {q: c for q, c in deviations.items() if c != QUESTIONS[q].normative} == {"masked_nonfinite": "propagates"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2)])
def test_the_numbers_are_those_of_pytorch(batch: tuple[int, ...], causal: bool) -> None:
    query, key, value = draw(*batch, 4, 8), draw(*batch, 6, 8), draw(*batch, 6, 5)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert torch.equal(attention(query, key, value, causal=causal), expected)


def test_mask_and_causal_both_hold() -> None:
    query, key, value = draw(2, 4, 8), draw(2, 6, 8), draw(2, 6, 5)
    mask = draw(4, 6) > 0
    expected = attention(query, key, value, mask=mask & torch.ones(4, 6, dtype=torch.bool).tril())
    assert torch.equal(attention(query, key, value, mask=mask, causal=True), expected)


def test_the_batch_of_the_mask_joins_the_broadcast() -> None:
    query, key, value, mask = draw(4, 8), draw(6, 8), draw(6, 5), draw(3, 2, 4, 6) > 0
    expected = torch.stack([torch.stack([attention(query, key, value, mask=m) for m in rows]) for rows in mask])
    torch.testing.assert_close(attention(query, key, value, mask=mask), expected)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_fully_masked_rows_and_no_keys_give_zero(batch: tuple[int, ...]) -> None:
    query, key, value = (draw(*batch, 3, 4) for _ in range(3))
    mask = torch.tensor([[True] * 3, [False] * 3, [True] * 3])
    found = backend.vjp(
        "scaled_dot_product_attention",
        {"query": query, "key": key, "value": value, "mask": mask},
        torch.ones(*batch, 3, 4),
    )
    assert not attention(query, key, value, mask=mask)[..., 1, :].any()
    assert not found["query"][..., 1, :].any()
    assert all(bool(g.isfinite().all()) for g in found.values())
    assert attention(query, key[..., :0, :], value[..., :0, :]).eq(0).all()


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_nan_at_a_masked_value_reaches_the_result(batch: tuple[int, ...]) -> None:
    query, key, value = (draw(*batch, 3, 4) for _ in range(3))
    value[..., 1, :] = torch.nan
    assert attention(query, key, value, mask=torch.tensor([[True, False, True]])).isnan().any()


@pytest.mark.parametrize(
    ("key", "value", "mask"),
    [
        ((2, 2, 5, 4), (2, 2, 6, 4), None),
        ((2, 2, 5, 3), (2, 2, 5, 4), None),
        ((3, 2, 5, 4), (3, 2, 5, 4), None),
        ((2, 2, 5, 4), (2, 2, 5, 4), (5,)),
        ((2, 2, 5, 4), (2, 2, 5, 4), (2, 5)),
    ],
)
def test_shapes_that_violate_the_protocol_raise(
    key: tuple[int, ...], value: tuple[int, ...], mask: tuple[int, ...] | None
) -> None:
    given = None if mask is None else torch.ones(mask, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"^scaled_dot_product_attention: (key|value|mask): expected .*; got "):
        attention(draw(2, 2, 3, 4), draw(*key), draw(*value), mask=given)
