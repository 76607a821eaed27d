"""The PyTorch backend with its kernels on three threads, however little there is to do.

Workers of the suite have one thread each. With more, calls of less work than ``WORTH_WAKING`` would still run on one,
and the suite's calls are smaller. Without this adapter it would miss errors between threads.
"""

import torch

from attnspec.backends import pytorch
from attnspec.backends.pytorch import *  # noqa: F403
from attnspec.backends.pytorch.kernels.llvm import threads

torch.set_num_threads(3)
threads.WORTH_WAKING = 0

name = "pytorch on threads"
notes = {**pytorch.notes, "threads": str(torch.get_num_threads())}
