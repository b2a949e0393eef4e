from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.http.request_rules import origin_of, server_address
from minions.adapters.models.endpoints import (
    Endpoint,
    OperatorModels,
    ProviderConfig,
    resolve_endpoint,
    usual_server,
)
from minions.contracts.calls import ModelCapabilities
from minions.contracts.instructions import OutputMode
from minions.contracts.model_endpoints import (
    EndpointLimits,
    ModelApi,
    check_base_url,
    is_loopback_url,
)
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.recipe.model_config import ModelConfig

OPENAI_URL = "https://api.openai.com/v1"
KEYS = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-ant", "OTHER": "sk-other"}
JSON_SCHEMA = ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA)


def resolve(
    name: str = "openai/m",
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    environ: Mapping[str, str] = KEYS,
    providers: Mapping[str, ProviderConfig] | None = None,
    trusted: tuple[str, ...] = (),
    listed: tuple[str, ...] = (),
) -> Endpoint:
    return resolve_endpoint(
        name,
        ModelConfig(base_url=base_url, api_key_env=api_key_env),
        environ,
        OperatorModels(
            providers=providers or {},
            trusted_hosts=frozenset(trusted),
            recipe_key_variables=frozenset(listed),
        ),
    )


def key_for(base_url: str, *, trusted: tuple[str, ...] = ()) -> str | None:
    return resolve(base_url=base_url, trusted=trusted).api_key


# --- the providers we know ---------------------------------------------------------------------


def test_openai_is_at_its_own_url_with_its_key() -> None:
    assert resolve("openai/gpt-x") == Endpoint(
        provider="openai",
        model="gpt-x",
        base_url=OPENAI_URL,
        api_key="sk-openai",
        capabilities=JSON_SCHEMA,
    )


def test_anthropic_is_asked_in_its_own_form_with_a_schema_where_the_model_takes_one() -> None:
    """A-134."""
    made = Endpoint(
        provider="anthropic",
        model="claude-x",
        base_url="https://api.anthropic.com/v1",
        api_key="sk-ant",
        capabilities=ModelCapabilities(tools_with_schema=True, defers_tools=True),
        api=ModelApi.MESSAGES,
    )
    assert resolve("anthropic/claude-x") == made
    older = resolve("anthropic/claude-3-5-haiku-20241022").capabilities
    assert older == ModelCapabilities(output_mode=OutputMode.TOOLS, tools_with_schema=True)


def test_gemini_is_built_in_in_its_own_form() -> None:
    """A-134."""
    found = resolve("gemini/gemini-2.5-flash", environ={"GEMINI_API_KEY": "g-key"})
    assert (found.api, found.api_key) == (ModelApi.GEMINI, "g-key")
    assert found.base_url == "https://generativelanguage.googleapis.com/v1beta"
    assert not found.capabilities.tools_with_schema


@pytest.mark.parametrize(
    ("provider", "url", "mode"),
    [
        ("anthropic", "https://api.anthropic.com/v1", OutputMode.TOOLS),
        (
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            OutputMode.JSON_SCHEMA,
        ),
    ],
)
def test_the_compatible_endpoint_is_one_word_away(
    provider: str, url: str, mode: OutputMode
) -> None:
    found = resolve(
        f"{provider}/m",
        environ={"GEMINI_API_KEY": "g", "ANTHROPIC_API_KEY": "a"},
        providers={provider: ProviderConfig(api=ModelApi.CHAT)},
    )
    assert (found.api, found.base_url) == (ModelApi.CHAT, url)
    assert found.capabilities == ModelCapabilities(output_mode=mode)


def test_another_address_is_asked_for_chat_completions_unless_its_form_is_said() -> None:
    """As it was before there were other forms: such an address may be any gateway's."""
    url = "https://gateway.example/v1"
    config = ProviderConfig(base_url=url, api_key_env="GATE")
    environ = {"GATE": "k", "ANTHROPIC_API_KEY": "a"}
    found = resolve("anthropic/m", environ=environ, providers={"anthropic": config})
    assert (found.api, found.base_url, found.api_key) == (ModelApi.CHAT, url, "k")
    own = evolve(config, api=ModelApi.MESSAGES)
    assert resolve("lab/m", environ=environ, providers={"lab": own}).api is ModelApi.MESSAGES


