"""One operation of one backend, seen from NumPy: calls, oracle, budgets and comparisons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import attendable
from attnspec.conformance.inputs.dtypes import SMALLEST_NORMAL, exact_in
from attnspec.conformance.judging.foreign_calls import Raised, guarded
from attnspec.reference import REFERENCE
from attnspec.reference.budget import Judged, judged, oracle_dtype
from attnspec.reference.budget.derivative import gradients
from attnspec.reference.budget.soft import UNKNOWN
from attnspec.spec.contract.backend import Limits
from attnspec.spec.contract.operation import OPERATIONS, Kind, Operation
from attnspec.spec.contract.precision import DEFAULTS, DeclaredPrecision, Precision
from attnspec.spec.contract.semantics import DeclaredSemantics, Semantics

INFORMATIVE = 0.03
"""An element whose budget exceeds this part of the largest element is counted as not judged."""


class Violation(Exception):
    """A law does not hold: what was expected, what was got, where, and by which arguments."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "value",
        arguments: Arguments | None = None,
        expected: Any = None,
        got: Any = None,
        budget: Any = None,
        index: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.reason, self.arguments = message, reason, arguments
        self.expected, self.got, self.budget, self.index = expected, got, budget, index


@dataclass(frozen=True)
class Contract:
    """What a backend declares, read once and checked: ``ValueError`` says what was expected and got."""

    name: str
    operations: tuple[str, ...]
    limits: Limits
    semantics: DeclaredSemantics
    precision: DeclaredPrecision
    differentiable: bool
    notes: Mapping[str, str]
    origin: str = ""

    @classmethod
    def of(cls, backend: Any, origin: str = "") -> "Contract":
        """Read a backend; ``origin`` is how it was named, so that snippets can name it again."""
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: expected a text; got {name!r}")
        operations = tuple(
            o.name for o in OPERATIONS.values() if not o.reference_only and getattr(backend, o.name, None) is not None
        )
        for operation in operations:
            if not callable(getattr(backend, operation)):
                raise ValueError(f"{operation}: expected a function; got {type(getattr(backend, operation)).__name__}")
        notes = getattr(backend, "notes", None) or {}
        if not isinstance(notes, Mapping):
            raise ValueError(f"notes: expected a mapping of texts; got {type(notes).__name__}")
        return cls(
            name,
            operations,
            Limits.of(getattr(backend, "limits", None)),
            DeclaredSemantics.of(getattr(backend, "semantics", None), OPERATIONS),
            DeclaredPrecision.of(getattr(backend, "precision", None), OPERATIONS),
            callable(getattr(backend, "vjp", None)),
            {str(k): str(v) for k, v in notes.items()},
            origin,
        )


