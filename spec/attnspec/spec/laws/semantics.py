"""For every question of semantics, the law that what a backend declares is what it does.

A question that another law asks has none here.
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
