"""Explanations of violations: what only has to be declared, and the known defect behind the rest."""
