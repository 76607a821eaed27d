"""Features: what a backend lacks is not asked for, and reported; what it accepts must have an effect."""

from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.inputs.corners import corners, factors
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import cases, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.mutants.correct import Library
from attnspec.spec import OPERATIONS, Limits

LAYER = OPERATIONS["encoder_layer"]


class PostOnly:
    """An encoder layer without the pre-norm option."""

    name = "post-only"
    limits = Limits(dtypes=("float64",), features=())

    def encoder_layer(self, x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        """Raises for what it lacks."""
        if norm != "post":
            raise NotImplementedError(norm)
        return reference.encoder_layer(x, parameters, mask=mask)


class Ignoring:
    """An encoder layer that takes the option and does nothing about it."""

    name = "ignoring"
    limits = Limits(dtypes=("float64",))

    def encoder_layer(self, x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        """Always post-norm."""
        return reference.encoder_layer(x, parameters, mask=mask)


class WithoutLogarithms:
    """Attention in groups of heads that has two options, and no logarithms."""

    name = "without logarithms"
    limits = Limits(dtypes=("float32",), features=("scale", "window"))
    library = Library("correct")
    from_numpy, to_numpy = library.from_numpy, library.to_numpy

    def grouped_query_attention(
        self, query: Any, key: Any, value: Any, *,
        mask: Any = None, causal: bool = False, scale: Any = None, window: Any = None,
    ) -> Any:  # fmt: skip
        """None in the place of what is lacking."""
        options = {"mask": mask, "causal": causal, "scale": scale, "window": window}
        attend = getattr(self.library, "grouped_query_attention")  # noqa: B009 - set by the library
        return attend(query, key, value, **options)[0], None

    def vjp(self, operation: str, arguments: Any, cotangent: Any) -> Any:
        """No cotangent is given for what is lacking."""
        assert cotangent[1] is None
        return self.library.vjp(operation, arguments, cotangent)


def verdicts(backend: Any) -> dict[str, Result]:
    contract = Contract.of(backend)
    (case,) = cases(contract)
    return {r.law: r for r in judge(backend, contract, case, PROFILES["quick"])}


def test_what_is_lacking_is_never_asked_for() -> None:
    found = verdicts(PostOnly())
    assert {r.status for r in found.values()} <= {Status.PASSED, Status.NOT_APPLICABLE}
    assert found["operation.oracle"].examples > 5
    assert found["transformer.zero-sublayers"].status is Status.NOT_APPLICABLE


def test_none_stands_where_a_result_is_lacking() -> None:
    found = verdicts(WithoutLogarithms())
    assert {law for law, r in found.items() if r.status is Status.FAILED} == set()
    assert found["operation.gradient"].examples > 1
    # Without logarithms, the outputs of rows without keys are judged.
    assert found["kernels.logarithm"].status is Status.PASSED


@pytest.mark.slow
def test_what_is_accepted_must_have_an_effect() -> None:
    found = verdicts(Ignoring())
    failed = {law for law, r in found.items() if r.status is Status.FAILED}
    assert {"operation.option-effect", "operation.oracle", "transformer.zero-sublayers"} <= failed
    shown = found["operation.option-effect"].counterexample
    assert shown is not None
    assert "norm='pre'" in found["operation.option-effect"].message


@pytest.mark.parametrize(
    ("features", "levels"), [((), {"post"}), (("norm=pre",), {"post", "pre"}), (None, {"post", "pre"})]
)
def test_examples_stay_within_the_features(features: tuple[str, ...] | None, levels: set[str]) -> None:
    limits = Limits(features=features)
    assert set(factors(LAYER, limits)["option:norm"]) == levels
    drawn = corners(LAYER, limits, seed=0, most=30, work=2.0**8)
    assert {e.options["norm"] for e in drawn} == levels


def test_a_feature_that_does_not_exist_is_refused() -> None:
    class Misspelt(PostOnly):
        limits = Limits(features=("norm=per",))

    with pytest.raises(
        ValueError, match=r"^limits features: expected among align_corners=True, .*, norm=pre, .*; got 'norm=per'$"
    ):
        Contract.of(Misspelt())
