"""What training and reading cost: FLOPs from shapes, time, memory, energy; baselines of a size."""
