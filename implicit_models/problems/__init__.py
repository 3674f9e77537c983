"""Kinds of problems that models learn: a folder each, and the table that finds them."""
