"""Five first adapters without declarations, and two runs of each."""
