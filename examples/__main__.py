"""Entry point of ``python -m examples``."""

from examples.cli import app

app(prog_name="python -m examples")
