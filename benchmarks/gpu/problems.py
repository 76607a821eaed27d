"""Calls of the kernels with random arguments, and their comparison with the formula."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.bases.torch import to_numpy
from attnspec.backends.pytorch import additive
from attnspec.conformance import judge
from benchmarks.exact import cotangent
from benchmarks.gpu.check import Context, Outcome, outcome
from benchmarks.suites.settings import Inputs

Results = tuple[Any, dict[str, Tensor]]
"""Result of a call, and gradients by argument."""


@dataclass(frozen=True)
class Problem:
    """Call of an operation: arguments by name, options, and the arguments whose gradients are compared."""

    operation: str
    compute: Callable[..., Any]
    arguments: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    differentiated: Sequence[str] = ()

    def results(self) -> Results:
        """Call the kernel, forward and, if gradients are compared, backward."""
        if not self.differentiated:
            with torch.no_grad():
                return self.compute(**self.arguments, **self.options), {}
        leaves = {name: x.detach().requires_grad_(name in self.differentiated) for name, x in self.arguments.items()}
        result = self.compute(**leaves, **self.options)
        output = result[0] if isinstance(result, tuple) else result
        gradients = torch.autograd.grad(output, [leaves[name] for name in self.differentiated], cotangent(output))
        return result, dict(zip(self.differentiated, gradients, strict=True))

    def judged(self, context: Context) -> Outcome:
        """Compare a first call with the formula, and time a second one, which compiles nothing."""
        results = self.results()
        return self.compared(results, None if context.dry else context.milliseconds(self.results))

    def compared(self, results: Results, milliseconds: float | None = None) -> Outcome:
        """Compare results with the formula, every number within its budget."""
        (result, gradients), backward = results, {}
        if gradients:
            backward = {"gradients": _arrays(gradients), "cotangent": None}
            if isinstance(result, tuple):  # the logarithms beside the output have no cotangent
                result = result[0], None
                backward["cotangent"] = to_numpy(cotangent(result[0])), None
            else:
                backward["cotangent"] = to_numpy(cotangent(result))
        verdict = judge(self.operation, _arrays(result), **_arrays(self.arguments), **self.options, **backward)
        return outcome(bool(verdict), verdict.ratio, milliseconds, "" if verdict else str(verdict).splitlines()[0])


def _arrays(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _arrays(part) for name, part in x.items()}
    return tuple(map(_arrays, x)) if isinstance(x, tuple) else x if x is None else to_numpy(x.detach())


def additive_attention(
    context: Context, dtype: torch.dtype, *, batch: int = 2, n: int = 33, m: int = 65, h: int = 20, d_v: int = 16,
    masked: bool = False, **options: Any,
) -> Problem:  # fmt: skip
    """Additive attention of Triton's kernels."""
    draw = Inputs(context.device)
    arguments = _normal(draw, dtype, query=(batch, n, h), key=(batch, m, h), value=(batch, m, d_v))
    arguments |= _weights(draw, dtype, h) | _masks(draw, masked, batch, n, m)

    def compute(query: Tensor, key: Tensor, value: Tensor, w_v: Tensor, w_q: Tensor, w_k: Tensor,
                **options: Any) -> Tensor:  # fmt: skip
        return additive.attention(query, key, w_v, value, **options, path="triton")

    return Problem("additive_attention", compute, arguments, options, ("query", "key", "value", "w_v"))


