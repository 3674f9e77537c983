"""Stories of bAbI: what they are, how they are read, and the vocabulary of their words."""
