"""The language of the specification: operations read from Protocols, shapes, laws, semantics, precision, sources."""
