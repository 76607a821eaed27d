"""Explanations of violations: missing declarations, and diagnoses of known defects."""
