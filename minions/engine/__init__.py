"""The loop: a recipe becomes a graph of steps, and the graph runs."""
