"""First adapters to five libraries that are not ours, without declarations, and what two runs say of each."""
