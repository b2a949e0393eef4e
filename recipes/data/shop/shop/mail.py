"""Confirmations by mail."""


def confirmation(name: str, order: str) -> str:
    """The text of a confirmation."""
    return f"Dear {name}, thank you for your order {order}."
