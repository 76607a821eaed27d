"""The PyTorch backend with its kernels on three threads, however little there is to do.

Workers of the suite have one thread each, and its inputs are too small to wake others. Without this adapter the suite
would miss errors between threads.
"""

import torch

from attnspec.backends import pytorch
from attnspec.backends.pytorch import *  # noqa: F403
from attnspec.backends.pytorch.kernels.llvm import threads

torch.set_num_threads(3)
threads.WORTH_WAKING = 0

name = "pytorch on threads"
notes = {**pytorch.notes, "threads": str(torch.get_num_threads())}
