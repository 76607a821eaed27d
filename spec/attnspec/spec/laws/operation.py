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
    return any(leaf.path in {**operation.indices, **operation.selections} for leaf in operation.leaves)


def has_options(operation: Operation) -> bool:
    """True if there are options other than sizes and the causal flag. The laws of masking cover the flag."""
    return any(o.kind is not Kind.SIZE and o.path != operation.flag for o in operation.options)


def optional_parts(operation: Operation) -> bool:
    """True if there are several optional arrays or options. A backend could accept one and ignore it."""
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
    "The result has the shape that the Protocol declares.",
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
    "An element of a batch gets the result that it gets alone, under its own mask and in every head.",
    formula=r"f(x)_b = f(x_b),\quad f(x; M)_b = f(x_b; M_b)",
    governs=lambda operation: batched(operation) or bool(operation.masks),
)
BROADCAST_EQUALS_REPEAT = law(
    "operation.broadcast-equals-repeat",
    "An argument of size 1 along batch, heads, queries or keys gives the result of the repeated argument, and so "
    "does an argument without the leading batch dimensions. What elements share affects them and no others.",
    formula=r"f(x) = f(\operatorname{repeat} x) = f(x_{\text{new axis}}),\quad f(x; M) = f(x; \operatorname{repeat} M)",
    governs=lambda operation: several_batches(operation) or bool(operation.masks),
)
EMPTY_BATCH = law(
    "operation.empty-batch",
    "A batch without elements gives an empty result of the right shape.",
    formula=r"\operatorname{shape} f(x) = (\ldots, 0, \ldots)",
    governs=batched,
)
NO_MUTATION = law(
    "operation.no-mutation",
    "A call never writes to its inputs.",
    formula=r"x \text{ after } f(x) = x \text{ before}",
    governs=takes_arrays,
)
INDEPENDENT_OF_OTHER_CALLS = law(
    "operation.independent-of-other-calls",
    "A result does not depend on earlier calls with other numbers, arrays or dtypes, and later calls do not change "
    "it. Each call uses the numbers that its arrays hold at that moment.",
    formula=r"f(x), f(y), f(x):\ \text{first} = \text{third},"
    r"\quad f(x),\ x_i \leftarrow y_i,\ f(x):\ \text{second} = f(x_1, \ldots, y_i, \ldots)",
    governs=every,
)
RESULT_OWNS_MEMORY = law(
    "operation.result-owns-memory",
    "A result has its own memory: writing to it, or to an argument after the call, changes nothing else.",
    formula=r"f(x) \text{ shares no memory with } x",
    governs=takes_arrays,
)
REJECTION = law(
    "operation.rejection",
    "A call raises an error if a shape violates the Protocol, or if a length, a token or a number of rows is out of "
    "range. It never returns a result then.",
    formula=r"\text{shape}(x) \ne \text{as annotated},\ \ell \notin 0..t,\ w \notin 0..|V|-1"
    r" \Rightarrow f(x) \text{ raises}",
    governs=lambda operation: refuses_shapes(operation) or takes_indices(operation) or bool(operation.lengths),
)
GRADIENT = law(
    "operation.gradient",
    "Every element of the gradient, and so every directional derivative, follows the formula. The gradient has the "
    "dtype of its argument.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
OPTIONS_HAVE_EFFECT = law(
    "operation.options-have-effect",
    "Every value of every option, and every optional array, has the effect that the formula gives it, alone and "
    "together with any other. Nothing is accepted and ignored.",
    formula=r"f(x; o = v) = f^*(x; o = v),\ f(x; o, o') = f^*(x; o, o')",
    governs=lambda operation: has_options(operation) or optional_parts(operation),
)
