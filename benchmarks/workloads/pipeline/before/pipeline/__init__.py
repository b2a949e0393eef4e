"""From readings of weather stations to daily figures."""
