"""Inputs on which laws are checked: drawn at random or from a covering array."""
