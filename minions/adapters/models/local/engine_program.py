"""The program of the child process: loads the weights, serves them on loopback, ends with us.

It is started by its path and imports nothing of ours. It gets its order as one line of JSON on
standard input, so that neither key nor path stands on a command line, and answers with one line on
what was its standard output. Then it waits for the end of its input, which comes when the parent
closes it or dies.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO, Final, TypedDict
from urllib.parse import urlsplit

_PR_SET_PDEATHSIG: Final = 1
_WARNINGS: Final = 3
"""The engine's word for how much it logs: warnings and errors."""


class EngineOrder(TypedDict):
    """What the engine is to load, and how."""

    weights: str
    """Path of the GGUF file."""
    name: str
    """What answers call the model."""
    key: str
    """The key that requests have to send."""
    context_tokens: int
    """Tokens of the context of each slot."""
    slots: int
    """Requests that are answered at a time."""
    threads: int
    most_tokens: int
    """Tokens of an answer to a request that has no limit of its own."""
    cache_mib: int
    """Memory for the beginnings of prompts that no slot holds any more."""
    packages: str
    """The folder of the engine's package; it is searched last."""


StartServer = Callable[[EngineOrder], tuple[object, int]]
"""Starts the server; gives what has to be kept alive, and the port."""


def main() -> None:
    """The child process with the real engine."""
    serve(start_llama)


def serve(start: StartServer) -> None:
    """Start the server, say its port, and wait for the end of the input."""
    _end_with_parent()
    answers, orders = _own_streams()
    order: EngineOrder = json.loads(orders.readline())
    sys.path.append(order["packages"])
    try:
        _server, port = start(order)
    except Exception as error:  # noqa: BLE001  # the parent shows the last line; a traceback says less
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        sys.exit(1)
    answers.write(json.dumps({"port": port}).encode() + b"\n")
    answers.flush()
    while orders.read(4096):
        pass
    os._exit(0)  # requests in flight are of nobody any more; native threads are not waited for


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """The way to the parent; native code that prints to standard output writes to the log."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers, sys.stdin.buffer


def _end_with_parent() -> None:
    """Linux ends the process with the parent, also while native code keeps Python from looking."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is meant for the parent
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold prompts
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_llama(order: EngineOrder) -> tuple[object, int]:
    """The server of llama.cpp, as `xllamacpp` brings it along."""
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = order["weights"]
    params.port = 0
    params.api_keys = [order["key"]]
    params.n_parallel, params.n_ctx = order["slots"], order["context_tokens"] * order["slots"]
    params.n_predict = order["most_tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    _set_if_known(
        params,
        hostnames=["127.0.0.1"],
        hostname="127.0.0.1",
        model_alias=_alias(params, order["name"]),
        cache_ram_mib=order["cache_mib"],
        verbosity=_WARNINGS,
        ui=False,
        endpoint_slots=False,
        offline=True,
    )
    server = llama.Server(params)
    return server, urlsplit(str(server.listening_address)).port or 0


def _alias(params: object, name: str) -> object:
    """What the server calls the model: otherwise everybody on this machine could ask for its path.
    Newer engines take several names.
    """
    return {name} if isinstance(getattr(params, "model_alias", None), set) else name


def _set_if_known(params: object, **values: object) -> None:
    """Versions of the engine differ in the settings that they have."""
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


if __name__ == "__main__":
    main()
