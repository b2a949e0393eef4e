"""A recipe with the model that comes along: no key, no server; prints how fast it was.

Run it: `make demo-local`, or `python recipes/local_demo.py` after `minions models pull`.
"""

from __future__ import annotations

from pathlib import Path

import minions as m

RECIPE = Path(__file__).with_name("read_reviews.yaml")


def main() -> None:
    """Read the reviews of the recipe, and print each with what the model made of it."""
    result = m.run(RECIPE, model="local")
    output = result.unwrap()
    assert isinstance(output, dict)  # noqa: S101  # as the recipe declares
    for review in output["reviews"]:
        print(f"{review['product']:6} {review['mood']:8} {review['review']}")
    print(f"{output['happy']} happy, {output['unhappy']} unhappy; look at: {output['look_at']}")
    used, seconds = result.usage, result.step("labels").duration_ms / 1000
    read = used.input_tokens - used.cached_tokens
    rate = (read + used.output_tokens) / seconds
    print(
        f"{len(output['reviews'])} answers in {seconds:.1f} s: {rate:.0f} tokens/s "
        f"({used.output_tokens} written, {read} read; {used.cached_tokens} more were in the cache)"
    )


if __name__ == "__main__":
    main()
