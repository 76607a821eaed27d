"""The PyTorch backend: a module with every operation as a function, and with declarations."""

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.bases.torch import default_device as default_device
from attnspec.backends.bases.torch import devices as devices
from attnspec.backends.bases.torch import free_memory as free_memory
from attnspec.backends.bases.torch import from_numpy as from_numpy
from attnspec.backends.bases.torch import gradients as gradients
from attnspec.backends.bases.torch import modes as modes
from attnspec.backends.bases.torch import pullback as pullback_of
from attnspec.backends.bases.torch import to_numpy as to_numpy
from attnspec.backends.pytorch import nn as nn
from attnspec.backends.pytorch.attention import *
from attnspec.backends.pytorch.complexity import *
from attnspec.backends.pytorch.kernels import *
from attnspec.backends.pytorch.kernels import additive as additive
from attnspec.backends.pytorch.kernels.additive import path_choice
from attnspec.backends.pytorch.kernels.dot import groups as groups
from attnspec.backends.pytorch.kernels.dot import packed as packed
from attnspec.backends.pytorch.kernels.dot import sdpa as sdpa
from attnspec.backends.pytorch.linear import *
from attnspec.backends.pytorch.masking import *
from attnspec.backends.pytorch.multihead import *
from attnspec.backends.pytorch.normalization import *
from attnspec.backends.pytorch.pooling import *
from attnspec.backends.pytorch.positional import *
from attnspec.backends.pytorch.recurrent import *
from attnspec.backends.pytorch.runtime import on_cuda
from attnspec.backends.pytorch.runtime.optional import HAS_LLVMLITE
from attnspec.backends.pytorch.scoring import *
from attnspec.backends.pytorch.selected import *
from attnspec.backends.pytorch.seq2seq import *
from attnspec.backends.pytorch.transformer import *
from attnspec.backends.pytorch.vision import *
from attnspec.spec import Limits, Semantics


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


name = "pytorch"
limits = Limits(dtypes=("float64", "float32", "bfloat16", "float16"), devices=devices())
semantics = Semantics()
on_device = {kind: {"semantics": on_cuda.semantics()} for kind in devices() if kind == "cuda"}
precision = {"float64": "ieee64", "float32": "ieee32", "bfloat16": "mixed-bfloat16", "float16": "mixed-float16"}
notes = {
    "additive attention": ", ".join(
        f"{device}: {' or '.join(path_choice.available_paths(device)[:-1]) or 'plain'}" for device in devices()
    )
    + "; additive.path_for names the path that a call takes",
    "scaled dot-product attention": "cpu: "
    + ("llvm, decode, small or pytorch" if HAS_LLVMLITE else "pytorch")
    + "; sdpa.path_for names the kernel that a call takes",
    "attention in groups of heads": "cpu: "
    + ("decode, small, llvm, pytorch or plain" if HAS_LLVMLITE else "plain")
    + ("; cuda: enable_gqa, flex or plain" if "cuda" in devices() else "")
    + "; groups.path_for names the path that a call takes",
    **(
        {"products of half dtypes": "cuda: out_dtype or wide; runtime.products.path_for names the path"}
        if "cuda" in devices()
        else {}
    ),
    "torch": torch.__version__,
    **{package: _version(package) for package in ("triton", "llvmlite")},
}


def vjp(operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
    """Return the gradients of ⟨cotangent, operation(**arguments)⟩, keyed by path, for every float tensor."""
    return gradients(globals()[operation], arguments, cotangent)


def pullback(
    operation: str, arguments: Mapping[str, Any], wanted: Collection[str]
) -> tuple[Any, Callable[[Any], dict[str, Tensor]]]:
    """Return the result and its backward pass for the float tensors at the ``wanted`` paths."""
    return pullback_of(globals()[operation], arguments, wanted)
