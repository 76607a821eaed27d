"""Tables of embeddings."""

import torch
from torch import Tensor


def rows(tokens: Tensor, table: Tensor) -> Tensor:
    """The rows (*batch, d) of a table (vocabulary, d) with these numbers (*batch)."""
    return torch.embedding(table, tokens if tokens.dtype in (torch.int32, torch.int64) else tokens.long())
