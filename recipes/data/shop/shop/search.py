"""Finding products by words."""


def find(products: list[str], query: str) -> list[str]:
    """Products whose name holds the query."""
    return [name for name in products if query in name]
