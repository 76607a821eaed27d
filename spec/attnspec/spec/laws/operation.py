"""Laws of every operation."""

from attnspec.spec.contract.law import every, law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.semantics import QUESTIONS
from attnspec.spec.contract.tree import Kind


def _takes_arrays(operation: Operation) -> bool:
    return bool(operation.leaves)


def _batched(operation: Operation) -> bool:
    return any(leaf.batched for leaf in operation.leaves)


def _several_batches(operation: Operation) -> bool:
    return sum(leaf.batched for leaf in operation.leaves) > 1


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
    "An element of a batch computed alone is what it is within the batch.",
    formula=r"f(x)_b = f(x_b)",
    governs=_batched,
)
BROADCASTING = law(
    "operation.broadcasting",
    "A batch dimension of size 1 counts as repeated.",
    formula=r"f(x) = f(\operatorname{repeat} x)",
    governs=_several_batches,
)
FEWER_DIMENSIONS = law(
    "operation.fewer-dimensions",
    "A batch dimension that is left out in front counts as repeated.",
    formula=r"f(x) = f(x_{\text{new axis}})",
    governs=_several_batches,
)
EMPTY_BATCH = law(
    "operation.empty-batch",
    "A batch without elements gives a result without elements, of the right shape.",
    formula=r"\operatorname{shape} f(x) = (\ldots, 0, \ldots)",
    governs=_batched,
)
NON_CONTIGUOUS = law(
    "operation.non-contiguous",
    "Only the numbers count, not their strides in memory.",
    formula=r"f(x) = f(\operatorname{strided} x)",
    governs=_takes_arrays,
)
NO_MUTATION = law(
    "operation.no-mutation",
    "Inputs are never written to.",
    formula=r"x \text{ after } f(x) = x \text{ before}",
    governs=_takes_arrays,
)
NO_MEMORY = law(
    "operation.no-memory",
    "A result depends on no earlier call, and a later call does not change it.",
    formula=r"f(x), f(y), f(x):\ \text{first} = \text{third}",
    governs=every,
)
OWN_MEMORY = law(
    "operation.own-memory",
    "A result is in memory of its own: who writes to it, or to an argument after the call, changes nothing else.",
    formula=r"f(x) \text{ shares no memory with } x",
    governs=_takes_arrays,
)
REJECTION = law(
    "operation.rejection",
    "A shape that violates the Protocol raises; it never returns.",
    formula=r"\text{shape}(x) \ne \text{as annotated} \Rightarrow f(x) \text{ raises}",
    governs=QUESTIONS["rejection"].concerns,
)
GRADIENT = law(
    "operation.gradient",
    "Every element of the gradient, and so every directional derivative, is that of the formula.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
OPTION_EFFECT = law(
    "operation.option-effect",
    "Every value that an option may have gives what the formula says: what is accepted has an effect.",
    formula=r"f(x; o = v) = f^*(x; o = v) \text{ for every } v",
    # Of the causal flag, the laws of masking say the same.
    governs=lambda operation: any(o.kind is not Kind.SIZE and o.path != operation.flag for o in operation.options),
)
