"""Judging of one attention result inside somebody else's test harness."""
