"""Laws of semantics, one per question: a backend behaves as it declares.

A question whose ``law`` is another one has no law here.
"""

from attnspec.spec.contract.law import law
from attnspec.spec.contract.semantics import QUESTIONS

SEMANTICS = {
    question.name: law(
        f"semantics.{question.name}",
        f"The backend does what it declares. {question.statement}",
        formula=r"\text{declared} = \text{observed}",
        governs=question.concerns,
    )
    for question in QUESTIONS.values()
    if question.law == f"semantics.{question.name}"
}
