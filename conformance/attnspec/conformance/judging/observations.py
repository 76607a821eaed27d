"""Observed choices of a backend, and the calls that show them."""

from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.semantics import WAYS

NAMED = {phrase: way for way, phrase in WAYS.items()}
"""Names of the ways to encode a mask, by their descriptions."""

OTHER = "something else"
"""Observed behaviour that is no known choice."""


class Observation(NamedTuple):
    """An observed choice and the arguments that show it.

    ``shown``: what an unknown choice looked like. ``way``: how the mask was encoded, if there are several ways.
    """

    choice: str
    arguments: Arguments
    shown: str = ""
    way: str = ""


Seen = list[Observation]
"""Observed choices; empty if the arguments are inconclusive."""


def choice_by_way(seen: Seen) -> dict[str, str] | None:
    """The known choice per way of masking; None if one is unknown or ambiguous."""
    found: dict[str, set[str]] = {way: set() for way in WAYS}
    for sighting in seen:
        if sighting.way not in NAMED or sighting.choice == OTHER:
            return None
        found[NAMED[sighting.way]].add(sighting.choice)
    if not found["full"] or any(len(choices) > 1 for choices in found.values()):
        return None
    return {way: choices.pop() for way, choices in found.items() if choices}


def said_by_way(seen: Seen) -> str:
    """Text naming the ways that show each choice; empty if there is one choice."""
    choices: dict[str, dict[str, None]] = {}
    for found in seen:
        choices.setdefault(found.choice, {})[found.way] = None
    if len(choices) < 2 or all(list(ways) == [""] for ways in choices.values()):
        return ""
    return f" ({', '.join(f'{choice} with ' + ' and '.join(ways) for choice, ways in choices.items())})"
