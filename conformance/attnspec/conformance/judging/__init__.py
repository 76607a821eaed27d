"""Verdicts on laws: calls, comparisons with the oracle, reduced counterexamples."""
