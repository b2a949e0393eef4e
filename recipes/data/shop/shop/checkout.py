"""Payment: a card is charged once the basket is confirmed."""

RETRIES = 3


def pay(charge, amount: float) -> bool:
    """Charge the card; a timeout is tried again."""
    for _ in range(RETRIES):
        try:
            return charge(amount)
        except TimeoutError:
            continue
    return False
