"""The stages that train a model, and what they share."""
