"""Language models: embedding, cell or stack, tied head; and their files."""
