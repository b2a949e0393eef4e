"""Models on this machine: weights, and the engine that answers for them in a child process."""
