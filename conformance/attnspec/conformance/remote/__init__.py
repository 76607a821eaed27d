"""A backend, loaded and described, and its process, which returns bytes to a judge that never imports it."""
