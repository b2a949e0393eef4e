"""Rules of the greenhouse."""

WINDOW_OPENS_AT_C = 27.0
WATER_BELOW_PERCENT = 35.0


def window_is_open(temperature_c: float) -> bool:
    """Open when it is warm."""
    return temperature_c >= WINDOW_OPENS_AT_C


def beds_need_water(moisture_percent: float) -> bool:
    """Water when the soil is dry."""
    # TODO: do not water at noon.
    return moisture_percent < WATER_BELOW_PERCENT
