"""Steps with iterations: an item of a loop, an attempt of a `while`."""
