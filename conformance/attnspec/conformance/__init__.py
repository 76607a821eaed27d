"""The conformance suite: it judges attention backends by laws, and is itself judged by mutants.

Names are imported on first use: every pytest run loads the plugin, which must stay light. ``call``, ``replay`` and
``ConformanceSuite`` need the extra ``check``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnspec.conformance.harness.judge import judge
    from attnspec.conformance.harness.suggesting import suggest_inputs
    from attnspec.conformance.harness.tolerance import tolerance
    from attnspec.conformance.remote.errors import BackendError
    from attnspec.conformance.remote.loading import load
    from attnspec.conformance.running.replaying import call, replay
    from attnspec.conformance.running.suite import ConformanceSuite

_HOMES = {
    "BackendError": "remote.errors",
    "ConformanceSuite": "running.suite",
    "call": "running.replaying",
    "judge": "harness.judge",
    "load": "remote.loading",
    "replay": "running.replaying",
    "suggest_inputs": "harness.suggesting",
    "tolerance": "harness.tolerance",
}

__all__ = ["BackendError", "ConformanceSuite", "call", "judge", "load", "replay", "suggest_inputs", "tolerance"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        from attnspec.conformance.running.extra import MODULES, describe

        try:
            return getattr(import_module(f"attnspec.conformance.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name in MODULES:
                raise ImportError(f"attnspec.conformance.{name}: {describe([error.name])}", name=error.name) from error
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
