"""Whether a program runs as it is written, or PyTorch makes another of it."""

import torch


def functional() -> bool:
    """Whether a transform of ``torch.func`` is active; it takes no custom operators' gradients, and no checkpoints."""
    return torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether no number may be looked at, for there is none yet or many: ``torch.compile``, ``torch.func``."""
    return torch.compiler.is_compiling() or functional()
