"""The meaning of every size and the role of every array, by which laws select operations and transform arguments."""

from collections.abc import Mapping
from enum import Enum, Flag, auto


class Axis(Flag):
    """What a size counts."""

    QUERY = auto()
    """Queries: each has a row of the result."""
    KEY = auto()
    """Keys: positions that are attended to, or pooled."""
    TIME = auto()
    """Time steps."""
    FEATURE = auto()
    """Features of queries, keys and values."""
    WIDTH = auto()
    """Features of the inputs and outputs of a model."""
    HIDDEN = auto()
    """Units of a hidden layer or state."""
    HEAD = auto()
    """Attention heads; where those of the queries are more, those of the keys."""
    GROUP = auto()
    """Heads of the queries for each head of the keys."""
    VOCABULARY = auto()
    """Tokens of a vocabulary."""
    BEAM = auto()
    """Hypotheses of a beam search."""
    LAYER = auto()
    """Layers of a stack."""
    SPARE = auto()
    """Rows of a table that a call does not use."""
    GRID = auto()
    """Places along one dimension of an image, a volume or a feature map."""
    LENGTH = auto()
    """Tokens of a sequence that is counted and not given. Their number is at least 1, as that of everything but
    positions and layers."""
    TAP = auto()
    """Taps of a filter: neighbouring positions, of which each has a weight of its own."""
    PAGE = auto()
    """Pages of a cache, and rows of each."""
    SEQUENCE = auto()
    """Sequences that are packed into one."""
    SELF = QUERY | KEY
    """Positions in self-attention, each a query and a key."""
    POSITION = QUERY | KEY | TIME
    """Positions of any kind."""
    COUNTED = POSITION | LAYER | SPARE
    """What there may be none of; every other size is at least 1."""


GLOSSARY: Mapping[str, Axis] = {
    "n": Axis.QUERY,
    "m": Axis.KEY,
    **dict.fromkeys(("t", "steps"), Axis.TIME),
    **dict.fromkeys(("d", "d_q", "d_k", "d_v", "p", "p_q", "p_k", "p_v"), Axis.FEATURE),
    **dict.fromkeys(("d_x", "d_y", "d_m", "d_s", "d_h", "d_g", "p_o", "channels"), Axis.WIDTH),
    **dict.fromkeys(("h", "f"), Axis.HIDDEN),
    **dict.fromkeys(("heads", "heads_k"), Axis.HEAD),
    "group": Axis.GROUP,
    "vocabulary": Axis.VOCABULARY,
    "beams": Axis.BEAM,
    "depth": Axis.LAYER,
    "spare": Axis.SPARE,
    **dict.fromkeys(("slices", "rows", "columns", "patch"), Axis.GRID),
    **dict.fromkeys(("slices_from", "rows_from", "columns_from"), Axis.GRID),
    "taps": Axis.TAP,
    **dict.fromkeys(("pages", "blocks", "page"), Axis.PAGE),
    "sequences": Axis.SEQUENCE,
}
"""What each size name counts, in every operation that does not declare otherwise (``axes=``)."""


class Role(Flag):
    """The role of an argument in its operation, which follows from its kind and axes."""

    MASK = auto()
    """Booleans: which positions may be attended to."""
    LENGTHS = auto()
    """Integers: how many positions are no padding."""
    INDICES = auto()
    """Integers: tokens, or positions in another array."""
    WEIGHT = auto()
    """Parameters, which all elements of a batch share."""
    STATE = auto()
    """A vector for every element of a batch."""
    ROWS = auto()
    """A vector for every position."""


class Part(Enum):
    """What an option or an optional array does to the scores of attention, which neither kind nor axes tell."""

    SCALE = auto()
    """A number that they are multiplied by."""
    CAP = auto()
    """A number that they come near and do not exceed."""
    BIAS = auto()
    """Numbers that are added."""
    SLOPES = auto()
    """What is subtracted for each position between query and key, by head."""
    SINK = auto()
    """The score of one more key, whose value is 0, by head."""
