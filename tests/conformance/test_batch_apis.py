"""Model calls through the batches of each provider: one suite for the three forms."""

from __future__ import annotations

import pytest

from batch_worlds import HOUR_S, BatchWorld, model_at
from minions.contracts.executions import RunStatus
from minions.testing.batch_endpoint import BatchEndpoint, BatchForm

FORMS = pytest.mark.parametrize("form", BatchForm)


@FORMS
def test_runs_go_step_by_step_through_batches_at_half_the_price(form: BatchForm) -> None:
    """A-177."""
    world = BatchWorld()

    async def run() -> None:
        async with BatchEndpoint(form, now=world.time.now, takes_s=HOUR_S) as server:
            results = await world.run_all(model_at(server), world.services("a"), 20)
            assert [each.status for each in results] == [RunStatus.COMPLETED] * 20
            assert [len(each.requests) for each in server.batches.values()] == [20, 20]
            assert set(server.paid.values()) == {1}
            assert server.paid.total() == 40
            assert not server.live
            for each in results:
                assert each.usage.cost_usd == pytest.approx(2 * 0.07)

    world.time.run(run())
