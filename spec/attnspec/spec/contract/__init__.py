"""What the specification is written in: operations read from Protocols, shapes, laws, semantics, precision, sources."""
