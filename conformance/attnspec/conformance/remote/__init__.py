"""A backend in a process of its own: what runs it returns bytes, and what judges it never imports it."""