def test_openai_is_asked_for_responses_where_the_operator_says_so() -> None:
    found = resolve("openai/gpt-5", providers={"openai": ProviderConfig(api=ModelApi.RESPONSES)})
    assert found.api is ModelApi.RESPONSES
    assert found.capabilities.tools_with_schema
    assert resolve("openai/gpt-5").api is ModelApi.CHAT


def test_every_form_but_that_of_the_compatible_endpoint_takes_a_schema() -> None:
    config = ProviderConfig(api=ModelApi.RESPONSES)
    found = resolve("anthropic/m", providers={"anthropic": config}).capabilities
    assert found.output_mode is OutputMode.JSON_SCHEMA


def test_a_provider_of_its_own_is_told_with_its_address_and_variable() -> None:
    assert usual_server("openai") == (OPENAI_URL, "OPENAI_API_KEY")
    assert usual_server("groq") == (None, None)


def test_ollama_needs_no_key_and_gets_none() -> None:
    assert resolve("ollama/llama3.2:3b") == Endpoint(
        provider="ollama",
        model="llama3.2:3b",
        base_url="http://127.0.0.1:11434/v1",
        api_key=None,
        capabilities=evolve(JSON_SCHEMA, takes_batches=False),
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("  ", "http://127.0.0.1:11434/v1"),
        ("gpu-box", "http://gpu-box:11434/v1"),
        ("gpu-box:8080", "http://gpu-box:8080/v1"),
        (":8080", "http://127.0.0.1:8080/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        ("http://gpu-box", "http://gpu-box/v1"),
        ("http://", "http://127.0.0.1/v1"),
        ("https://gpu-box:8443/", "https://gpu-box:8443/v1"),
        ("https://gpu-box/ollama", "https://gpu-box/ollama/v1"),
        ("http://gpu-box:1/v1", "http://gpu-box:1/v1"),
        ("::1", "http://[::1]:11434/v1"),
        ("[::]:8080", "http://[::1]:8080/v1"),
        ("'gpu-box'", "http://gpu-box:11434/v1"),
    ],
)
def test_ollama_host_is_read_in_all_its_forms(said: str, expected: str) -> None:
    assert resolve("ollama/m", environ={"OLLAMA_HOST": said}).base_url == expected


@pytest.mark.parametrize("said", ["a b", "u:p@host", "host:port", "host:99999"])
def test_an_ollama_host_that_is_none_is_refused_by_its_name(said: str) -> None:
    with pytest.raises(UsageError, match="The environment variable OLLAMA_HOST is") as caught:
        resolve("ollama/m", environ={"OLLAMA_HOST": said})
    assert caught.value.error_code == "bad-base-url"


def test_everything_after_the_first_slash_is_the_model() -> None:
    assert resolve("ollama/hf.co/org/model:q4").model == "hf.co/org/model:q4"


@pytest.mark.parametrize("name", ["llama3", "", "/", "openai/", "/gpt", " "])
def test_a_name_without_provider_and_model_is_refused_with_examples(name: str) -> None:
    with pytest.raises(UsageError, match=r"`provider/model`.*`ollama/llama3\.2`") as caught:
        resolve(name)
    assert caught.value.error_code == "bad-model-name"
    assert (f"openai/{name}" in caught.value.suggestions) is ("/" not in name)


def test_an_unknown_provider_is_refused_with_the_near_names_and_the_way_to_add_one() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("olama/m", providers={"groq": ProviderConfig(base_url="https://g/v1")})
    error = caught.value
    assert (error.error_code, error.suggestions) == ("unknown-provider", ("ollama",))
    for words in (
        "'olama'. Did you mean 'ollama'?",
        "anthropic, gemini, groq, ollama, openai",
        "[providers.olama] with base_url",
        "minions.toml",
    ):
        assert words in str(error)


# --- what the operator configures ----------------------------------------------------------------


