"""Addresses: the one name of each execution of a run, `sub[1]/each[2]`.

Progress, errors and lists print an address; commands and the HTTP API accept it. It is derived from
the key of the execution, `step/visit/iteration` with `~` for `/` between nested recipes: the id of
each step from the outside in, and the index of the item or attempt, from 0, where there are
several. All visits of a step have one address.
"""

from __future__ import annotations

from collections.abc import Iterator


def item_address(step: str, index: int | None) -> str:
    """The address of an iteration of a step; of the step as a whole if `index` is None."""
    return step if index is None else f"{step}[{index}]"


def address_of(key: str) -> str:
    """The address of the execution to which the work with that key belongs."""
    *outer, own = key.split("~")
    own_step, _, own_rest = own.partition("/")
    iteration = own_rest.partition("/")[2].partition("/")[0]
    parts = [*zip(outer[::3], outer[2::3], strict=True), (own_step, iteration)]
    return "/".join(_name(step, iteration) for step, iteration in parts)


def _name(step: str, iteration: str) -> str:
    """`iteration` may be followed by `#place` of a call in code, and `@generation`."""
    number = iteration.partition("#")[0].partition("@")[0]
    return item_address(step, int(number) - 1 if number.isdecimal() and number != "0" else None)


def around(address: str) -> Iterator[str]:
    """The address, then each that it is an iteration of or within: `a[1]/b`, `a[1]`, `a`."""
    cut = len(address)
    while cut > 0:
        yield address[:cut]
        cut = max(address.rfind(sign, 0, cut) for sign in "/[")


def is_within(address: str, outer: str) -> bool:
    """Whether `address` is `outer`, an iteration of it, or within one of these."""
    return outer in around(address)
