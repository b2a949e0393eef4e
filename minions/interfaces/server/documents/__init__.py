"""What requests hold and responses give, as values."""
