"""Contract of an operation: Protocols, shapes, laws, semantics, precision, limits and sources."""
