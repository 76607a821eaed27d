"""Judging one result in anybody's harness."""
