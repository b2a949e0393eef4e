"""The kinds of steps, one module each: keys, spec, checks, and what analysis shows of them."""