def test_an_operators_provider_is_as_configured() -> None:
    config = ProviderConfig(
        base_url="https://groq.example/openai/v1/",
        api_key_env="OTHER",
        output_mode=OutputMode.JSON,
        tools_with_schema=True,
    )
    assert resolve("groq/m", providers={"groq": config}) == Endpoint(
        provider="groq",
        model="m",
        base_url="https://groq.example/openai/v1",
        api_key="sk-other",
        capabilities=ModelCapabilities(
            output_mode=OutputMode.JSON,
            tools_with_schema=True,
            is_mode_declared=True,
            is_together_declared=True,
        ),
    )


def test_what_the_operator_says_of_images_and_strict_holds_for_all_models() -> None:
    for said in (True, False):
        config = ProviderConfig(images=said, strict=said)
        found = resolve(providers={"openai": config}).capabilities
        assert (found.takes_images, found.takes_strict) == (said, said)


def test_an_operators_limits_hold_at_each_of_the_providers_servers_and_at_no_other() -> None:
    limits, url = EndpointLimits(max_concurrency=2), "https://gateway.example/v1"
    providers = {"openai": ProviderConfig(base_url=url, limits=limits, headers={"X-Team": "lab"})}
    for own in (None, url, OPENAI_URL):
        found = resolve(base_url=own, providers=providers)
        assert (found.limits, found.headers) == (limits, {"X-Team": "lab"})
    for other in ("https://else.example/v1", "https://gateway.example:8443/v1"):
        found = resolve(base_url=other, providers=providers)
        assert (found.limits, found.headers) == (EndpointLimits(), {})


def test_an_operators_headers_go_where_its_key_may_go() -> None:
    """A value may stand in the environment; no message and no repr shows it."""
    headers = {"X-Team": "lab", "X-Gate": "env:OTHER"}
    config = ProviderConfig(base_url="https://gate.example/v1", headers=headers)
    endpoint = resolve("lab/m", providers={"lab": config})
    assert endpoint.headers == {"X-Team": "lab", "X-Gate": "sk-other"}
    assert "sk-other" not in repr(endpoint)
    elsewhere = resolve("lab/m", base_url="https://else.example/v1", providers={"lab": config})
    assert elsewhere.headers == {}
    trusted = resolve(
        "lab/m",
        base_url="https://else.example/v1",
        providers={"lab": config},
        trusted=("else.example",),
    )
    assert trusted.headers == endpoint.headers


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({"X-Gate": "env:GONE"}, "no-header-value", "export GONE=..."),
        ({"X-Gate": "a\nb"}, "bad-header", "'X-Gate' of [providers.lab]"),
        ({"Content-Type": "text/plain"}, "bad-header", "Content-Type"),
        ({"transfer-encoding": "chunked"}, "bad-header", "transfer-encoding"),
        ({"X Gate": "a"}, "bad-header", "X Gate"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(
    headers: Mapping[str, str], code: str, words: str
) -> None:
    config = ProviderConfig(base_url="https://gate.example/v1", headers=headers)
    with pytest.raises(EnvironmentRefusedError) as caught:
        resolve("lab/m", providers={"lab": config})
    assert caught.value.error_code == code
    assert words in str(caught.value)


def test_an_operators_provider_may_need_no_key() -> None:
    providers = {"local": ProviderConfig(base_url="http://127.0.0.1:8000/v1")}
    assert resolve("local/m", providers=providers, environ=os.environ).api_key is None


def test_an_operators_provider_without_a_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\[providers\.mine\] has no `base_url`"):
        resolve("mine/m", providers={"mine": ProviderConfig(api_key_env="OTHER")})


def test_an_operators_url_for_openai_replaces_its_own_and_gets_its_key() -> None:
    providers = {"openai": ProviderConfig(base_url="https://gateway.example/v1")}
    endpoint = resolve(providers=providers)
    assert (endpoint.base_url, endpoint.api_key) == ("https://gateway.example/v1", "sk-openai")
    assert resolve(providers=providers, environ={}).api_key is None


def test_openai_base_url_counts_as_the_operators() -> None:
    environ = {**KEYS, "OPENAI_BASE_URL": "https://gateway.example:8000/v1"}
    endpoint = resolve(environ=environ)
    assert (endpoint.base_url, endpoint.api_key) == ("https://gateway.example:8000/v1", "sk-openai")
    del environ["OPENAI_API_KEY"]
    assert resolve(environ=environ).api_key is None


def test_the_configuration_comes_before_the_environments_url_and_both_may_have_the_key() -> None:
    environ = {**KEYS, "OPENAI_BASE_URL": "https://two.example/v1"}
    providers = {"openai": ProviderConfig(base_url="https://one.example/v1")}
    assert resolve(environ=environ, providers=providers).base_url == "https://one.example/v1"
    again = resolve(base_url="https://two.example/v1", environ=environ, providers=providers)
    assert again.api_key == "sk-openai"


def test_a_key_for_the_operators_url_does_not_go_to_the_providers_own() -> None:
    config = ProviderConfig(base_url="https://gateway.example/v1", api_key_env="OTHER")
    providers = {"openai": config}
    assert resolve(providers=providers).api_key == "sk-other"
    assert resolve(base_url=OPENAI_URL, providers=providers).api_key == "sk-openai"


def test_another_key_variable_for_the_own_url_is_honoured() -> None:
    providers = {"openai": ProviderConfig(api_key_env="OTHER", output_mode=OutputMode.TOOLS)}
    endpoint = resolve(providers=providers)
    assert (endpoint.base_url, endpoint.api_key) == (OPENAI_URL, "sk-other")
    assert endpoint.capabilities.output_mode is OutputMode.TOOLS


# --- where the key may go ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base_url",
    [
        OPENAI_URL,
        "https://api.openai.com",
        "https://API.OpenAI.com:443/v2",
        "HTTPS://api.openai.com./v1",
    ],
)
def test_a_recipes_url_at_the_providers_own_origin_gets_the_key(base_url: str) -> None:
    assert key_for(base_url) == "sk-openai"


