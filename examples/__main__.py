"""The command line of the examples."""

from examples.cli import app

app(prog_name="python -m examples")
