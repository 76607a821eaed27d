"""One operation of one backend, for laws: calls with NumPy arrays, oracle, budgets, comparisons."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial
from typing import Any, Self, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in, with_quiet_nans
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.inputs.heads import with_divided_heads
from attnspec.conformance.judging.comparison import INFORMATIVE, INFORMATIVE_WITH_FEW_BITS, Comparisons
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import Extent, widen
from attnspec.conformance.judging.foreign_calls import Raised, RemoteOperation, call_safely, in_thread, placed
from attnspec.conformance.judging.health import BACKWARD, FORWARD, Call, Health
from attnspec.conformance.judging.left_open import with_exact_infinities, with_open_choices, with_unspecified
from attnspec.conformance.judging.left_out import demand_declared, raises_without_keys
from attnspec.conformance.judging.profiles import PROFILES, Profile
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.reference.budget import Judged, judged, oracle_dtype
from attnspec.reference.budget.gradients import gradients
from attnspec.reference.defining.choices import choosing
from attnspec.reference.defining.definition import REFERENCE
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.precision import DEFAULTS, Precision
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.contract.semantics import QUESTIONS, Semantics, choices_of_formula
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import Kind, Leaf, Option, StructureError, as_tuple, build_tree

Results = dict[str, Numbers]
"""Arrays of a result by path, in order; a single array has the path ``result``."""


def holds_numbers(x: Numbers) -> bool:
    """Return whether an array holds real numbers or booleans, which can be compared."""
    return x.dtype.kind in "biuf" or x.dtype.name == "bfloat16"


class Subject(Comparisons):
    """A backend's operation at one dtype on one device.

    ``observed``: choices that the backend was seen to make, by question. ``default_dtype``: dtype of the last result of
    an operation without float inputs. ``ordered``: budgets follow partial sums; ``sampled``: they also use random
    samples; see :func:`judged`. ``is_leading_dtype``: checks that need only one dtype run at this one. ``effort``:
    sizes of ensembles and examples. ``estimates``: by quantity, the relative error that an ensemble shows, and its
    limit; read by documentation only.
    ``left_out``: by law, the declaration that excludes its calls. ``extent``: largest sizes of all calls. ``passed``:
    the arguments converted last by the current check. ``not_tried``: by law, what this machine is too small for.
    """

    def __init__(
        self,
        backend: Any,
        contract: Contract,
        operation: Operation,
        dtype: str,
        device: str,
        profile: Profile = PROFILES["full"],
    ) -> None:
        missing = frozenset(x for x in operation.features if not contract.limits.has(x))
        self.backend, self.contract = backend, contract
        self.operation = operation.without(missing).with_always(contract.limits.always)
        self.dtype, self.device = dtype, device
        self.effort = profile.at(dtype)
        self.estimates: dict[str, tuple[float, float]] = {}
        self.observed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.not_tried: dict[str, str] = {}
        self.default_dtype = "float64"
        self.extent: Extent = {}
        self.ordered = self.sampled = False
        self.is_leading_dtype = True
        self.passed: Arguments | None = None

    # What the backend declares -----------------------------------------------------------------------------------

    @property
    def semantics(self) -> Semantics:
        """The choices declared for this operation."""
        return self.contract.semantics[self.operation.name]

    @property
    def limits(self) -> Limits:
        """The limits that the backend declares."""
        return self.contract.limits

    @property
    def health(self) -> Health:
        """The backend's health, shared by all subjects of its contract."""
        return self.contract.health

    @property
    def precision(self) -> Precision:
        """The precision class declared for this operation and dtype."""
        dtype = self.dtype if self.dtype in DEFAULTS else self.default_dtype
        return self.contract.precision(self.operation.name, dtype)

    @property
    def has_gradients(self) -> bool:
        """True if the backend gives gradients of this operation."""
        operation = self.operation
        return self.contract.differentiable and operation.differentiable and self.limits.gives_gradients(operation.name)

    @property
    def has_all_features(self) -> bool:
        """True if the backend has every optional feature of the operation."""
        return all(map(self.limits.has, self.operation.features))

    @property
    def data_dtype(self) -> str:
        """The dtype of the inputs; float64 for operations without float inputs."""
        return self.dtype if self.operation.floats else "float64"

    @property
    def optional(self) -> frozenset[str]:
        """The paths of the optional arrays."""
        return frozenset(leaf.path for leaf in self.operation.leaves if leaf.optional)

    @property
    def unsupported_arrays(self) -> frozenset[str]:
        """The paths of the optional arrays that the backend does not accept."""
        features, limits = self.operation.features, self.limits
        masks = frozenset(leaf.path for leaf in self.operation.masks.values()) if not limits.mask else frozenset()
        return frozenset(p for p in self.optional if p in masks or (p in features and not limits.has(p)))

    def allowed_size(self, name: str, size: int) -> int:
        """The allowed size nearest to ``size``; for sequences, the next longer if possible."""
        limits, axis = self.limits, self.operation.axis(name)
        if axis & Axis.POSITION:
            size = limits.length_from(size)
            return size if limits.max_length is None else min(size, limits.max_length)
        if axis & Axis.FEATURE and limits.head_sizes is not None:
            return min(limits.head_sizes, key=lambda s: (abs(s - size), s))
        return size

    def arguments(self, example: Example) -> Arguments:
        """The arguments of an example, at the dtype of the inputs."""
        return example.arguments(self.operation, self.data_dtype)

    def zeros(self, size: int) -> Arguments:
        """Zeros of the allowed sizes nearest to ``size``, without arrays that the backend lacks."""
        sizes = {name: self.allowed_size(name, size) for name in self.operation.sizes}
        sizes = with_divided_heads(sizes, self.operation, self.limits)
        kinds = dict.fromkeys(self.operation.call.names, "zeros")
        return self.arguments(Example(sizes, kinds=kinds, absent=self.unsupported_arrays))

    # Calls -------------------------------------------------------------------------------------------------------

    def convert(self, x: Any) -> Any:
        """A new backend array in C order, so that equal shapes have equal strides."""
        function = getattr(self.backend, "from_numpy", None)
        if isinstance(x, Quantized):
            codes, scales, global_scale = map(self.convert, (x.codes, x.scales, x.global_scale))
            return Quantized(codes, scales, global_scale, x.dtype)
        if not isinstance(x, np.ndarray):
            return x
        x = np.array(x, order="C")
        if function is None:
            return x
        moved = self.noted(call_safely(lambda: function(x, device=self.device)), "from_numpy raised")
        if isinstance(moved, Raised):
            raise Violation(f"from_numpy raised {moved.message}", reason=Reason.RAISED)
        return moved

    def free_memory(self) -> int | None:
        """The bytes that are free on the device; None if the backend does not say."""
        function = getattr(self.backend, "free_memory", None)
        answer = None if function is None else call_safely(lambda: function(device=self.device))
        return answer if type(answer) is int else None

    def to_numpy(self, x: Any) -> Any:
        """A backend's array as a NumPy array; an exception of the conversion propagates."""
        function = getattr(self.backend, "to_numpy", None)
        return with_quiet_nans(x if function is None or x is None else function(x))

    def numbers(self, x: Any) -> Numbers:
        """A backend's array as a NumPy array; an exception of the conversion is a violation."""
        array = self.noted(call_safely(lambda: np.asarray(self.to_numpy(x))), "to_numpy raised")
        if isinstance(array, Raised):
            raise Violation(f"to_numpy raised {array.message}", reason=Reason.RAISED)
        return cast(Numbers, array)

    def converted(self, arguments: Arguments, *, allow_refusal: bool = False) -> dict[str, Any]:
        """Non-default arguments as trees of backend arrays; ``OutsideDeclaration`` for excluded calls."""
        demand_declared(self.limits, self.semantics, arguments, allow_refusal=allow_refusal)
        self.passed = arguments
        return arguments.passed_as(lambda path: self.convert(arguments.quantized.get(path, arguments[path])))

    def invoke(self, inputs: Mapping[str, Any], *, threaded: bool = False) -> Any:
        """Call the operation with backend arrays, in a new thread if ``threaded``; exceptions propagate."""
        keyword_only = self.operation.keyword_only
        names = [name for name in self.operation.call.names if name in inputs]
        positional = [inputs[name] for name in names if name not in keyword_only]
        keyword = {name: inputs[name] for name in names if name in keyword_only}
        call = placed(self.backend, self.operation.name, self.device)
        if threaded:
            call = call.in_thread if isinstance(call, RemoteOperation) else partial(in_thread, call)
        return call(*positional, **keyword)

    def raw_result(self, inputs: Mapping[str, Any]) -> Any:
        """The backend's own result of a call with backend arrays; an exception is a violation."""
        result = self.noted(call_safely(lambda: self.invoke(inputs)))
        if isinstance(result, Raised):
            raise Violation(f"raised {result.message}", reason=Reason.RAISED)
        return result

    def noted(self, outcome: Any, what: str = "raised", arguments: Arguments | None = None, kind: str = FORWARD) -> Any:
        """The outcome of a call of some kind; if the backend raised, its health remembers it."""
        if isinstance(outcome, Raised):
            error = outcome.error
            if not isinstance(error, Violation):
                self.health.note(f"{what} {outcome.message}", arguments or self.passed, kind)
            elif error.reason is Reason.RAISED:
                self.health.note(error.message, arguments or self.passed, kind)
        return outcome

    def result_or_raised(self, inputs: Mapping[str, Any]) -> Any:
        """The result of a call as NumPy arrays by path, or :class:`Raised`."""
        results = self.noted(call_safely(lambda: self.numpy_arrays(self.invoke(inputs))))
        if isinstance(results, Raised) and isinstance(results.error, Violation):
            raise results.error
        return results

    def numpy_arrays(self, result: Any) -> dict[str, Any]:
        """A backend's result as NumPy arrays by path; another structure is a violation."""
        return {path: self.to_numpy(x) for path, x in self.arrays(result).items()}

    def arrays(self, result: Any) -> dict[str, Any]:
        """A backend's result as its own arrays by path; another structure is a violation."""
        try:
            leaf_arrays = results(self.operation, result)
        except StructureError as error:
            raise Violation(f"the result has another structure: {error}", reason=Reason.TYPE) from None
        return {leaf.path: x for leaf, x in leaf_arrays}

    def results(self, arguments: Arguments) -> Results:
        """All arrays of the result, cached with the arguments; an exception is a violation."""
        return self.demand_shapes(arguments.once("results", lambda: self.fresh_results(arguments)), arguments)

    def demand_shapes(self, arrays: Results, arguments: Arguments) -> Results:
        """Return the arrays of a result; anything but rightly shaped numbers is a violation."""
        for leaf in self.operation.outputs:
            self._demand_numbers(leaf, arrays[leaf.path], arguments)
            shape, expected = arrays[leaf.path].shape, arguments.binding.shape(leaf)
            if shape != expected:
                message = f"{self.title_of(leaf)} has shape {as_tuple(shape)}, expected {as_tuple(expected)}"
                raise Violation(message, reason=Reason.SHAPE, arguments=arguments)
        return arrays

    def call(self, arguments: Arguments) -> Numbers:
        """The result; its leading array if it has several."""
        return self.results(arguments)[self.operation.leading.path]

    def fresh_results(self, arguments: Arguments, inputs: Mapping[str, Any] | None = None) -> Results:
        """The arrays of a new call, shapes unchecked; ``inputs``: the arguments as backend arrays."""
        widen(self.extent, arguments)
        arrays = self.result_or_raised(self.converted(arguments) if inputs is None else inputs)
        if isinstance(arrays, Raised):
            raise Violation(f"raised {arrays.message}", reason=Reason.RAISED, arguments=arguments)
        for leaf in self.operation.outputs:
            self._demand_numbers(leaf, arrays[leaf.path], arguments)
        if inputs is None:
            self._remember(arguments, lambda: self.repeat(arguments), FORWARD)
        return cast(Results, arrays)

    def _remember(self, arguments: Arguments, call: Call, kind: str) -> None:
        sizes = [x.size for x in arguments.arrays.values()]
        if sizes and all(sizes):  # an empty call may leave the device alone
            self.health.remember(sum(sizes), call, kind)

    def repeat(self, arguments: Arguments) -> Results:
        """The arrays of a call that no law judges; exceptions propagate."""
        return self.numpy_arrays(self.invoke(self.converted(arguments)))

    def repeat_vjp(self, arguments: Arguments, cotangents: Results | None = None) -> Results:
        """The gradients of a call that no law judges, by default for ones; exceptions propagate."""
        if cotangents is None:
            leaves = (leaf for leaf in self.operation.outputs if leaf.kind is Kind.FLOAT)
            cotangents = {leaf.path: self.exact(np.ones(arguments.binding.shape(leaf))) for leaf in leaves}
        return self._numpy_gradients(self._vjp_call(arguments, cotangents))

    @property
    def smallest_calls(self) -> dict[str, Call]:
        """Calls with zeros of size 1, or else 2, by kind; exceptions propagate."""

        def smallest(repeat: Callable[[Arguments], Results]) -> Results:
            first = call_safely(lambda: repeat(self.zeros(1)))  # a backend may refuse odd sizes
            return repeat(self.zeros(2)) if isinstance(first, Raised) else cast(Results, first)

        return {FORWARD: lambda: smallest(self.repeat), BACKWARD: lambda: smallest(self.repeat_vjp)}

    def _demand_numbers(self, leaf: Leaf, x: Any, arguments: Arguments) -> None:
        title = self.title_of(leaf)
        if not isinstance(x, np.ndarray):
            message = f"{title} is of type {type(x).__name__}, expected an array that to_numpy converts to NumPy"
            raise Violation(message, reason=Reason.TYPE, arguments=arguments)
        if not holds_numbers(x):
            message = f"{title} is of dtype {x.dtype}, expected real numbers"
            raise Violation(message, reason=Reason.TYPE, arguments=arguments)

    def title_of(self, leaf: Leaf) -> str:
        """The name of a result array in messages."""
        return f"the result {leaf.path}" if len(self.operation.outputs) > 1 else "the result"

    def cotangents(self, arguments: Arguments, rng: np.random.Generator) -> Results:
        """Random weights for every float array of the result.

        Rows that a declared choice leaves open get weight 0: their gradients depend on the choice (a mean over all keys
        has gradients, zeros have none).
        """
        results = self.results(arguments)
        shapes = {leaf.path: results[leaf.path].shape for leaf in self.operation.outputs if leaf.kind is Kind.FLOAT}
        weights = {path: self.exact(rng.standard_normal(shape)) for path, shape in shapes.items()}
        if self.semantics.fully_masked == "zero" or self.operation.mask is None:
            return weights
        oracles = self.oracles(arguments)
        return {path: np.where(np.isnan(oracles[path].value), x.dtype.type(0), x) for path, x in weights.items()}

    def vjp(self, arguments: Arguments, cotangents: Results, inputs: Mapping[str, Any] | None = None) -> Results:
        """The backend's gradients by path; an exception or a missing gradient is a violation.

        ``inputs``: the arguments as backend arrays, by default new ones.
        """
        widen(self.extent, arguments)
        gradients = self.gradients_of(self._vjp_call(arguments, cotangents, inputs), arguments)
        if inputs is None:
            self._remember(arguments, lambda: self.repeat_vjp(arguments, cotangents), BACKWARD)
        return gradients

    def _vjp_call(
        self, arguments: Arguments, cotangents: Results, inputs: Mapping[str, Any] | None = None
    ) -> Callable[[], Mapping[str, Any]]:
        inputs = self.converted(arguments) if inputs is None else inputs
        cotangent = self.like_result(cotangents, arguments)
        return lambda: cast("Mapping[str, Any]", self.backend.vjp(self.operation.name, inputs, cotangent))

    def _numpy_gradients(self, call: Callable[[], Mapping[str, Any]]) -> Results:
        return {path: self.to_numpy(g) for path, g in call().items()}

    def gradients_of(
        self, call: Callable[[], Mapping[str, Any]], arguments: Arguments, wanted: Collection[str] | None = None
    ) -> Results:
        """The ``wanted`` (or all) gradients that ``call`` returns; an exception is a violation."""
        outcome = call_safely(lambda: self._numpy_gradients(call))
        gradients = self.noted(outcome, "vjp raised", arguments, BACKWARD)
        if isinstance(gradients, Raised):
            raise Violation(f"vjp raised {gradients.message}", reason=Reason.RAISED, arguments=arguments)
        for leaf, x in (f for f in arguments.floats if wanted is None or f[0].path in wanted):
            g = gradients.get(leaf.path)
            if not isinstance(g, np.ndarray) or g.shape != x.shape:
                got = "none" if g is None else getattr(g, "shape", type(g).__name__)
                message = f"vjp: expected a gradient for {leaf.path} of shape {as_tuple(x.shape)}; got {got}"
                raise Violation(message, reason=Reason.TYPE if g is None else Reason.SHAPE, arguments=arguments)
            if not holds_numbers(g):
                message = f"vjp: the gradient for {leaf.path} is of dtype {g.dtype}, expected real numbers"
                raise Violation(message, reason=Reason.TYPE, arguments=arguments)
        return cast(Results, gradients)

    def like_result(self, arrays: Mapping[str, Numbers], arguments: Arguments, *, convert: bool = True) -> Any:
        """A tree with the structure of the result; None for missing arrays."""

        def at(leaf: Leaf | Option) -> Any:
            x = arrays.get(leaf.path)
            return self.convert(x) if convert else x

        return build_tree(self.operation.result, at, lambda branch: arguments.size(branch.count))

    # Oracle ------------------------------------------------------------------------------------------------------

    @property
    def choices(self) -> dict[str, str]:
        """Declared choices that differ from the normative ones and affect the formula."""
        choices = choices_of_formula(self.operation)
        declared = {question: getattr(self.semantics, question) for question in choices}
        return {q: x for q, x in declared.items() if x in choices[q] and x != QUESTIONS[q].normative}

    def formula(self, choices: Mapping[str, str] | None = None) -> Callable[..., Any]:
        """The reference of this operation under ``choices``, by default the declared ones."""
        chosen = self.choices if choices is None else choices
        normative = REFERENCE[self.operation.name]
        if not chosen:
            return normative

        def formula(**arguments: Any) -> Any:
            with choosing(**chosen):
                return normative(**arguments)

        return formula

    def oracle_values(self, arguments: Arguments, **choices: str) -> Results:
        """The formula in oracle precision, without budgets; ``choices`` override declared ones."""
        dtype = oracle_dtype(self.precision.dtype)
        wide_arguments = arguments.replaced({leaf.path: x.astype(dtype, copy=False) for leaf, x in arguments.floats})
        with np.errstate(all="ignore"):
            result = self.formula({**self.choices, **choices})(**wide_arguments.values_by_name)
        return {leaf.path: np.asarray(x) for leaf, x in results(self.operation, result)}

    def oracles(self, arguments: Arguments) -> dict[str, Judged]:
        """The oracle's results with a budget per element, cached with the arguments.

        Elements that a declared, non-normative choice leaves unspecified are NaN and are not compared.
        """
        return arguments.once(self._memo_key, lambda: self._as_declared(arguments))

    def by_partial_sums(self) -> Self:
        """A copy whose budgets follow partial sums."""
        other = copy(self)
        other.ordered = True
        return other

    @property
    def _memo_key(self) -> str:
        return "sampled" if self.sampled else "ordered" if self.ordered else "judged"

    def oracle(self, arguments: Arguments) -> Judged:
        """The oracle's result; its leading array if it has several."""
        return self.oracles(arguments)[self.operation.leading.path]

    def budgets(self, arguments: Arguments) -> Results:
        """The budget of every element; at float64 computed in double, for speed."""
        if self._memo_key not in arguments.memo and self.dtype == "float64" and self._memo_key == "judged":
            double = np.dtype(np.float64)
            return arguments.once("budgets", lambda: _budgets(self._as_declared(arguments, double)))
        return _budgets(self.oracles(arguments))

    def budget(self, arguments: Arguments) -> Numbers:
        """The budget of the result, or of its leading array."""
        return self.budgets(arguments)[self.operation.leading.path]

    def normative_oracles(
        self, arguments: Arguments, wide: np.dtype[Any] | None = None, choices: Mapping[str, str] | None = None
    ) -> dict[str, Judged]:
        """The oracle's results before declared choices, such as NaN without keys, leave elements open.

        ``wide`` is the dtype to compute in. ``choices`` are by default the declared ones that change the formula, such
        as ``causal_alignment``. In greedy and beam search (``chosen``) elements are open where rounding decides tokens.
        """
        if not self.operation.floats and self.operation.float_result:
            self.default_dtype = self.result_dtype(arguments)
        result = self.with_budgets(self.formula(choices), arguments.values_by_name, wide)
        oracles = {leaf.path: x for leaf, x in results(self.operation, result)}
        return with_open_choices(self.operation, oracles) if self.operation.chosen else oracles

    def with_budgets(
        self, formula: Callable[..., Any], arguments: Mapping[str, Any], wide: np.dtype[Any] | None = None
    ) -> Any:
        """A formula's results, with budgets by this backend's precision class."""
        return judged(formula, arguments, self.precision, wide, ordered=self.ordered, sampled=self.sampled)

    def normative_oracle(self, arguments: Arguments) -> Judged:
        """The leading array of :meth:`normative_oracles`."""
        return self.normative_oracles(arguments)[self.operation.leading.path]

    def _as_declared(self, arguments: Arguments, wide: np.dtype[Any] | None = None) -> dict[str, Judged]:
        oracles = with_exact_infinities(self.normative_oracles(arguments, wide), self.semantics)
        if self.operation.mask is None:
            return oracles
        leaves = self.operation.outputs
        return {x.path: with_unspecified(x, oracles[x.path], arguments, self.semantics) for x in leaves}

    def result_dtype(self, arguments: Arguments) -> str:
        """The name of the result's dtype; a dtype that is not float is a violation."""
        name = str(self.call(arguments).dtype.name)
        if name not in DEFAULTS:
            message = f"the result has dtype {name}, expected a float dtype"
            raise Violation(message, reason=Reason.DTYPE, arguments=arguments)
        return name

    def gradients(self, arguments: Arguments, cotangents: Results) -> dict[str, tuple[Numbers, Numbers]]:
        """The oracle's gradients and their budgets, by path."""
        wide = oracle_dtype(self.precision.dtype)
        cotangent = self.like_result(cotangents, arguments, convert=False)
        return gradients(
            self.formula(), arguments.values_by_name, cotangent, self.precision, wide,
            ordered=self.ordered, sampled=self.sampled,
        )  # fmt: skip

    def in_domain(self, arguments: Arguments) -> bool:
        """True if the backend accepts the call and its precision class does not overflow."""
        if self.refuses(arguments):
            return False
        if not self.operation.float_result or not self.operation.floats:
            return True
        return all(x.peak <= self.precision.largest for x in self.oracles(arguments).values())

    def refuses(self, arguments: Arguments) -> bool:
        """Return whether the backend declares that it raises on these arguments."""
        choices = self.semantics
        if self.operation.mask is not None and choices.no_keys == "error" and arguments.keys_count == 0:
            return True
        if raises_without_keys(choices, arguments):
            return True
        if choices.odd_encoding != "error" or not QUESTIONS["odd_encoding"].concerns(self.operation):
            return False
        return any(arguments.size(size) % 2 for size in self.operation.sizes_of(Axis.FEATURE))

    def for_operation(self, operation: Operation) -> "Subject | None":
        """The subject for another operation of this backend; None if the backend lacks it."""
        if operation.name not in self.contract.operations:
            return None
        return Subject(self.backend, self.contract, operation, self.dtype, self.device)

    # Results -----------------------------------------------------------------------------------------------------

    @property
    def within_budget(self) -> bool:
        """True if the backend declares that repeated calls may give different bits."""
        return self.semantics.repeatability == "within-budget"

    @property
    def widest_judged(self) -> float:
        """The largest budget that is judged, as a fraction of the largest expected magnitude."""
        return INFORMATIVE_WITH_FEW_BITS if self.precision.weights_scaled else INFORMATIVE

    @property
    def shares_scales(self) -> bool:
        """True if the declared precision class stores operands with shared scales."""
        return self.precision.scaled > 0

    def all_match(
        self,
        got: Results,
        expected: Mapping[str, Any],
        budgets: Results | Callable[[], Results],
        arguments: Arguments,
        what: str = "",
    ) -> None:
        """Demand that every result array is within its budget; ``what`` prefixes its title."""
        for leaf in self.operation.outputs:
            title = f"{what} {self.title_of(leaf)}".strip()
            # The default value binds the leaf of this turn; budgets are computed only if they are needed.
            budget = (lambda leaf=leaf: budgets()[leaf.path]) if callable(budgets) else budgets[leaf.path]
            self.demand_match(got[leaf.path], expected[leaf.path], budget, arguments, title)

    def follows_formula(self, arguments: Arguments, what: str = "") -> None:
        """Demand that every result array is within its budget of the oracle's."""
        got, oracles = self.results(arguments), self.oracles(arguments)
        self.all_match(got, {p: x.value for p, x in oracles.items()}, _budgets(oracles), arguments, what)

    def exact(self, x: Any) -> Numbers:
        """The nearest numbers that the tested dtype can represent."""
        return exact_in(x, self.dtype)


def _budgets(oracles: Mapping[str, Judged]) -> Results:
    return {path: x.budget for path, x in oracles.items()}