@pytest.mark.parametrize(
    "base_url",
    [
        "https://evil.example/v1",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.evil.example/v1",
        "https://evil.example/api.openai.com",
        "https://api-openai.com/v1",
        "http://127.0.0.1:11434/v1",
        "http://localhost:9/v1",
    ],
)
def test_a_recipes_other_url_gets_no_key(base_url: str) -> None:
    endpoint = resolve(base_url=base_url)
    assert (endpoint.base_url, endpoint.api_key) == (base_url, None)
    assert resolve(base_url=base_url, api_key_env="OTHER", listed=("OTHER",)).api_key is None
    assert resolve(base_url=base_url, environ={}).api_key is None


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [
        (("mine.example",), "sk-openai"),
        (("MINE.example ",), "sk-openai"),
        (("mine.example:8443",), "sk-openai"),
        (("mine.example:443",), None),
        (("example",), None),
        (("other.example", "evil-mine.example"), None),
    ],
)
def test_a_trusted_host_gets_the_key(trusted: tuple[str, ...], expected: str | None) -> None:
    assert key_for("https://mine.example:8443/v1", trusted=trusted) == expected


def test_a_listed_key_variable_of_a_recipe_is_honoured_where_a_key_may_go() -> None:
    assert resolve(api_key_env="OTHER", listed=("OTHER",)).api_key == "sk-other"
    assert resolve("ollama/m", api_key_env="OTHER", listed=("OTHER",)).api_key == "sk-other"
    trusted = resolve(
        base_url="https://t.example", api_key_env="OTHER", trusted=("t.example",), listed=("OTHER",)
    )
    assert trusted.api_key == "sk-other"


def test_a_recipe_may_name_the_variable_that_is_the_providers_anyway() -> None:
    assert resolve(api_key_env="OPENAI_API_KEY").api_key == "sk-openai"
    lab = ProviderConfig(base_url="https://lab.example", api_key_env="OTHER")
    assert resolve("lab/m", api_key_env="OTHER", providers={"lab": lab}).api_key == "sk-other"
    with pytest.raises(UsageError, match="which is not a key of the provider 'openai'"):
        resolve(api_key_env="OPENAI_API_KEY", providers={"openai": lab})


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "HOME", "ANTHROPIC_API_KEY", ""])
@pytest.mark.parametrize("name", ["openai/m", "ollama/m", "lab/m"])
@pytest.mark.parametrize(
    "base_url", [None, OPENAI_URL, "https://t.example", "https://evil.example", "http://127.0.0.1"]
)
def test_a_recipe_cannot_have_another_secret_sent(
    name: str, variable: str, base_url: str | None
) -> None:
    with pytest.raises(UsageError, match="it is not sent") as caught:
        resolve(
            name,
            base_url=base_url,
            api_key_env=variable,
            environ={**KEYS, variable: "secret", "OLLAMA_HOST": "http://gpu-box"},
            providers={"lab": ProviderConfig(base_url="https://lab.example", api_key_env="OTHER")},
            trusted=("t.example",),
        )
    assert caught.value.error_code == "key-not-allowed"


