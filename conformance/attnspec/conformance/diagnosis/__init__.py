"""What is wrong with a backend whose numbers are wrong: the known defect that gives the same ones."""
