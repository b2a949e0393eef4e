"""What a journal tells: keys of work, and the folds over its facts."""
