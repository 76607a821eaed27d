"""Explanations of violations: missing declarations, and the known defect behind the remaining ones."""
