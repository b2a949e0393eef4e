"""Random runs that die at any two facts and go on: the same end, and nothing done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from crash.inspection import Seen, differences_of, outline_of, repeated_work, wrong_effects
from crash.played import Death, PlayedRun

DEATHS = st.lists(
    st.builds(Death, at=st.integers(2, 40), loses_last=st.booleans()), min_size=1, max_size=3
)


@given(seed=st.integers(0, 10_000), deaths=DEATHS)
@example(seed=7668, deaths=[Death(at=7, loses_last=False)])
def test_a_random_run_that_dies_at_any_facts_comes_to_the_same_end(
    seed: int, deaths: Sequence[Death]
) -> None:
    """A-26 … A-35 over crashes, for recipes that nobody wrote."""
    quiet, killed = PlayedRun(seed), PlayedRun(seed)
    quiet.play()
    killed.play(*deaths)
    seen = Seen(open_at_kills=killed.open_at_kills)
    ends = [asyncio.run(outline_of(run.journal)) for run in (killed, quiet)]
    faults = [
        *repeated_work(killed.entries()),
        *wrong_effects(killed.world, quiet.world, seen),
        *differences_of(ends[0], ends[1]),
    ]
    assert not faults, "\n".join(faults)
