"""Rules by which public harnesses accept attention, and ``judge`` on the same outputs."""
