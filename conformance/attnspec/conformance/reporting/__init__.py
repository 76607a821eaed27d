"""What people and programs read: reports, tables, messages, the printed specification."""
