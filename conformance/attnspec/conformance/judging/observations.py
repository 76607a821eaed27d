"""Observed choices of a backend, and the calls that show them."""

from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.semantics import ENCODINGS

WAY_BY_DESCRIPTION = {phrase: way for way, phrase in ENCODINGS.items()}
"""Names of the ways to encode a mask, such as ``full``, by description."""

ADVICE = "; if that is meant, declare semantics = "
"""Text in the message of a violated question, before the choice to declare."""

OTHER = "something else"
"""Text for observed behaviour that is no known choice."""


class Observation(NamedTuple):
    """An observed choice and the arguments that show it.

    ``shown``: the numbers of an unknown choice, as text. ``way``: description of how the mask was encoded, if there are
    several ways.
    """

    choice: str
    arguments: Arguments
    shown: str = ""
    way: str = ""


Observations = list[Observation]
"""Observed choices; empty if the arguments are inconclusive."""


def choice_by_way(observations: Observations) -> dict[str, str] | None:
    """The choice per way of masking. None if one is unknown or ambiguous, or ``full`` is missing."""
    choices_by_way: dict[str, set[str]] = {way: set() for way in ENCODINGS}
    for observation in observations:
        if observation.way not in WAY_BY_DESCRIPTION or observation.choice == OTHER:
            return None
        choices_by_way[WAY_BY_DESCRIPTION[observation.way]].add(observation.choice)
    if not choices_by_way["full"] or any(len(choices) > 1 for choices in choices_by_way.values()):
        return None
    return {way: choices.pop() for way, choices in choices_by_way.items() if choices}


def ways_text(observations: Observations) -> str:
    """Text with the ways that show each choice; empty if all show the same choice."""
    choices: dict[str, dict[str, None]] = {}
    for observation in observations:
        choices.setdefault(observation.choice, {})[observation.way] = None
    if len(choices) < 2 or all(list(ways) == [""] for ways in choices.values()):
        return ""
    return f" ({', '.join(f'{choice} with ' + ' and '.join(ways) for choice, ways in choices.items())})"
