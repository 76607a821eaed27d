"""Adapters to five other implementations, written without declarations, and two runs of each."""
