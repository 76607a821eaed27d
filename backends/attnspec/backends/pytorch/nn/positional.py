"""Modules of positional encodings, which are added to features or concatenated with them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.initialization import Device, parameter
from attnspec.backends.pytorch.nn.records import check_sizes
from attnspec.backends.pytorch.positional import add_positions, concat_positions, learned_positions, sinusoids

__all__ = ["LearnedPositions", "SinusoidalPositionalEncoding"]


class SinusoidalPositionalEncoding(nn.Module):
    """Sines and cosines of positions, from a table that the state dict leaves out.

    ``to`` recomputes the table, so that converting to a wider dtype does not keep rounded numbers.

    Args:
        d_model: features of a position, d.
        max_len: positions in the table.
        concat: concatenate the features of x and of positions, instead of adding them.

    Shape: x (*batch, n, d) with n ≤ ``max_len``; the result has the shape of x. With ``concat``, x may have any number
        of features, and the result has d more.
    Errors: ``ValueError`` for sizes below 1 and for more positions than the table has.
    Source: operations ``sinusoidal_positional_encoding``, ``add_positions`` and ``concat_positions``.

    >>> encode = SinusoidalPositionalEncoding(16, max_len=100)
    >>> encode(torch.zeros(2, 5, 16))[0, 0, :4]
    tensor([0., 1., 0., 1.])
    """

    table: Tensor

    def __init__(
        self, d_model: int, max_len: int = 5000, *, concat: bool = False,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes("SinusoidalPositionalEncoding", d_model=d_model, max_len=max_len)
        self.concat = concat
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.register_buffer("table", sinusoids(max_len, d_model, dtype=dtype, device=device), persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = sinusoids(*self.table.shape, dtype=self.table.dtype, device=self.table.device)
        return self

    def extra_repr(self) -> str:
        """Show the sizes and ``concat``."""
        return f"d_model={self.table.shape[1]}, max_len={self.table.shape[0]}, concat={self.concat}"

    def forward(self, x: Tensor) -> Tensor:
        """x with the features of its positions."""
        n, rows = x.shape[-2], self.table.shape[0]
        if n > rows:
            raise ValueError(f"SinusoidalPositionalEncoding: x: expected at most max_len = {rows} positions; got {n}")
        return (concat_positions if self.concat else add_positions)(x, self.table[:n])

    if TYPE_CHECKING:
        __call__ = forward


class LearnedPositions(nn.Module):
    """Learned positions, added to the features of x.

    Args:
        d_model: features of a position, d.
        max_len: positions in the table.

    Shape: x (*batch, n, d) with n ≤ ``max_len``; the result is as x. Weight ``table`` (max_len, d).
    Initialisation: as ``nn.Embedding``'s weight, standard normal.
    Errors: ``ValueError`` for sizes below 1; the operation's for more positions than the table has.
    Source: operations ``learned_positions`` and ``add_positions``.

    >>> encode = LearnedPositions(16, max_len=100)
    >>> encode(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, d_model: int, max_len: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        check_sizes("LearnedPositions", d_model=d_model, max_len=max_len)
        self.table = parameter(max_len, d_model, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new table."""
        nn.init.normal_(self.table)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"d_model={self.table.shape[1]}, max_len={self.table.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        """x with the features of its positions."""
        return add_positions(x, learned_positions(self.table, x.shape[-2]))

    if TYPE_CHECKING:
        __call__ = forward
