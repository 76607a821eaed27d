"""The PyTorch backend on a pretended GPU, for ``attnspec check`` with ``--device cuda``."""

import atexit
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from attnspec.backends import pytorch
from attnspec.backends.pytorch import *  # noqa: F403
from attnspec.backends.pytorch.runtime import on_cuda
from tests.backends.pretended_cuda import PretendedTensor, pretended_cuda

pretending = ExitStack()
pretending.enter_context(pretended_cuda(capability=(int(os.environ.get("ATTNSPEC_TEST_CAPABILITY", "9")), 0)))
atexit.register(pretending.close)  # while torch.library is still there

name = "pytorch on a pretended GPU"
limits = replace(pytorch.limits, devices=("cuda",))
on_device = {"cuda": {"semantics": on_cuda.semantics()}}


def to_numpy(array: Any) -> Any:  # type: ignore[no-redef]
    """Return a copy; ``TypeError`` for a result that is not on the GPU."""
    if not isinstance(array, PretendedTensor):
        raise TypeError(f"expected a result on cuda:0; got a {type(array).__name__} elsewhere")
    return pytorch.to_numpy(array)