class Subject:
    """A backend's operation at one dtype on one device.

    ``ratio`` is the largest error ratio since it was last set to 0, ``not_judged`` counts elements whose budget says
    too little, ``observed`` holds what the backend was seen to choose where the specification leaves a choice.
    ``default_dtype`` is the dtype in which an operation without float inputs was last seen to answer.
    """

    def __init__(self, backend: Any, contract: Contract, operation: Operation, dtype: str, device: str) -> None:
        self.backend, self.contract, self.operation = backend, contract, operation
        self.dtype, self.device = dtype, device
        self.ratio = 0.0
        self.not_judged = 0
        self.observed: dict[str, str] = {}
        self.default_dtype = "float64"

    # What the backend declares -----------------------------------------------------------------------------------

    @property
    def semantics(self) -> Semantics:
        """The choices declared for this operation."""
        return self.contract.semantics[self.operation.name]

    @property
    def limits(self) -> Limits:
        """Where the backend works."""
        return self.contract.limits

    @property
    def precision(self) -> Precision:
        """The precision class declared for this operation and dtype."""
        dtype = self.dtype if self.dtype in DEFAULTS else self.default_dtype
        return self.contract.precision(self.operation.name, dtype)

    # Calls -------------------------------------------------------------------------------------------------------

    def convert(self, x: Any) -> Any:
        """A fresh array of the backend with the same numbers, in C order: equal shapes have equal strides."""
        function = getattr(self.backend, "from_numpy", None)
        if not isinstance(x, np.ndarray):
            return x
        x = np.array(x, order="C")
        if function is None:
            return x
        moved = guarded(lambda: function(x, device=self.device))
        if isinstance(moved, Raised):
            raise Violation(f"from_numpy raised {moved.told}", reason="raised")
        return moved

    def back(self, x: Any) -> Any:
        """A NumPy array with the numbers of a backend's array; whatever the conversion raises comes through."""
        function = getattr(self.backend, "to_numpy", None)
        return x if function is None else function(x)

    def numbers(self, x: Any) -> Numbers:
        """A NumPy array with the numbers of a backend's array; what the conversion raises is a violation."""
        found = guarded(lambda: np.asarray(self.back(x)))
        if isinstance(found, Raised):
            raise Violation(f"to_numpy raised {found.told}", reason="raised")
        return cast(Numbers, found)

    def converted(self, arguments: Arguments) -> dict[str, Any]:
        """The arguments as the backend's arrays; what has its default value is left out."""
        return {
            a.name: self.convert(arguments[a.name])
            for a in self.operation.arguments
            if not (a.keyword_only and is_default(arguments[a.name], a.default))
        }

    def invoke(self, inputs: Mapping[str, Any]) -> Any:
        """Call the operation with arrays of the backend; whatever it raises comes through."""
        positional = [inputs[a.name] for a in self.operation.arguments if not a.keyword_only and a.name in inputs]
        keyword = {a.name: inputs[a.name] for a in self.operation.arguments if a.keyword_only and a.name in inputs}
        return getattr(self.backend, self.operation.name)(*positional, **keyword)

    def demanded(self, inputs: Mapping[str, Any]) -> Any:
        """What a call with arrays of the backend gives, as the backend gave it; what it raises is a violation."""
        result = guarded(lambda: self.invoke(inputs))
        if isinstance(result, Raised):
            raise Violation(f"raised {result.told}", reason="raised")
        return result

    def outcome(self, inputs: Mapping[str, Any]) -> Any:
        """What a call with arrays of the backend gives, turned into NumPy, or :class:`Raised`."""
        return guarded(lambda: self.back(self.invoke(inputs)))

    def call(self, arguments: Arguments) -> Numbers:
        """The result, computed once for the same arguments. What the backend raises is a violation."""
        if "result" not in arguments.memo:
            arguments.memo["result"] = self.call_anew(arguments)
        result = cast(Numbers, arguments.memo["result"])
        expected = arguments.binding.shape(self.operation.result.dims)
        if result.shape != expected:
            raise Violation(
                f"the result has shape {result.shape}, expected {expected}", reason="shape", arguments=arguments
            )
        return result

    def call_anew(self, arguments: Arguments) -> Numbers:
        """The result of a new call, whatever its shape."""
        result = self.outcome(self.converted(arguments))
        if isinstance(result, Raised):
            raise Violation(f"raised {result.told}", reason="raised", arguments=arguments)
        if not isinstance(result, np.ndarray):
            raise Violation(
                f"the result is of type {type(result).__name__}, expected what to_numpy turns into a NumPy array",
                reason="type",
                arguments=arguments,
            )
        if result.dtype.kind not in "biuf" and result.dtype.name != "bfloat16":
            raise Violation(
                f"the result is of dtype {result.dtype}, expected numbers", reason="type", arguments=arguments
            )
        return result

    def vjp(self, arguments: Arguments, cotangent: Numbers) -> dict[str, Numbers]:
        """The backend's gradients; what it raises, or leaves out, is a violation."""
        inputs = self.converted(arguments)
        found = guarded(lambda: self._gradients_of_backend(inputs, self.convert(cotangent)))
        if isinstance(found, Raised):
            raise Violation(f"vjp raised {found.told}", reason="raised", arguments=arguments)
        for name in self.operation.float_arguments:
            g = found.get(name)
            if not isinstance(g, np.ndarray) or g.shape != arguments.array(name).shape:
                raise Violation(
                    f"vjp: expected a gradient for {name} of shape {arguments.array(name).shape}; got "
                    f"{'none' if g is None else getattr(g, 'shape', type(g).__name__)}",
                    reason="type" if g is None else "shape",
                    arguments=arguments,
                )
        return cast("dict[str, Numbers]", found)

    def _gradients_of_backend(self, inputs: Mapping[str, Any], cotangent: Any) -> dict[str, Any]:
        result = self.backend.vjp(self.operation.name, inputs, cotangent)
        return {name: self.back(g) for name, g in result.items()}

    # Oracle ------------------------------------------------------------------------------------------------------

    def oracle(self, arguments: Arguments) -> Judged:
        """The oracle's result and the budget of every element, computed once for the same arguments.

        Where the backend declares another choice than the normative one, what that choice leaves open is NaN in the
        oracle and compared with nothing; a causal mask is aligned as declared.
        """
        if "judged" not in arguments.memo:
            arguments.memo["judged"] = self._as_declared(arguments)
        return cast(Judged, arguments.memo["judged"])

    def budget(self, arguments: Arguments) -> Numbers:
        """The budget of every element alone: for doubles it takes no long doubles."""
        if "judged" not in arguments.memo and self.dtype == "float64":
            if "budget" not in arguments.memo:
                arguments.memo["budget"] = self._as_declared(arguments, np.dtype(np.float64)).budget
            return cast(Numbers, arguments.memo["budget"])
        return self.oracle(arguments).budget

    def normative_oracle(self, arguments: Arguments, wide: np.dtype[Any] | None = None) -> Judged:
        """The oracle's result as the specification has it, whatever the backend declares; computed in ``wide``."""
        if not self.operation.float_arguments and self.operation.result.kind is Kind.FLOAT:
            self.default_dtype = self.result_dtype(arguments)
        return judged(REFERENCE[self.operation.name], dict(arguments), self.precision, wide)

    def _as_declared(self, arguments: Arguments, wide: np.dtype[Any] | None = None) -> Judged:
        spelled = self.aligned(arguments)
        result = self.normative_oracle(spelled, wide)
        if not self.operation.takes("mask"):
            return result
        open_: Numbers = np.zeros(result.value.shape, bool)
        keys = spelled.binding.sizes.get("m", spelled.binding.sizes.get("n"))
        if self.semantics.no_keys != "zero" and keys == 0:
            open_ = np.ones(result.value.shape, bool)
        elif self.semantics.fully_masked != "zero":
            open_ = np.broadcast_to(np.expand_dims(~attendable(spelled).any(-1), -1), result.value.shape)
        if not open_.any():
            return result
        return replace(
            result, value=np.where(open_, np.nan, result.value), budget=np.where(open_, np.inf, result.budget)
        )

    def aligned(self, arguments: Arguments) -> Arguments:
        """The same arguments for the reference: a causal mask that the backend aligns otherwise is spelled out."""
        if self.semantics.causal_alignment == "top-left" or not arguments.causal or "m" not in arguments.binding.sizes:
            return arguments
        n, m = arguments.size("n"), arguments.size("m")
        allowed = np.tri(n, m, m - n).astype(bool)
        mask = allowed if arguments.mask is None else arguments.mask & allowed
        return arguments.with_(causal=False, mask=mask)

    def result_dtype(self, arguments: Arguments) -> str:
        """The dtype of the result, by name; one that is not a float dtype is a violation."""
        name = str(self.call(arguments).dtype.name)
        if name not in DEFAULTS:
            raise Violation(f"the result has dtype {name}, expected a float dtype", reason="dtype", arguments=arguments)
        return name

    def gradients(self, arguments: Arguments, cotangent: Numbers) -> dict[str, tuple[Numbers, Numbers]]:
        """The oracle's gradients and their budgets, by argument."""
        formula, wide = REFERENCE[self.operation.name], oracle_dtype(self.precision.dtype)
        return gradients(formula, dict(self.aligned(arguments)), cotangent, self.precision, wide)

    def in_domain(self, arguments: Arguments) -> bool:
        """Whether nothing overflows, neither in the oracle nor in any intermediate of the precision class."""
        if self._refuses(arguments):
            return False
        if self.operation.result.kind is not Kind.FLOAT or not self.operation.float_arguments:
            return True
        result = self.oracle(arguments)
        return result.peak <= self.precision.largest

    def _refuses(self, arguments: Arguments) -> bool:
        """Whether the backend declares that it raises on these arguments."""
        sizes = arguments.binding.sizes
        no_keys = self.operation.takes("mask") and sizes.get("m", sizes.get("n")) == 0
        odd = self.operation.name == "sinusoidal_positional_encoding" and sizes["d"] % 2 == 1
        return (no_keys and self.semantics.no_keys == "error") or (odd and self.semantics.odd_encoding == "error")

    # Comparisons -------------------------------------------------------------------------------------------------

    def matches(
        self,
        got: Numbers,
        expected: Numbers,
        budget: Numbers,
        arguments: Arguments,
        what: str = "the result",
    ) -> None:
        """Every element of ``got`` is within its budget of what is expected; the error ratio is recorded."""
        if got.size == 0:
            return
        if got.dtype == bool or expected.dtype == bool:
            wrong = np.asarray(got != expected)
            if wrong.any():
                self.ratio = np.inf
                self._raise(np.where(wrong, np.inf, 0.0), got, expected, np.zeros(got.shape), arguments, what)
            return
        ratios = self._ratios(got, expected, budget)
        largest = float(ratios.max())
        self.ratio = max(self.ratio, largest)
        if largest > 1:
            self._raise(ratios, got, expected, budget, arguments, what)

    def _ratios(self, got: Numbers, expected: Numbers, budget: Numbers) -> Numbers:
        wide = np.result_type(expected.dtype, np.float64)
        found, budget = got.astype(wide), np.broadcast_to(budget, got.shape)
        with np.errstate(all="ignore"):
            error = np.abs(found - expected).astype(np.float64)
            finite = np.isfinite(expected)
            ratios = np.where(error == 0, 0.0, error / np.where(budget > 0, budget, np.nan))
            ratios = np.where((error > 0) & (budget == 0), np.inf, ratios)
            top = np.max(np.abs(expected), where=finite, initial=0.0)
            # Where every element is expected to be 0, any budget that is known says enough.
            vague = ~(budget <= (INFORMATIVE * float(top) if top > 0 else UNKNOWN / 2))
            ratios = np.where(vague, 0.0, ratios)
            ratios = np.where(finite & ~np.isfinite(found), np.inf, ratios)
            ratios = np.where(finite, ratios, 0.0)
        self.not_judged += int((vague | ~finite).sum())
        return ratios

    def _raise(
        self, ratios: Numbers, got: Numbers, expected: Numbers, budget: Numbers, arguments: Arguments, what: str
    ) -> None:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
        place = "".join(f"[{', '.join(map(str, index))}]" if index else "")
        text = f"{what}{place} is {_number(got[index])}, expected {_number(expected[index])}"
        if got.dtype != bool:
            text += f" ± {float(np.broadcast_to(budget, got.shape)[index]):.3g}"
        raise Violation(text, arguments=arguments, expected=expected, got=got, budget=budget, index=index)

    def same(
        self, got: Numbers, expected: Numbers, budget: Callable[[], Numbers], arguments: Arguments, what: str
    ) -> None:
        """Two results are equal bit for bit, or within the sum of both budgets where the backend declares that.

        Numbers below the smallest normal one are not compared: flushing them to zero is allowed. ``budget`` is asked
        for only if bits differ.
        """
        different = (got != expected) & ~((got != got) & (expected != expected))
        if not different.any():
            return
        if self.semantics.repeatability == "within-budget":
            self.matches(got, expected.astype(np.float64), 2 * budget(), arguments, what)
            return
        # An infinite budget marks what a declared choice leaves open.
        different &= np.isfinite(budget())
        if got.dtype != bool:
            smallest = SMALLEST_NORMAL.get(got.dtype.name, 0.0)
            tiny = (np.abs(got.astype(np.float64)) < smallest) & (np.abs(expected.astype(np.float64)) < smallest)
            different &= ~tiny
        if different.any():
            self.ratio = np.inf
            self._raise(
                np.where(different, np.inf, 0.0), got, expected, np.zeros(got.shape), arguments, f"{what}, bit for bit,"
            )

    def exact(self, x: Any) -> Numbers:
        """The nearest numbers that the tested dtype can hold."""
        return exact_in(x, self.dtype)

    def holds(self, condition: bool, message: str, arguments: Arguments, *, reason: str = "value", **more: Any) -> None:
        """A plain condition; where it fails the law is violated."""
        if not condition:
            raise Violation(message, reason=reason, arguments=arguments, **more)


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument need not be given."""
    return value is None or (isinstance(default, bool) and value is default)


def _number(x: Any) -> str:
    return str(bool(x)) if np.asarray(x).dtype == bool else f"{float(x):.9g}"
