"""The PyTorch backend: this module is the backend, and its operations are ordinary functions."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.bases.torch import devices, from_numpy, gradients, to_numpy
from attnspec.backends.pytorch.attention import (
    additive_attention,
    cross_attention,
    dot_product_attention,
    general_attention,
    projected_self_attention,
    scaled_dot_product_attention,
    self_attention,
)
from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.kernels.dot import sdpa
from attnspec.backends.pytorch.masking import causal_mask, padding_mask
from attnspec.backends.pytorch.multihead import multi_head_attention
from attnspec.backends.pytorch.normalization import mean_normalization, softmax
from attnspec.backends.pytorch.pooling import attention_pooling, average_pooling, nadaraya_watson
from attnspec.backends.pytorch.positional import sinusoidal_positional_encoding
from attnspec.backends.pytorch.scoring import (
    additive_scores,
    dot_scores,
    gaussian_scores,
    general_scores,
    location_scores,
    scaled_dot_scores,
)
from attnspec.backends.pytorch.seq2seq import bahdanau_context
from attnspec.spec import Limits, Semantics


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


name = "pytorch"
limits = Limits(dtypes=("float64", "float32", "bfloat16", "float16"), devices=devices())
semantics = Semantics()
precision = {
    "float64": "ieee64",
    "float32": "ieee32",
    "bfloat16": "mixed-bfloat16",
    "float16": "mixed-float16",
}
notes = {
    "additive attention": ", ".join(f"{device}: {additive.available_paths(device)[0]}" for device in devices()),
    "scaled dot-product attention": "cpu: "
    + ("llvm" if additive.HAS_LLVMLITE else "pytorch")
    + "; sdpa.path_for names the kernel that a call takes",
    "torch": torch.__version__,
    **{package: _version(package) for package in ("triton", "llvmlite")},
}


def vjp(operation: str, arguments: Mapping[str, Any], cotangent: Tensor) -> dict[str, Tensor]:
    """Gradients of ⟨cotangent, operation(**arguments)⟩ for every float argument, by autograd."""
    return gradients(globals()[operation], arguments, cotangent)


__all__ = [
    "additive",
    "additive_attention",
    "additive_scores",
    "attention_pooling",
    "average_pooling",
    "bahdanau_context",
    "causal_mask",
    "cross_attention",
    "dot_product_attention",
    "dot_scores",
    "from_numpy",
    "gaussian_scores",
    "general_attention",
    "general_scores",
    "limits",
    "location_scores",
    "mean_normalization",
    "multi_head_attention",
    "nadaraya_watson",
    "name",
    "notes",
    "padding_mask",
    "precision",
    "projected_self_attention",
    "scaled_dot_product_attention",
    "scaled_dot_scores",
    "sdpa",
    "self_attention",
    "semantics",
    "sinusoidal_positional_encoding",
    "softmax",
    "to_numpy",
    "vjp",
]
