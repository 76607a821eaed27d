"""Who may attend to what: mask and causal, in full."""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers


def mask_shape(arguments: Arguments) -> tuple[int, ...]:
    """The full shape of the mask: (*batch, n, m), or (*batch, m) for operations without a query axis."""
    core = arguments.operation.argument("mask").core
    return (*arguments.batch, *(arguments.size(d.name) for d in core))


def attendable(arguments: Arguments, *, bottom_right: bool = False) -> Numbers:
    """Which keys every query may attend to, in full."""
    shape = mask_shape(arguments)
    allowed: Numbers = np.ones(shape, bool) if arguments.mask is None else np.broadcast_to(arguments.mask, shape)
    if arguments.causal:
        n, m = shape[-2:]
        allowed = allowed & np.tri(n, m, m - n if bottom_right else 0).astype(bool)
    return np.array(allowed)
