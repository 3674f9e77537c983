"""Fixed points of a cell: the search, its stopping, and its gradients. Knows no model."""