def additive_scores(
    context: Context, dtype: torch.dtype, *, batch: int = 2, n: int = 33, m: int = 65, h: int = 20
) -> Problem:
    """Additive scores of Triton's kernels."""
    draw = Inputs(context.device)
    arguments = _normal(draw, dtype, query=(batch, n, h), key=(batch, m, h)) | _weights(draw, dtype, h)

    def compute(query: Tensor, key: Tensor, w_v: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
        return additive.scores(query, key, w_v, path="triton")

    return Problem("additive_scores", compute, arguments, differentiated=("query", "key", "w_v"))


def decoding_step(
    context: Context, dtype: torch.dtype, *, batch: int = 3, m: int = 65, h: int = 20, masked: bool = False
) -> Problem:
    """Decoding step of Triton's kernels; the annotations are keys and values."""
    draw = Inputs(context.device)
    arguments = _normal(draw, dtype, state=(batch, h), annotations=(batch, m, h)) | _weights(draw, dtype, h)
    arguments |= _masks(draw, masked, batch, m)

    def compute(state: Tensor, annotations: Tensor, w_v: Tensor, w_q: Tensor, w_k: Tensor,
                mask: Tensor | None = None) -> Tensor:  # fmt: skip
        return additive.step(additive.prepare_keys(annotations, w_v, annotations, path="triton"), state, mask=mask)

    return Problem("bahdanau_context", compute, arguments)


def dot_product_attention(
    context: Context, dtype: torch.dtype, *, batch: int = 2, n: int = 33, m: int = 65, d: int = 16,
    masked: bool = False, **options: Any,
) -> Problem:  # fmt: skip
    """Scaled dot-product attention, by PyTorch's kernels."""
    draw = Inputs(context.device)
    arguments = _normal(draw, dtype, query=(batch, n, d), key=(batch, m, d), value=(batch, m, d))
    arguments |= _masks(draw, masked, batch, n, m)
    compute = pytorch.scaled_dot_product_attention
    return Problem("scaled_dot_product_attention", compute, arguments, options, ("query", "key", "value"))


def grouped_attention(
    context: Context, dtype: torch.dtype, *, gradients: bool = False, lengths: bool = False, **options: Any
) -> Problem:
    """Attention in groups of heads: flash in 16 bits without options and gradients, else flex_attention."""
    draw = Inputs(context.device)
    arguments = _normal(draw, dtype, query=(2, 4, 64, 16), key=(2, 2, 64, 16), value=(2, 2, 64, 16))
    differentiated = tuple(arguments) if gradients else ()
    if lengths:
        arguments["key_lengths"] = torch.tensor([64, 50], device=context.device)
    return Problem("grouped_query_attention", pytorch.grouped_query_attention, arguments, options, differentiated)


def packed_attention(context: Context, dtype: torch.dtype, *, gradients: bool = False) -> Problem:
    """Attention of three packed sequences: the variable-length kernel in 16 bits without gradients, else flex."""
    arguments = _normal(Inputs(context.device), dtype, query=(1, 4, 70, 16), key=(1, 2, 90, 16), value=(1, 2, 90, 16))
    differentiated = tuple(arguments) if gradients else ()
    for name, ends in {"query_ends": [0, 1, 40, 70], "key_ends": [0, 17, 60, 90]}.items():
        arguments[name] = torch.tensor(ends, dtype=torch.int32, device=context.device)
    compute = pytorch.variable_length_attention
    return Problem("variable_length_attention", compute, arguments, differentiated=differentiated)


def paged_attention(context: Context, dtype: torch.dtype) -> Problem:
    """Attention to a cache of six pages, of which two batch elements use three and two."""
    pages = 6, 2, 32, 16
    arguments = _normal(Inputs(context.device), dtype, query=(2, 4, 1, 16), key_pages=pages, value_pages=pages)
    arguments["block_table"] = torch.tensor([[5, 0, 2], [1, 4, 0]], device=context.device)
    arguments["key_lengths"] = torch.tensor([96, 33], device=context.device)
    return Problem("paged_attention", pytorch.paged_attention, arguments)


def _normal(draw: Inputs, dtype: torch.dtype, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: draw.normal(*shape, dtype=dtype) for name, shape in shapes.items()}


def _weights(draw: Inputs, dtype: torch.dtype, h: int) -> dict[str, Tensor]:
    """Weights of a perceptron; those of both projections are the identity, so that projections are exact."""
    identity = torch.eye(h, dtype=dtype, device=draw.device)
    return {"w_q": identity, "w_k": identity, "w_v": draw.normal(h, scale=h**-0.5, dtype=dtype)}


def _masks(draw: Inputs, masked: bool, *shape: int) -> dict[str, Tensor]:
    """Mask with seven attendable keys in ten, and none for the first row; empty unless ``masked``."""
    mask = torch.rand(shape, generator=draw.generator) < 0.7
    mask[(0,) * (len(shape) - 1)] = False
    return {"mask": mask.to(draw.device)} if masked else {}
