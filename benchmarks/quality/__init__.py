"""`make quality`: what a model gets right, by whoever asks it."""
