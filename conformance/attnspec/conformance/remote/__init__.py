"""The process that runs a backend: its start, its requests and answers, and its end."""
