"""How public harnesses compare attention with a reference, and what ``judge`` says of what they take."""
