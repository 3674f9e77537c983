"""Formal languages: what follows from a string, asked at its end or along it, at any length."""
