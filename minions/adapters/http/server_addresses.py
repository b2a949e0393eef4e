"""Scheme, host and port of a model server's URL: what is compared before a key is sent."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from minions.adapters.http.ip_ranges import is_loopback


def is_loopback_url(base_url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = urlsplit(base_url).hostname or ""
    try:
        return is_loopback(ipaddress.ip_address(host))
    except ValueError:
        return host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")


def server_address(base_url: str) -> tuple[str, str, int]:
    """Scheme, host and port, for comparison."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").rstrip("."), port


def origin_of(base_url: str) -> str:
    """Scheme, host and port as a text, without the scheme's usual port: `https://host.example`."""
    scheme, host, port = server_address(base_url)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" if port == _USUAL_PORTS.get(scheme) else f"{scheme}://{host}:{port}"


_USUAL_PORTS: Final = {"http": 80, "https": 443}


def ollama_url(said: str) -> str:
    """The base URL of a value of OLLAMA_HOST: host, host:port, :port or a URL."""
    scheme, separator, rest = said.strip().strip("\"'").rpartition("://")
    host, slash, path = rest.partition("/")
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    if host.startswith(":") or not host:
        host = f"127.0.0.1{host}"
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):  # noqa: S104  # replaced
        if host == everywhere or host.startswith(f"{everywhere}:"):
            host = here + host.removeprefix(everywhere)
    has_port = re.search(r":[0-9]+$", host.rpartition("]")[2]) is not None
    port = "" if separator or has_port else ":11434"
    path = path.strip("/")
    base = f"{scheme or 'http'}://{host}{port}{slash if path else ''}{path}"
    return base if path.endswith("v1") else f"{base}/v1"
