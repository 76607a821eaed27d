"""Operations of the PyTorch backend as modules, with the conventions of ``torch.nn``.

A module holds weights and calls the operation that its docstring names under Source, which checks shapes. The batch
comes first, masks are boolean with True = may attend, and no module has dropout. Names in state dicts are those of the
formulas. ``from_torch`` and ``to_torch`` exchange weights with PyTorch's own modules, and ``record`` and
``from_record`` with the specification's records, dataclasses such as ``MultiHeadParameters``.
"""

from attnspec.backends.pytorch.nn.attention import *
from attnspec.backends.pytorch.nn.multihead import *
from attnspec.backends.pytorch.nn.positional import *
from attnspec.backends.pytorch.nn.recurrent import *
from attnspec.backends.pytorch.nn.seq2seq import *
from attnspec.backends.pytorch.nn.transformer import *
from attnspec.backends.pytorch.nn.vision import *
