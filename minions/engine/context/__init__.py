"""What is known of a run while it is executed, and what one step sees of it."""
