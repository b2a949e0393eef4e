from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from builders import fake_tool, flaky_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.telemetry.prometheus import PrometheusMetrics
from minions.contracts.calls import ModelFailure
from minions.contracts.executions import RunStatus
from minions.contracts.flow import CallAsk, CircuitState, EndpointState, FlowControl
from minions.contracts.tools import Toolbox
from minions.data.errors import EnvironmentRefusedError
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text

Labels = tuple[tuple[str, str], ...]


def read(text: str) -> Mapping[tuple[str, Labels], float]:
    """Every sample of the page, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float:
    return read(metrics.text()).get((name, tuple(sorted(labels.items()))), 0.0)


def test_each_family_says_what_it_is_and_counts() -> None:
    metrics = PrometheusMetrics()
    metrics.model_attempt_ended("p/m", None, 0.3)
    metrics.model_attempt_ended("p/m", "rate_limit", 0.01)
    metrics.model_tokens("p/m", 10, 5, 0.25)
    metrics.model_tokens("p/m", 10, 5, None)
    families = {each.name: each for each in text_string_to_metric_families(metrics.text())}
    assert families["minions_model_requests"].type == "counter"
    assert families["minions_model_request_seconds"].type == "histogram"
    assert families["minions_runs_active"].type == "gauge"
    assert all(each.documentation for each in families.values())
    assert value(metrics, "minions_model_requests_total", model="p/m", outcome="ok") == 1
    assert value(metrics, "minions_model_requests_total", model="p/m", outcome="rate_limit") == 1
    assert value(metrics, "minions_model_tokens_total", model="p/m", direction="input") == 20
    assert value(metrics, "minions_model_cost_usd_total", model="p/m") == 0.25


def test_buckets_of_a_histogram_add_up_to_its_count() -> None:
    metrics = PrometheusMetrics()
    for seconds in (0.0, 0.004, 0.005, 0.006, 1.0, 7.0, 1e6):
        metrics.model_call_waited("p/m", seconds)
    found = read(metrics.text())
    buckets = {
        float(dict(labels)["le"]): count
        for (name, labels), count in found.items()
        if name == "minions_model_wait_seconds_bucket"
    }
    assert [buckets[bound] for bound in sorted(buckets)] == sorted(buckets.values())
    assert (buckets[0.005], buckets[0.01], buckets[1.0], buckets[math.inf]) == (3, 4, 5, 7)
    assert value(metrics, "minions_model_wait_seconds_count", model="p/m") == 7
    assert value(metrics, "minions_model_wait_seconds_sum", model="p/m") == pytest.approx(
        1000008.015
    )


@given(st.text(max_size=200))
def test_any_name_is_a_label_that_can_be_read_again(name: str) -> None:
    metrics = PrometheusMetrics()
    metrics.tool_call_ended(name, name, 0.1)
    text = metrics.text()
    text.encode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    (sample,) = [each for each in families["minions_tool_calls"].samples if each.value == 1]
    expected = name.replace("\r", " ").encode("utf-8", "replace").decode()[:120]
    assert sample.labels == {"tool": expected, "outcome": expected or "ok"}


def test_names_without_number_do_not_make_the_page_grow_without_end() -> None:
    metrics = PrometheusMetrics()
    for number in range(5_000):
        metrics.model_attempt_ended(f"p/m{number}", None, 0.1)
    found = read(metrics.text())
    series = [labels for name, labels in found if name == "minions_model_requests_total"]
    assert len(series) == 201
    assert value(metrics, "minions_model_requests_total", model="other", outcome="other") == 4_800


def test_without_the_package_counting_works_and_the_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    metrics = PrometheusMetrics()
    metrics.retried("model")
    with pytest.raises(EnvironmentRefusedError, match=r"minions-engine\[server\]") as caught:
        metrics.text()
    assert caught.value.error_code == "missing-extra"


def test_threads_count_together() -> None:
    metrics = PrometheusMetrics()

    def work() -> None:
        for _ in range(2_000):
            metrics.retried("model")
            metrics.step_ended("completed", None, 0.1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "minions_retries_total", what="model") == 8_000
    assert value(metrics, "minions_steps_total", status="completed", error="") == 8_000


class Flow(FlowControl):
    """Has one server, whose circuit is open."""

    async def admit(self, ask: CallAsk) -> object:  # type: ignore[override]  # is not asked
        raise AssertionError

    def states(self) -> tuple[EndpointState, ...]:
        return (
            EndpointState(
                origin="https://h", in_flight=3, waiting=7, circuit=CircuitState.OPEN, held_s=1.5
            ),
        )


def test_the_page_shows_what_happens_at_each_server() -> None:
    found = read(PrometheusMetrics().text(Flow()))
    here = ("endpoint", "https://h")
    assert found["minions_endpoint_in_flight", (here,)] == 3
    assert found["minions_endpoint_waiting", (here,)] == 7
    assert found["minions_endpoint_held_seconds", (here,)] == 1.5
    assert found["minions_endpoint_circuit", (here, ("state", "open"))] == 1
    assert found["minions_endpoint_circuit", (here, ("state", "closed"))] == 0


RECIPE: Final = """
id: counted
retry: {jitter: false, initial_delay: 0}
steps:
  - {id: ask, goal: Ask., tools: [look, other]}
  - {id: again, goal: Again.}
  - {id: bound, set: {x: 1}}
"""


async def test_a_run_counts_its_steps_calls_tokens_and_retries() -> None:
    """A-49."""
    metrics = PrometheusMetrics()
    tools = [flaky_tool(failures=1, result={"sun": True}), fake_tool("other")]
    catalog = Catalog(tools={each.spec.name: each.spec for each in tools})
    answers: list[Answer] = [
        tool_request("look", id="c1"),
        "done",
        ModelFailure(code="rate-limited", message="slow", is_retryable=True),
        "done",
    ]
    executor = AgentExecutor(
        ScriptedModel(answers),
        services=Services(metrics=metrics, sleep=lambda _: asyncio.sleep(0)),
        extensions=Extensions(tools=Toolbox(tuple(tools))),
    )
    result = await executor.execute(load_recipe_text(RECIPE, "counted.yaml", catalog))
    assert result.status is RunStatus.COMPLETED, result.error
    found = read(metrics.text())
    outcomes = [n for (name, _), n in found.items() if name == "minions_model_requests_total"]
    assert sum(outcomes) == 4  # three that were needed, and one attempt more
    assert value(metrics, "minions_retries_total", what="model") == 1
    assert value(metrics, "minions_retries_total", what="tool") == 1
    assert value(metrics, "minions_tool_calls_total", tool="look", outcome="ok") == 1
    assert value(metrics, "minions_steps_total", status="completed", error="") == 3
    assert value(metrics, "minions_runs_total", status="completed") == 1
    assert value(metrics, "minions_runs_active") == 0