def test_the_refusal_of_a_key_variable_says_which_setting_allows_it() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(api_key_env="HOME")
    assert caught.value.message == (
        "The recipe's api_key_env names the environment variable 'HOME', which is not a key of the "
        "provider 'openai' (its own is OPENAI_API_KEY), so it is not sent. If recipes may use it, "
        'set recipe_key_variables = ["HOME"] in minions.toml, or api_key_env of '
        "[providers.openai]."
    )
    assert caught.value.suggestions == ('recipe_key_variables = ["HOME"]',)


@pytest.mark.parametrize("value", [None, "", "  "])
@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "MY_KEY"])
def test_a_missing_key_is_refused_with_its_variable_and_what_to_try(
    variable: str, value: str | None
) -> None:
    environ = {} if value is None else {variable: value}
    with pytest.raises(EnvironmentRefusedError) as caught:
        resolve(api_key_env=variable, environ=environ, listed=("MY_KEY",))
    assert caught.value.error_code == "no-key"
    assert f"'openai/m' needs a key, but the environment variable {variable} is not set" in str(
        caught.value
    )
    assert caught.value.suggestions[0] == f"export {variable}=..."


@pytest.mark.parametrize("base_url", [None, OPENAI_URL])
def test_the_providers_own_server_is_not_asked_without_its_key(base_url: str | None) -> None:
    with pytest.raises(EnvironmentRefusedError) as caught:
        resolve(base_url=base_url, environ={})
    assert caught.value.error_code == "no-key"


