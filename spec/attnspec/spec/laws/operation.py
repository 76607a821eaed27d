"""Laws that hold for every operation: shapes, dtypes, batches, memory, rejection, gradients, options."""

from attnspec.spec.contract.law import every, law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.semantics import QUESTIONS
from attnspec.spec.contract.tree import Kind


def takes_arrays(operation: Operation) -> bool:
    """True if an argument is or contains an array."""
    return bool(operation.leaves)


def batched(operation: Operation) -> bool:
    """True if an argument has batch dimensions."""
    return any(leaf.batched for leaf in operation.leaves)


def several_batches(operation: Operation) -> bool:
    """True if at least two arguments have batch dimensions."""
    return sum(leaf.batched for leaf in operation.leaves) > 1


def takes_indices(operation: Operation) -> bool:
    """True if an argument holds tokens or other indices of rows."""
    return any(leaf.path in operation.indices for leaf in operation.leaves)


def has_options(operation: Operation) -> bool:
    """True if there are options other than sizes and the causal flag, which the laws of masking cover."""
    return any(o.kind is not Kind.SIZE and o.path != operation.flag for o in operation.options)


def optional_parts(operation: Operation) -> bool:
    """True if there are several optional arrays or options, each of which a backend may accept and ignore."""
    return sum(name in operation.features for name in operation.defaults) > 1


refuses_shapes = QUESTIONS["rejection"].concerns


ORACLE = law(
    "operation.oracle",
    "Every element equals the formula within its error budget.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}(x)",
    governs=every,
)
SHAPE = law(
    "operation.shape",
    "The result has the shape that the Protocol gives.",
    formula=r"\operatorname{shape} f(x) = \text{as annotated}",
    governs=every,
)
DTYPE = law(
    "operation.dtype",
    "The result has the dtype of the inputs; masks are boolean.",
    formula=r"\operatorname{dtype} f(x) = \operatorname{dtype} x",
    governs=every,
)
BATCH_INVARIANCE = law(
    "operation.batch-invariance",
    "An element of a batch computed alone is what it is within the batch, under its own mask, in every head.",
    formula=r"f(x)_b = f(x_b),\quad f(x; M)_b = f(x_b; M_b)",
    governs=lambda operation: batched(operation) or bool(operation.masks),
)
BROADCASTING = law(
    "operation.broadcasting",
    "A dimension of size 1 along batch, heads, queries or keys counts as repeated, and so does a batch dimension that "
    "is left out in front: what elements share counts for each of them, and for no others.",
    formula=r"f(x) = f(\operatorname{repeat} x) = f(x_{\text{new axis}}),\quad f(x; M) = f(x; \operatorname{repeat} M)",
    governs=lambda operation: several_batches(operation) or bool(operation.masks),
)
EMPTY_BATCH = law(
    "operation.empty-batch",
    "A batch without elements gives a result without elements, of the right shape.",
    formula=r"\operatorname{shape} f(x) = (\ldots, 0, \ldots)",
    governs=batched,
)
NO_MUTATION = law(
    "operation.no-mutation",
    "Inputs are never written to.",
    formula=r"x \text{ after } f(x) = x \text{ before}",
    governs=takes_arrays,
)
NO_MEMORY = law(
    "operation.no-memory",
    "A result depends on no earlier call, of other numbers, in other arrays, or in another dtype, and a later call "
    "does not change it: each array counts as it is when the call is made.",
    formula=r"f(x), f(y), f(x):\ \text{first} = \text{third},"
    r"\quad f(x),\ x_i \leftarrow y_i,\ f(x):\ \text{second} = f(x_1, \ldots, y_i, \ldots)",
    governs=every,
)
OWN_MEMORY = law(
    "operation.own-memory",
    "A result is in memory of its own: who writes to it, or to an argument after the call, changes nothing else.",
    formula=r"f(x) \text{ shares no memory with } x",
    governs=takes_arrays,
)
REJECTION = law(
    "operation.rejection",
    "A shape that violates the Protocol raises, and so do a length, a token or a number of rows outside of its range; "
    "such a call never returns.",
    formula=r"\text{shape}(x) \ne \text{as annotated},\ \ell \notin 0..t,\ w \notin 0..|V|-1"
    r" \Rightarrow f(x) \text{ raises}",
    governs=lambda operation: refuses_shapes(operation) or takes_indices(operation) or bool(operation.lengths),
)
GRADIENT = law(
    "operation.gradient",
    "Every element of the gradient, and so every directional derivative, is that of the formula, in the dtype of its "
    "argument.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
OPTION_EFFECT = law(
    "operation.option-effect",
    "Every value that an option may have, and every optional array, gives what the formula says, alone and beside any "
    "other: what is accepted has an effect.",
    formula=r"f(x; o = v) = f^*(x; o = v),\ f(x; o, o') = f^*(x; o, o')",
    governs=lambda operation: has_options(operation) or optional_parts(operation),
)
