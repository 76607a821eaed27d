"""Judging one result in any test harness."""
