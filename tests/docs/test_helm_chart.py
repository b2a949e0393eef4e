"""The chart for Kubernetes: what it renders to, and that server and workers of it and of compose
work together.

`helm` renders and lints where it is installed. What it rendered is kept beside the values
(`helm_chart/NAME.rendered.yaml`), so that the rest is tested everywhere. If the two differ:
`helm template shop docs/deploy/helm --namespace work --values FILE > RENDERED`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import click
import jsonschema
import pytest
import yaml

from forked_commands import PROGRAM, ForkedCommand
from minions import __version__
from minions.interfaces.cli.main import command as minions
from patience import HANG_S
from serving import Serving

DEPLOY: Final = Path(__file__).parents[2] / "docs" / "deploy"
CHART: Final = DEPLOY / "helm"
KEPT: Final = Path(__file__).parent / "helm_chart"
HELM: Final = shutil.which("helm")
NAMES: Final = ("least", "most")
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text("utf-8"))
TOKEN: Final = "a-token-of-callers"

Rendered = Mapping[str, Mapping[str, Any]]  # Any: manifests, taken apart here


def _manifests(text: str) -> Rendered:
    found = [each for each in yaml.safe_load_all(text) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


@pytest.fixture(params=NAMES)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return _manifests((KEPT / f"{request.param}.rendered.yaml").read_text("utf-8"))


def _pods(rendered: Rendered) -> Iterator[Mapping[str, Any]]:  # Any: as above
    for each in rendered.values():
        if each["kind"] == "Deployment":
            yield each["spec"]["template"]["spec"]


@pytest.mark.skipif(HELM is None, reason="helm is missing")
@pytest.mark.parametrize("name", NAMES)
def test_the_chart_renders_to_what_is_kept_and_has_no_fault(name: str) -> None:
    values = ("--values", str(KEPT / f"{name}.yaml"))
    rendered = _helm("template", "shop", str(CHART), "--namespace", "work", *values)
    assert _manifests(rendered) == _manifests((KEPT / f"{name}.rendered.yaml").read_text("utf-8"))
    _helm("lint", "--strict", *values, str(CHART))


def _helm(*words: str) -> str:
    assert HELM is not None
    done = subprocess.run(
        [HELM, *words], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_chart_has_the_version_of_minions() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_what_nobody_can_guess_has_to_be_given_and_nothing_unknown() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert _faults(values) == ["database.secret", "image.repository", "server.tokenSecret"]
    for name in NAMES:
        given = yaml.safe_load((KEPT / f"{name}.yaml").read_text("utf-8"))
        assert _faults(_merge(values, given)) == []
    wrong: tuple[object, ...] = (
        {"workers": {"a": {"slot": 3}}},
        {"databse": {}},
        {"server": {"replicas": "2"}},
    )
    for bad in wrong:
        assert set(_faults(_merge(values, bad))) > set(_faults(values))


def _faults(values: object) -> list[str]:
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(values)
    return sorted(".".join(str(part) for part in each.absolute_path) for each in found)


def _merge(values: Any, given: Any) -> Any:  # Any: YAML, merged as helm does
    if not isinstance(values, dict) or not isinstance(given, dict):
        return given
    both = {**values, **{key: _merge(values.get(key), each) for key, each in given.items()}}
    return {key: each for key, each in both.items() if each is not None}


def test_every_command_of_a_pod_can_be_parsed(rendered: Rendered) -> None:
    for pod in _pods(rendered):
        for container in pod["containers"]:
            name, *words = container["args"]
            command = minions.get_command(click.Context(minions), name)
            assert command is not None
            # A command keeps the help option of its first context, whose names it has.
            with command.make_context(name, words, **minions.context_settings) as context:
                assert not context.args


def test_a_worker_has_the_time_to_drain_before_it_is_killed(rendered: Rendered) -> None:
    pods = [pod for pod in _pods(rendered) if pod["containers"][0]["name"] == "worker"]
    assert pods
    for pod in pods:
        args = pod["containers"][0]["args"]
        drain = int(args[args.index("--drain") + 1].removesuffix("s"))
        assert pod["terminationGracePeriodSeconds"] >= drain + 15


def test_a_secret_is_named_and_never_written_down(rendered: Rendered) -> None:
    """Keys and passwords come from secrets; tokens as files that nobody else may read."""
    for pod in _pods(rendered):
        (container,) = pod["containers"]
        given = [each["name"] for each in container["env"] if "value" in each]
        assert not [name for name in given if "PASSWORD" in name or name.endswith("KEY")]
        files = [word for word in container["args"] if word.startswith("/run/minions/")]
        if files:
            (copy,) = pod["initContainers"]
            assert "install -m 600" in copy["command"][-1]
            (projected,) = [each for each in pod["volumes"] if each["name"] == "secrets"]
            paths = {
                item["path"]
                for source in projected["projected"]["sources"]
                for item in source["secret"]["items"]
            }
            assert {Path(each).name for each in files} <= paths


def test_services_and_scalers_find_the_pods_that_they_mean(rendered: Rendered) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in rendered.items()
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    for each in rendered.values():
        if each["kind"] == "Service":
            selector = each["spec"]["selector"].items()
            assert len([name for name in labels if selector <= labels[name].items()]) == 1
        elif each["kind"] == "HorizontalPodAutoscaler":
            target = each["spec"]["scaleTargetRef"]
            scaled = rendered[f"{target['kind']}/{target['name']}"]
            assert "replicas" not in scaled["spec"]  # else each upgrade would undo its work


# --- a server and a worker, as they are started there ---------------------------------------------


@attrs.frozen
class Release:
    """The commands of a server and of a worker, and the probes of each by its path and headers."""

    server: tuple[str, ...]
    worker: tuple[str, ...]
    probes: Mapping[str, tuple[tuple[str, str], ...]]
    """By role: path, and the name of the host that is asked for; empty: that of the address."""


def _release_of_chart(name: str) -> Release:
    rendered = _manifests((KEPT / f"{name}.rendered.yaml").read_text("utf-8"))
    by_role = {pod["containers"][0]["name"]: pod["containers"][0] for pod in _pods(rendered)}
    return Release(
        server=tuple(by_role["server"]["args"]),
        worker=tuple(by_role["worker"]["args"]),
        probes={role: tuple(_probes_of(container)) for role, container in by_role.items()},
    )


def _probes_of(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:  # Any: as above
    for key in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[key]["httpGet"]
        (host,) = [each["value"] for each in get.get("httpHeaders", [])] or [""]
        yield get["path"], host


def _release_of_compose() -> Release:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    checked = re.search(
        r"http://127\.0\.0\.1:8642(\S+)'", services["server"]["healthcheck"]["test"][-1]
    )
    assert checked is not None
    of_image = re.search(
        r"http://127\.0\.0\.1:8643([^']+)'", (DEPLOY / "Dockerfile").read_text("utf-8")
    )
    assert of_image is not None
    return Release(
        server=tuple(services["server"]["command"]),
        worker=tuple(services["worker"]["command"]),
        probes={"server": ((checked[1], ""),), "worker": ((of_image[1], ""),)},
    )


RELEASES: Final = {
    **{name: _release_of_chart(name) for name in NAMES},
    "compose": _release_of_compose(),
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_worker_executes_what_the_server_submits_and_both_are_found_ready(
    name: str, tmp_path: Path, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = RELEASES[name]
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "adds.yaml").write_text(
        'id: adds\nsteps:\n  - {id: sum, set: {n: "{{ 1 + 1 }}"}}\noutput: "{{ sum.n }}"\n'
    )
    for token in ("callers", "streams", "token"):
        (tmp_path / token).write_text(TOKEN)
        (tmp_path / token).chmod(0o600)
    monkeypatch.setenv("MINIONS_DB", empty_postgres_url)
    monkeypatch.setenv("MINIONS_TRUST", "1")
    with _started_server(tmp_path, release) as server, _started_worker(tmp_path, release) as port:
        for role, place in (("server", server.port), ("worker", port)):
            for path, host in release.probes[role]:
                assert _settled(place, path, host) == 200, (role, path)
        run_id = server.ask("POST", "/runs", {"recipe": "adds"})["run_id"]
        with server.follow(f"/runs/{run_id}/events") as events:
            assert [event.type for event in events][-1] == "run_completed"
        assert server.ask("GET", f"/runs/{run_id}")["output"] == 2


def test_the_server_refuses_a_probe_that_names_the_pod(tmp_path: Path) -> None:
    """Which is why probes of the chart name a host."""
    (tmp_path / "callers").write_text(TOKEN)
    (tmp_path / "callers").chmod(0o600)
    (tmp_path / "recipes").mkdir()
    words = ("--host", "0.0.0.0", "--port", "0", "--token-file", "callers", "--no-store")
    with Serving.of(tmp_path, *PROGRAM, "serve", *words) as server:
        assert _status(server.port, "/api/v1/health", "10.0.0.7:8642") == 421


@contextmanager
def _started_server(folder: Path, release: Release) -> Iterator[Serving]:
    words = [_here(word, folder) for word in release.server]
    words = [*words, "--port", "0"] if "--port" not in words else words
    with Serving.of(folder, *PROGRAM, *words) as server:
        server.token = TOKEN
        yield server


@contextmanager
def _started_worker(folder: Path, release: Release) -> Iterator[int]:
    words = [_here(word, folder) for word in release.worker]
    with ForkedCommand(
        [*PROGRAM, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            found = re.search(r"health on port (\d+)", line)
            assert found is not None, line
            yield int(found[1])
        finally:
            worker.terminate()
            worker.communicate(timeout=HANG_S)


def _here(word: str, folder: Path) -> str:
    """The word with a port that is free, and files and addresses of this machine."""
    if word.startswith("/run/"):
        return str(folder / Path(word).name)
    return word.replace("$(POD_IP)", "127.0.0.1").replace("8642", "0").replace(":8643", ":0")


def _settled(port: int, path: str, host: str) -> int:
    """The status once it is no 503: a probe is repeated while a process starts."""
    for _ in range(600):
        if (status := _status(port, path, host)) != 503:
            return status
        time.sleep(0.1)
    return 503


def _status(port: int, path: str, host: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if host:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
