"""Stories of our own, of the twenty tasks: told of small worlds, so that answers are known."""
