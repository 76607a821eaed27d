"""Products of matrices of any floating dtype, with sums in the accumulation dtype.

On the CPU half operands are widened first. On CUDA that would leave the tensor cores unused, so half operands are
multiplied as they are, into float32 (PyTorch's ``out_dtype``). An operand that was computed in float32 is rounded to
the half dtype of the other one, as the precision classes ``mixed-bfloat16`` and ``mixed-float16`` allow.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.devices import AMPERE, capability
from attnspec.backends.pytorch.runtime.private import constant_while_compiling
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import has_tangents, under_torch_func

LEAST_CAPABILITY = {torch.float16: (7, 0), torch.bfloat16: AMPERE}
"""First GPUs with tensor cores for a dtype. On older ones PyTorch refuses bfloat16 products into float32."""

LARGEST_EXPONENT, MOST_SCALED = 15, 110
"""A scaled row of float16 has a largest number below 2¹⁵; scales stay within 2^±110, whose inverses are normal."""


def wide_product(left: Tensor, right: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return left @ right in the accumulation dtype; batches broadcast.

    Callers widen an operand of several products, so that its gradients are summed in float32. If both were widened,
    ``dtype`` is the half dtype in which a GPU multiplies them.
    """
    dtype = multiplied_dtype(left, right, dtype)
    return upcast(left) @ upcast(right) if dtype is None else _half_product(left, right, dtype)


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """Return `wide_product` of (*batch, n, k) and (*batch, k, m); equal batches take the faster torch.bmm."""
    if left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0] and multiplied_dtype(left, right) is None:
        return torch.bmm(upcast(left), upcast(right))
    return wide_product(left, right)


def wide_linear(x: Tensor, w: Tensor, b: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x Wᵀ + b with W (out, in), in the accumulation dtype; ``dtype`` as in `wide_product`."""
    dtype = multiplied_dtype(x, w, dtype)
    if dtype is None:
        return linear(upcast(x), upcast(w), None if b is None else upcast(b))
    projected = _half_product(x, w.mT, dtype)
    return projected if b is None else projected + upcast(b)


def add_product(terms: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return terms + left @ right in the accumulation dtype, which ``terms`` have; ``right`` is a matrix."""
    if multiplied_dtype(left, right) is None and terms.dim() == left.dim() == 2 and len(terms) == len(left):
        return torch.addmm(terms, upcast(left), upcast(right))
    return terms + wide_product(left, right)


def project(x: Tensor, w: Tensor) -> Tensor:
    """Return x Wᵀ with W (out, in), rounded once, to the dtype of x."""
    return wide_linear(x, w).to(x.dtype)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product, rounded once, to the dtype of ``left``; batches broadcast."""
    return wide_product(left, right).to(left.dtype)


def operand(x: Tensor) -> Tensor:
    """Return x unchanged where half dtypes are multiplied as they are, else upcast.

    Then each product rounds its gradient to the dtype of x. So x needs no gradient, or takes part in one product only.
    """
    return x if x.dtype in HALF_DTYPES and multiplied_dtype(x, x) is not None else upcast(x)


def path_for(left: Tensor, right: Tensor) -> str:
    """Name how a product is computed: ``out_dtype`` from half operands, else ``wide``."""
    return "wide" if multiplied_dtype(left, right) is None else "out_dtype"


def multiplied_dtype(left: Tensor, right: Tensor, dtype: torch.dtype | None = None) -> torch.dtype | None:
    """Return the half dtype in which a GPU multiplies the operands; None if they are multiplied widened.

    They are widened under transforms of ``torch.func`` and in forward mode, for which PyTorch's ``out_dtype`` has no
    rules, and where one of them is empty.
    """
    if dtype is None:
        dtype = right.dtype if right.dtype in HALF_DTYPES else left.dtype
    if dtype not in HALF_DTYPES or not left.numel() or not right.numel():
        return None
    if not multiplies_halves(left, dtype) or under_torch_func() or has_tangents():
        return None
    return dtype


def multiplies_halves(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the device of x multiplies a half dtype into float32."""
    return x.is_cuda and _gpu_multiplies_halves(x.device, dtype)


@constant_while_compiling
def _gpu_multiplies_halves(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a GPU multiplies a half dtype into float32.

    PyTorch refuses it while float16 is to be accumulated in float16. Its own tests leave out some shapes on AMD's GPUs,
    where results were wrong.
    """
    if torch.version.hip is not None or capability(device) < LEAST_CAPABILITY[dtype]:
        return False
    return dtype is not torch.float16 or not torch.backends.cuda.matmul.allow_fp16_accumulation


def _half_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return left (*batch, n, k) or (k) times right (*batch, k, m) in float32; batches broadcast."""
    if right.dim() == 2:
        flat: Tensor = _HalfProduct.apply(left.reshape(-1, left.shape[-1]), right, dtype)  # type: ignore[no-untyped-call]
        return flat.view(*left.shape[:-1], right.shape[-1])
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    flat_left, flat_right = (_in_batch(x, batch) for x in (left, right))
    products: Tensor = _HalfProduct.apply(flat_left, flat_right, dtype)  # type: ignore[no-untyped-call]
    return products.view(*batch, *products.shape[-2:])


def _in_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """Return x (*#batch, n, k) expanded, with one batch dimension; gradients of copies are summed in float32."""
    if x.shape[:-2] != batch:
        x = (upcast(x) if needs_gradients(x) else x).expand(*batch, *x.shape[-2:])
    return x.reshape(-1, *x.shape[-2:])


class _HalfProduct(torch.autograd.Function):
    """Product of two matrices, or of equally many, multiplied in a half dtype into float32.

    PyTorch has no derivative of ``out_dtype``. Gradients are such products too, and have the dtypes of the operands.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(left, right)  # not what is multiplied: second derivatives need the operands themselves
        ctx.dtype = dtype
        multiply = torch.mm if left.dim() == 2 else torch.bmm
        left, row_scales = _rounded(left, dtype, -1)
        right, column_scales = _rounded(right, dtype, -2)
        output = multiply(left, right, out_dtype=torch.float32)
        for scales in (row_scales, column_scales):
            if scales is not None:
                output *= scales
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return the gradients of both operands."""
        left, right = ctx.saved_tensors
        by_left = by_right = None
        if ctx.needs_input_grad[0]:
            by_left = _HalfProduct.apply(gradient, right.mT, ctx.dtype).to(left.dtype)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            by_right = _HalfProduct.apply(left.mT, gradient, ctx.dtype).to(right.dtype)  # type: ignore[no-untyped-call]
        return by_left, by_right, None


def _rounded(x: Tensor, dtype: torch.dtype, summed: int) -> tuple[Tensor, Tensor | None]:
    """Round x to a half dtype; return it with its scales, powers of 2, if it needed any.

    float16 has few exponents: without scales per row or column, gradients would overflow or vanish. ``summed`` is the
    axis over which the product sums, along which the scale cannot change.
    """
    if x.dtype is dtype:
        return x, None
    if dtype is torch.bfloat16:  # it has the exponents of float32
        return x.to(dtype), None
    largest = x.abs().amax(summed, keepdim=True)
    exponents = torch.frexp(largest).exponent - LARGEST_EXPONENT
    scales = torch.ldexp(torch.ones_like(largest), exponents.clamp(-MOST_SCALED, MOST_SCALED))
    return (x / scales).to(dtype), scales
