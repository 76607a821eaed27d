"""The verdict on one law: a backend's operation, its examples, its smallest counterexample."""