def test_only_the_variable_that_the_operator_set_for_a_url_is_sent_unencrypted() -> None:
    lab = ProviderConfig(base_url="http://lab.example/v1", api_key_env="OTHER")
    assert resolve("lab/m", providers={"lab": lab}).api_key == "sk-other"
    with pytest.raises(EnvironmentRefusedError) as caught:
        resolve(
            "lab/m",
            api_key_env="OPENAI_API_KEY",
            providers={"lab": lab},
            listed=("OPENAI_API_KEY",),
        )
    assert caught.value.error_code == "insecure-base-url"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://host.example/v1", "https://host.example"),
        ("https://host.example:443/v1", "https://host.example"),
        ("http://host.example:80", "http://host.example"),
        ("http://host.example:443", "http://host.example:443"),
        ("https://host.example:80", "https://host.example:80"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_an_origin_is_shown_without_the_usual_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_a_url_without_a_host_is_no_server_of_this_machine() -> None:
    assert not is_loopback_url("file:///v1")
    assert server_address("http:///v1") == ("http", "", 80)


def test_a_key_variable_that_was_named_must_be_set_wherever_it_may_go() -> None:
    config = ProviderConfig(base_url="https://g.example/v1", api_key_env="GONE")
    with pytest.raises(EnvironmentRefusedError, match="GONE is not set"):
        resolve("groq/m", providers={"groq": config})
    with pytest.raises(EnvironmentRefusedError, match="GONE is not set"):
        resolve(
            base_url="https://t.example",
            api_key_env="GONE",
            trusted=("t.example",),
            listed=("GONE",),
        )


def test_a_trusted_host_may_do_without_a_key() -> None:
    endpoint = resolve(base_url="https://t.example", trusted=("t.example",), environ={})
    assert endpoint.api_key is None


@pytest.mark.parametrize("key", ["sk-a b", "sk-é", "sk-\nx"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(EnvironmentRefusedError, match="variable OPENAI_API_KEY holds") as caught:
        resolve(environ={"OPENAI_API_KEY": key})
    assert caught.value.error_code == "bad-key"
    assert "sk-" not in str(caught.value)


def test_a_line_break_behind_the_key_does_no_harm() -> None:
    assert resolve(environ={"OPENAI_API_KEY": "sk-1\n"}).api_key == "sk-1"


def test_the_key_is_not_in_the_repr() -> None:
    assert "sk-openai" not in repr(resolve())


def test_only_the_operator_may_let_a_key_travel_unencrypted() -> None:
    config = ProviderConfig(base_url="http://gpu-box:8000/v1", api_key_env="OPENAI_API_KEY")
    assert resolve(providers={"openai": config}).api_key == "sk-openai"
    with pytest.raises(EnvironmentRefusedError, match="unencrypted") as caught:
        key_for("http://gpu-box:8000/v1", trusted=("gpu-box",))
    assert caught.value.error_code == "insecure-base-url"
    assert "sk-openai" not in str(caught.value)


def test_a_url_alone_does_not_let_a_key_travel_unencrypted() -> None:
    said = {**KEYS, "OPENAI_BASE_URL": "http://gpu-box/v1", "OLLAMA_HOST": "gpu-box"}
    url_only = {"openai": ProviderConfig(base_url="http://gpu-box/v1")}
    with pytest.raises(EnvironmentRefusedError, match="unencrypted") as caught:
        resolve(environ=said)
    assert caught.value.error_code == "insecure-base-url"
    with pytest.raises(EnvironmentRefusedError, match="unencrypted"):
        resolve(providers=url_only)
    with pytest.raises(EnvironmentRefusedError, match="unencrypted"):
        resolve("ollama/m", environ=said, api_key_env="OTHER", listed=("OTHER",))
    named = {"openai": ProviderConfig(api_key_env="OTHER")}
    assert resolve(environ=said, providers=named).api_key == "sk-other"
    assert resolve("ollama/m", environ=said).api_key is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9", "a.localhost"])
def test_this_machine_may_get_a_key_unencrypted(host: str) -> None:
    trusted = (host.strip("[]"),)
    assert key_for(f"http://{host}:8000/v1", trusted=trusted) == "sk-openai"


# --- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000",
        "//host/v1",
        "ftp://host/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "https://api.openai.com@evil.example/v1",
        "https://user:hunter2@host/v1",
        "https://api.openai.com\\@evil.example/v1",
        "https://evil.example\\.openai.com/v1",
        "https://host/v1?key=1",
        "https://host/v1#x",
        "https://host/v 1",
        "https://host\n.evil/v1",
        "https://host\t/v1",
        "https://hö.example/v1",
        "https://api.openai。com/v1",
        "https://\u0130.example/v1",
        "https://api.openai.\u212aom/v1",
        "http\u017f://api.openai.com/v1",
        "https://host:99999/v1",
        "https://host:/v1",
        "https://[::1/v1",
    ],
)
def test_a_url_that_two_readers_could_read_differently_is_refused(base_url: str) -> None:
    with pytest.raises(UsageError, match="The recipe's `base_url` is") as caught:
        resolve(base_url=base_url)
    assert caught.value.error_code == "bad-base-url"
    assert "hunter2" not in str(caught.value)


def test_blanks_around_and_slashes_behind_are_taken_off() -> None:
    assert check_base_url(" HTTPS://Host/v1// ", "it") == "https://Host/v1"


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:1", True),
        ("http://0.0.0.0", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_this_machine_is_known_by_its_names(base_url: str, expected: bool) -> None:
    assert is_loopback_url(base_url) is expected


_TAILS = st.text(st.sampled_from("/\\\\@:.?#[]%\n\tae1-_。") | st.characters(), max_size=20)


@given(_TAILS, st.sampled_from(["", "http://", "https://", "https://api.openai.com"]))
def test_the_client_reads_every_accepted_url_as_the_rule_did(tail: str, start: str) -> None:
    try:
        endpoint = resolve(base_url=f"{start}{tail}")
    except UsageError:
        return
    as_sent, as_judged = httpx2.URL(endpoint.base_url), urlsplit(endpoint.base_url)
    assert as_sent.host == as_judged.hostname
    assert as_sent.scheme == as_judged.scheme
    if endpoint.api_key is not None:
        assert as_sent.host.rstrip(".") == "api.openai.com"
        assert (as_sent.scheme, as_sent.port) == ("https", None)
