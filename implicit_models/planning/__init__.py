"""What a training will take, before it is started: FLOPs, memory, files."""
