"""Model calls that wait, sent together as waves through the batches of providers."""
