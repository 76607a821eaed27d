"""Features that a backend lacks are not tested; accepted ones must have an effect."""

from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.inputs.corners import corners, factors
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.mutants.correct import Library
from attnspec.spec import OPERATIONS, Limits

LAYER = OPERATIONS["encoder_layer"]


class PostNormOnly:
    name = "post-only"
    limits = Limits(dtypes=("float64",), features=())

    def encoder_layer(self, x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        if norm != "post":
            raise NotImplementedError(norm)
        return reference.encoder_layer(x, parameters, mask=mask)


class PreNormOnly:
    name = "pre-only"
    limits = Limits(dtypes=("float64",), always=("norm=pre",))

    def encoder_layer(self, x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        if norm != "pre":
            raise NotImplementedError(norm)
        return reference.encoder_layer(x, parameters, mask=mask, norm="pre")


class IgnoresPreNorm:
    name = "ignoring"
    limits = Limits(dtypes=("float64",))

    def encoder_layer(self, x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        return reference.encoder_layer(x, parameters, mask=mask)


class WithoutLogSumExp:
    """Grouped-query attention with two options, and without log-sum-exps."""

    name = "without logarithms"
    limits = Limits(dtypes=("float32",), features=("scale", "window"))
    library = Library("correct")
    from_numpy, to_numpy = library.from_numpy, library.to_numpy

    def grouped_query_attention(
        self, query: Any, key: Any, value: Any, *,
        mask: Any = None, causal: bool = False, scale: Any = None, window: Any = None,
    ) -> Any:  # fmt: skip
        options = {"mask": mask, "causal": causal, "scale": scale, "window": window}
        attend = getattr(self.library, "grouped_query_attention")  # noqa: B009 - set by the library
        return attend(query, key, value, **options)[0], None

    def vjp(self, operation: str, arguments: Any, cotangent: Any) -> Any:
        """Gradients of the output; the missing log-sum-exps get no cotangent."""
        assert cotangent[1] is None
        return self.library.vjp(operation, arguments, cotangent)


def without_lengths(operation: str) -> Any:
    """A backend whose sequences of a batch have equal lengths."""
    library = Library("correct")

    def network(*arguments: Any) -> Any:
        return getattr(library, operation)(*arguments)

    limits = Limits(dtypes=("float32",), features=())
    methods = {name: getattr(library, name) for name in ("from_numpy", "to_numpy", "vjp")}
    return SimpleNamespace(name="equal lengths", limits=limits, **methods, **{operation: network})


def results_by_law(backend: Any) -> dict[str, Result]:
    contract = Contract.of(backend)
    (case,) = cases(contract)
    return {r.law: r for r in judge(backend, contract, case, PROFILES["quick"])}


def test_no_law_uses_a_feature_that_the_backend_lacks() -> None:
    results = results_by_law(PostNormOnly())
    assert {r.status for r in results.values()} <= {Status.PASSED, Status.NOT_APPLICABLE}
    assert results["operation.oracle"].examples > 5
    assert results["transformer.zero-sublayers-identity"].status is Status.NOT_APPLICABLE


def test_a_backend_may_always_normalise_first() -> None:
    results = results_by_law(PreNormOnly())
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    assert results["operation.oracle"].examples > 5
    assert results["transformer.zero-sublayers-identity"].status is Status.PASSED
    # The law is about rows that are normalised last.
    left_out = results["transformer.layer-norm-moments"]
    assert (left_out.status, left_out.reason) == (Status.NOT_APPLICABLE, "left out by limits always = ('norm=pre',)")


def test_an_undeclared_placement_of_norms_is_convicted() -> None:
    backend = PreNormOnly()
    backend.limits = Limits(dtypes=("float64",))
    assert results_by_law(backend)["operation.oracle"].violates


def test_none_stands_for_a_missing_result() -> None:
    results = results_by_law(WithoutLogSumExp())
    assert {law for law, r in results.items() if r.status is Status.FAILED} == set()
    assert results["operation.gradient"].examples > 1
    # Even without log-sum-exps, this law judges the outputs of rows without keys.
    assert results["kernels.log-sum-exp"].status is Status.PASSED


@pytest.mark.parametrize("operation", ["gru", "bidirectional_gru", "rnn_self_attention", "encoder_context"])
def test_recurrences_may_lack_lengths(operation: str) -> None:
    results = results_by_law(without_lengths(operation))
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    assert results["operation.oracle"].examples > 5
    if "recurrent.padding-ignored" in results:
        assert results["recurrent.padding-ignored"].status is Status.NOT_APPLICABLE


@pytest.mark.slow
def test_an_accepted_option_must_have_an_effect() -> None:
    results = results_by_law(IgnoresPreNorm())
    failed = {law for law, r in results.items() if r.status is Status.FAILED}
    assert {"operation.options-have-effect", "operation.oracle", "transformer.zero-sublayers-identity"} <= failed
    counterexample = results["operation.options-have-effect"].counterexample
    assert counterexample is not None
    assert "norm='pre'" in results["operation.options-have-effect"].message


@pytest.mark.parametrize(
    ("features", "levels"), [((), {"post"}), (("norm=pre",), {"post", "pre"}), (None, {"post", "pre"})]
)
def test_examples_stay_within_the_features(features: tuple[str, ...] | None, levels: set[str]) -> None:
    limits = Limits(features=features)
    assert set(factors(LAYER, limits)["option:norm"]) == levels
    examples = corners(LAYER, limits, seed=0, most=30, work=2.0**8)
    assert {e.options["norm"] for e in examples} == levels


def test_a_feature_that_does_not_exist_is_refused() -> None:
    class Misspelt(PostNormOnly):
        limits = Limits(features=("norm=per",))

    class NoChoice(PostNormOnly):
        limits = Limits(always=("scale",))

    with pytest.raises(ValueError, match=r"^limits always: expected choices of an argument, .*; got 'scale'$"):
        Contract.of(NoChoice())
    with pytest.raises(
        ValueError, match=r"^limits features: expected names of features, such as norm=pre, .*'norm=per'$"
    ):
        Contract.of(Misspelt())
