"""Calls that show what is wrong with each implementation that escapes: a correct one gives another tensor."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnspec.spec import GRUParameters, LayerNormParameters

from . import escaping

Showing = Callable[[Any], Tensor]
"""What a backend gives in some calls."""

PREFILL = 70
"""Queries of more than a tile."""


def normal(*shape: int) -> Tensor:
    """Numbers that are the same for all."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def sparse(*shape: int) -> Tensor:
    """A mask."""
    return normal(*shape) > 0


def called(*given: Tensor, **options: Any) -> Showing:
    """The result of one call of attention."""
    return lambda backend: backend.scaled_dot_product_attention(*given, **options).detach()


def inferred(*given: Tensor, **options: Any) -> Showing:
    """The same where no gradients are recorded."""
    return torch.no_grad()(called(*given, **options))


def written(what: str) -> Showing:
    """The gradient of queries, where what is named is written to between forward and backward pass."""

    def show(backend: Any) -> Tensor:
        given = {"query": normal(3, 4).requires_grad_(), "key": normal(5, 4), "value": normal(5, 6)}
        mask = sparse(3, 5)
        result = backend.scaled_dot_product_attention(**given, mask=mask)
        with torch.no_grad():
            {**given, "mask": mask, "result": result}[what].copy_(
                normal(3, 5) < 0 if what == "mask" else torch.ones(())
            )
        return torch.autograd.grad(result, given["query"], normal(3, 6))[0]

    return show


def another_forward(backend: Any) -> Tensor:
    """The gradient of a call that is not the last one of its shapes."""
    query, key, value = normal(3, 4).requires_grad_(), normal(5, 4), normal(5, 6)
    result = backend.scaled_dot_product_attention(query, key, value)
    backend.scaled_dot_product_attention(-query, key, value)
    return torch.autograd.grad(result, query, normal(3, 6))[0]


def one_tensor(backend: Any) -> Tensor:
    """The gradient of what is queries and keys."""
    x = normal(5, 4).requires_grad_()
    return torch.autograd.grad(backend.scaled_dot_product_attention(x, x, normal(5, 6)), x, normal(5, 6))[0]


def heads_behind_positions(backend: Any) -> Tensor:
    """The gradient of queries, where heads stand behind positions in the memory of the cotangent."""
    query = normal(2, 64, 4).requires_grad_()
    result = backend.scaled_dot_product_attention(query, normal(2, 5, 4), normal(2, 5, 4))
    return torch.autograd.grad(result, query, normal(64, 2, 4).transpose(0, 1))[0]


def gain_of_rows(backend: Any) -> Tensor:
    """The gradient of the gain of 300 rows."""
    gain = torch.ones(4, requires_grad=True)
    result = backend.layer_norm(normal(300, 4), LayerNormParameters(gain, torch.zeros(4)))
    return torch.autograd.grad(result, gain, normal(300, 4))[0]


def wide_rows(backend: Any) -> Tensor:
    """The layer normalization of 1,100 features, the last of which are larger."""
    x, ones = normal(2, 1100), torch.ones(1100)
    x[..., 1024:] *= 3
    found: Tensor = backend.layer_norm(x, LayerNormParameters(ones, 0 * ones))
    return found


def last_of_many_keys(backend: Any) -> Tensor:
    """The weights of 65,537 keys, the last of which has the highest score."""
    scores = torch.zeros(1, (1 << 16) + 1)
    scores[..., -1] = 20.0
    found: Tensor = backend.softmax(scores)
    return found


@torch.no_grad()
def lengths(backend: Any) -> Tensor:
    """The last states of sequences of 3 and 9 steps."""
    d, h = 3, 4
    shapes = {"w_x": (d, h), "w_h": (h, h), "b_": (h,)}
    names = GRUParameters.__dataclass_fields__
    weights = {name: normal(*next(s for start, s in shapes.items() if name.startswith(start))) for name in names}
    _, final = backend.gru(normal(2, 9, d), normal(2, h), GRUParameters(**weights), lengths=torch.tensor([3, 9]))
    return torch.as_tensor(final)


class Escape(NamedTuple):
    """Calls that show what is wrong, and the operation that is."""

    shown: Showing
    operation: str = escaping.ATTENTION


ONE = normal(3, 5, 4)
NAN = normal(3, 4).index_fill(0, torch.tensor([1]), torch.nan)
LONG = normal(PREFILL, 4)

ESCAPES: Mapping[type, Escape] = {
    escaping.InputsKeptByReference: Escape(written("key")),
    escaping.ResultKeptByReference: Escape(written("result")),
    escaping.MaskKeptByReference: Escape(written("mask")),
    escaping.StatisticsInOneBuffer: Escape(another_forward),
    escaping.CausalTileSeenWholeWithoutGradients: Escape(inferred(LONG, LONG, LONG, causal=True)),
    escaping.RowsOfTheMaskRepeatWithoutGradients: Escape(inferred(LONG, LONG, LONG, mask=sparse(PREFILL, PREFILL))),
    escaping.LastTileNotCausalWhereRecorded: Escape(
        called(normal(PREFILL, 4).requires_grad_(), LONG, LONG, causal=True)
    ),
    escaping.MaskForgottenForOneTensorWithoutGradients: Escape(inferred(ONE, ONE, ONE, mask=sparse(5, 5))),
    escaping.GradientOfOneTensorTwiceThatOfQueries: Escape(one_tensor),
    escaping.LastFourOfHundredFeatures: Escape(called(normal(3, 100), normal(5, 100), normal(5, 4))),
    escaping.PositionalFeaturesBeyondThe512th: Escape(called(normal(3, 576), normal(5, 576), normal(5, 512))),
    escaping.MaskOfTheFirstElementForAll: Escape(
        called(normal(2, 2, 3, 4), normal(32, 4), normal(32, 4), mask=sparse(2, 1, 3, 32).expand(2, 2, 3, 32)),
    ),
    escaping.LongCotangentReadDensely: Escape(heads_behind_positions),
    escaping.NaNOfQueriesHidden: Escape(called(NAN, ONE[0], ONE[0])),
    escaping.ScoresOfAtMost10000: Escape(called(1e3 * ONE, 1e3 * ONE, ONE)),
    escaping.MomentsOf1024Features: Escape(wide_rows, "layer_norm"),
    escaping.ParametersGetGradientsOf256Rows: Escape(gain_of_rows, "layer_norm"),
    escaping.KeysCountedIn16Bits: Escape(last_of_many_keys, "softmax"),
    escaping.LengthOfTheFirstElementForAllWithoutGradients: Escape(lengths, "gru"),
}
"""All of them."""
