"""The engine's program with another server: what it answers is a matter of the prompt.

`python -I fake_engine_program.py [slow FILE | hang | fail]`
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOW = sys.argv[1:] or ["serve"]
PROGRAM = Path(__file__).parents[1] / "minions/adapters/models/local/engine_program.py"


def start(order: dict[str, Any]) -> tuple[object, int]:  # Any: the program is not imported
    if HOW[0] == "hang":
        time.sleep(600)
    if HOW[0] == "fail":
        sys.stderr.write(f"E the weights are odd, and the key is {order['key']}\n")
        raise RuntimeError("no such architecture: 'odd'")
    if HOW[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while HOW[0] == "slow" and not Path(HOW[1]).exists():
        time.sleep(0.01)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(size))
            if self.headers["Authorization"] != f"Bearer {order['key']}":
                self.answer(401, {"error": {"message": "Invalid API Key"}})
                return
            said = request["messages"][-1]["content"]
            if said == "crash" or ("crash once " in said and first_time(said)):
                sys.stderr.write("E something broke\n")
                sys.stderr.flush()
                os.abort()
            text = json.dumps({"pid": os.getpid(), **{k: order[k] for k in order if k != "key"}})
            message = {"role": "assistant", "content": text}
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self.answer(200, {"choices": [choice], "usage": usage})

        def answer(self, status: int, document: object) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_address[1]


def first_time(said: str) -> bool:
    mark = Path(said.partition("crash once ")[2].split()[0])
    is_first = not mark.exists()
    mark.touch()
    return is_first


if __name__ == "__main__":
    runpy.run_path(str(PROGRAM))["serve"](start)
