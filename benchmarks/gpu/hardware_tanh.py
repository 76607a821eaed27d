"""Kernel of the hardware's approximation of tanh, whose rate limits additive attention that computes every tanh."""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHAIN = 256
"""Applications of tanh per number, so that arithmetic, not memory, limits the kernel."""

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def tanh_kernel(x, out, CHAIN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply ``tanh.approx.f32`` ``CHAIN`` times to a block."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + places)
    for _ in range(CHAIN):
        y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [y], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + places, y)


def tanh_chain(x: Tensor) -> Tensor:
    """Apply the approximation ``CHAIN`` times to float32 numbers, whose count is a multiple of ``BLOCK``."""
    out = torch.empty_like(x)
    tanh_kernel[(x.numel() // BLOCK,)](x, out, CHAIN=CHAIN, BLOCK=BLOCK)
    return out
