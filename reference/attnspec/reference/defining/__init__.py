"""What makes a plain formula the reference of an operation."""
