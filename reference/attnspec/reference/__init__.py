"""Reference implementation: one NumPy function per formula. The package is itself a backend."""

from attnspec.reference.attention import *
from attnspec.reference.complexity import *
from attnspec.reference.defining.arithmetic import arithmetic as arithmetic
from attnspec.reference.defining.choices import choice as choice
from attnspec.reference.defining.choices import choosing as choosing
from attnspec.reference.defining.definition import REFERENCE as REFERENCE
from attnspec.reference.defining.definition import defines as defines
from attnspec.reference.defining.overriding import overridable as overridable
from attnspec.reference.defining.two_point import two_point_design as two_point_design
from attnspec.reference.kernels import *
from attnspec.reference.linear import *
from attnspec.reference.masking import *
from attnspec.reference.moments import *
from attnspec.reference.multihead import *
from attnspec.reference.normalization import *
from attnspec.reference.pooling import *
from attnspec.reference.positional import *
from attnspec.reference.recurrent import *
from attnspec.reference.scoring import *
from attnspec.reference.selected import *
from attnspec.reference.seq2seq import *
from attnspec.reference.transformer import *
from attnspec.reference.vision import *

name = "reference"
"""The name of this backend in reports."""
