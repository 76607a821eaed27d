"""The PyTorch backend with Triton's kernels for additive attention, on the CPU in Triton's interpreter."""

import os

os.environ["TRITON_INTERPRET"] = "1"

from attnspec.backends import pytorch
from attnspec.backends.pytorch import *  # noqa: F403
from attnspec.backends.pytorch.kernels.additive import path_choice

path_choice.available_paths = lambda device_type: ("triton", "plain")

name = "pytorch in Triton's interpreter"
notes = {**pytorch.notes, "additive attention": "cpu: triton, interpreted"}
