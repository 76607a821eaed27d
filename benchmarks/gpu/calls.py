"""One call of each of our kernels, for profilers and sanitizers: ``python -m benchmarks.gpu.calls [large]``."""

import sys

import torch

from benchmarks.gpu.check import Context
from benchmarks.gpu.problems import additive_attention, additive_scores, decoding_step

SIZES = {
    "small": {"batch": 2, "n": 33, "m": 65, "h": 20},
    "large": {"batch": 8, "n": 512, "m": 512, "h": 128},
}


def main(size: str = "small", device: str = "cuda") -> None:
    """Call additive attention and scores, forward and backward, and a decoding step, in float32 and bfloat16."""
    context, sizes = Context(device), SIZES[size]
    for dtype in (torch.float32, torch.bfloat16):
        additive_attention(context, dtype, **sizes, masked=True, causal=True).results()
        additive_scores(context, dtype, **sizes).results()
        decoding_step(context, dtype, batch=sizes["batch"], m=sizes["m"], h=sizes["h"]).results()
    context.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
