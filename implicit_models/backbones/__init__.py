"""The blocks and stacks that a cell is made of. They know no solver."""
