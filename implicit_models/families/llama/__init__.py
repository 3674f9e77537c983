"""Llama, explicit and implicit."""
