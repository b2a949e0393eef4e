"""What `minions.run` keeps in a process is closed at its end, and belongs to one process."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from minions.testing import ChatEndpoint, endpoint

HEAD = """\
import minions as m
SET = "id: s\\nsteps:\\n  - {id: a, set: {n: 1}}\\n"
"""


async def _output_of(code: str, **environ: str) -> tuple[int | None, str]:
    """Exit code, and everything it wrote; warnings are errors, also those at the very end."""
    # Not `-X dev`: its event loop also tells of what took long, as all does on a busy machine.
    strict = ("-W", "error::ResourceWarning", "-W", "error::RuntimeWarning")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *strict, "-c", HEAD + code),
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_connections_are_kept_from_run_to_run_and_closed_at_the_end() -> None:
    async with ChatEndpoint(default=endpoint.answer("Hi.")) as server:
        recipe = f"""
ASK = '''
id: ask
model: {{name: ollama/tiny, base_url: "{server.base_url}"}}
steps:
  - {{id: a, goal: Speak., completion: text}}
'''
recipe = m.load(ASK)
print(m.run(recipe).unwrap(), m.run(recipe).unwrap())
"""
        assert await _output_of(recipe) == (0, "Hi. Hi.\n")
    assert (len(server.requests), server.connections) == (2, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
async def test_a_forked_process_leaves_its_parents_loop_alone() -> None:
    code = """
import os
m.run(SET)
child = os.fork()
m.run(SET)
if child:
    _, status = os.waitpid(child, 0)
    m.run(SET)
    print("ended", status)
"""
    assert await _output_of(code) == (0, "ended 0\n")


async def test_the_end_of_a_thread_leaves_nothing_open() -> None:
    code = """
import threading
thread = threading.Thread(target=lambda: print(m.run(SET).unwrap()))
thread.start()
thread.join()
"""
    assert await _output_of(code) == (0, "{'n': 1}\n")
