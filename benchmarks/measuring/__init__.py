"""What the scripts beside this folder share: shapes, stacks of layers, clocks and reports."""
