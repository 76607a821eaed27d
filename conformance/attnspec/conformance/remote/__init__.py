"""Loading and describing backends, and the process that runs one: it returns bytes to a judge."""
