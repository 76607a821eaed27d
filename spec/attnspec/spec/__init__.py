"""The specification of attention: operations, laws, semantics, precision and errata of the sources.

Every chapter exports its Protocols, their parameter records, and the types of a backend that provides them.
"""

from attnspec.spec.attention import *
from attnspec.spec.complexity import *
from attnspec.spec.contract.annotations import Array as Array
from attnspec.spec.contract.axes import Axis as Axis
from attnspec.spec.contract.axes import Role as Role
from attnspec.spec.contract.backend import Backend as Backend
from attnspec.spec.contract.backend import Converts as Converts
from attnspec.spec.contract.backend import Differentiates as Differentiates
from attnspec.spec.contract.backend import implements as implements
from attnspec.spec.contract.law import LAWS as LAWS
from attnspec.spec.contract.law import Law as Law
from attnspec.spec.contract.limits import Limits as Limits
from attnspec.spec.contract.operation import CHAPTERS as CHAPTERS
from attnspec.spec.contract.operation import OPERATIONS as OPERATIONS
from attnspec.spec.contract.operation import Operation as Operation
from attnspec.spec.contract.precision import Precision as Precision
from attnspec.spec.contract.precision import precision as precision
from attnspec.spec.contract.quantized import Quantized as Quantized
from attnspec.spec.contract.registration import operation as operation
from attnspec.spec.contract.semantics import QUESTIONS as QUESTIONS
from attnspec.spec.contract.semantics import Semantics as Semantics
from attnspec.spec.contract.shapes import ShapeError as ShapeError
from attnspec.spec.contract.shapes import bind as bind
from attnspec.spec.contract.tree import Branch as Branch
from attnspec.spec.contract.tree import Dim as Dim
from attnspec.spec.contract.tree import Kind as Kind
from attnspec.spec.contract.tree import Leaf as Leaf
from attnspec.spec.contract.tree import Option as Option
from attnspec.spec.kernels import *
from attnspec.spec.linear import *
from attnspec.spec.masking import *
from attnspec.spec.moments import *
from attnspec.spec.multihead import *
from attnspec.spec.normalization import *
from attnspec.spec.pooling import *
from attnspec.spec.positional import *
from attnspec.spec.recurrent import *
from attnspec.spec.scoring import *
from attnspec.spec.selected import *
from attnspec.spec.seq2seq import *
from attnspec.spec.transformer import *
from attnspec.spec.vision import *

# Laws and errata refer to operations, so these must be registered first.
from attnspec.spec import laws as laws  # isort: skip
from attnspec.spec.errata import ERRATA as ERRATA, Erratum as Erratum  # isort: skip

VERSION = "0.1.0"
"""The version of attnspec: of specification, suite and package alike."""
