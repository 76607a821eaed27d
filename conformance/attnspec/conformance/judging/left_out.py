"""Calls that a backend's declaration excludes; laws never make them."""

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import rows_with_keys
from attnspec.conformance.judging.violation import OutsideDeclaration
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.semantics import Semantics
from attnspec.spec.contract.shapes import ShapeError

SIZE_LIMITS = ("min_length", "max_length", "multiple_of", "min_batch", "max_batch_dims")
"""Limits on sizes; their defaults exclude no call that a law makes."""

UNLIMITED = Limits()


def demand_declared(limits: Limits, semantics: Semantics, arguments: Arguments, *, allow_refusal: bool = False) -> None:
    """Raise ``OutsideDeclaration`` for calls outside the limits, or for which a backend declares to raise.

    A backend may declare to raise on rows without attendable keys; with ``allow_refusal`` such calls are made.
    """
    demand_within_limits(limits, arguments)
    if not allow_refusal and raises_without_keys(semantics, arguments):
        raise OutsideDeclaration("semantics fully_masked = error")


def raises_without_keys(semantics: Semantics, arguments: Arguments) -> bool:
    """Return whether a row has no attendable key, for which the backend declares to raise.

    If there are no keys at all, ``no_keys`` decides instead.
    """
    if "error" not in semantics.without_keys.values() or not arguments.operation.masks or arguments.keys_count == 0:
        return False
    return not rows_with_keys(arguments, semantics=semantics).all()


def demand_layouts(limits: Limits) -> None:
    """Raise ``OutsideDeclaration`` unless the backend takes non-contiguous arrays."""
    if limits.contiguous_only:
        raise OutsideDeclaration("limits contiguous_only = True")


def demand_within_limits(limits: Limits, arguments: Arguments) -> None:
    """Raise ``OutsideDeclaration`` for a call outside the limits; the message names the limit."""
    operation = arguments.operation
    if not limits.mask and any(leaf.optional and arguments[leaf.path] is not None for leaf in operation.masks.values()):
        raise OutsideDeclaration("limits mask = False")
    if not limits.causal and operation.flag is not None and arguments[operation.flag]:
        raise OutsideDeclaration("limits causal = False")
    if any(arguments[path] != operation.defaults[path] for path in operation.always_passed):
        raise OutsideDeclaration(f"limits always = {limits.always}")
    if all(getattr(limits, name) == getattr(UNLIMITED, name) for name in SIZE_LIMITS):
        return
    try:
        sizes, batch = arguments.sizes, arguments.batch
    except ShapeError:
        return  # limits do not apply to shapes that the Protocol forbids
    if len(batch) > limits.max_batch_dims:
        raise OutsideDeclaration(f"limits max_batch_dims = {limits.max_batch_dims}")
    if any(size < limits.min_batch for size in batch):
        raise OutsideDeclaration(f"limits min_batch = {limits.min_batch}")
    lengths = [size for name, size in sizes.items() if operation.axis(name) & Axis.POSITION]
    if any(size < limits.min_length for size in lengths):
        raise OutsideDeclaration(f"limits min_length = {limits.min_length}")
    if limits.max_length is not None and any(size > limits.max_length for size in lengths):
        raise OutsideDeclaration(f"limits max_length = {limits.max_length}")
    if any(size % limits.multiple_of for size in lengths):
        raise OutsideDeclaration(f"limits multiple_of = {limits.multiple_of}")
