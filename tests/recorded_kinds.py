"""More kinds of agent work for captures: on files, servers, tables and tools that misbehave."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from minions import AgentResult, Minions, Prompt, RunStatus, ScriptedModel, Tool, tool
from minions.app.capturing.captures import Capture
from minions.data.json_values import JsonValue
from minions.testing import Answer, tool_request
from recorded_works import (
    Results,
    Work,
    World,
    agent_answers,
    agent_model,
    calls_of,
    judge_answers,
    value_at,
)


class WiderWorld(World):
    """The tools of more kinds of work."""

    def tools(self) -> list[Tool]:
        log = self.effects

        @tool(effect="pure", reads="trusted")
        def list_orders(customer: str) -> dict[str, object]:
            """The orders of a customer."""
            count = len(customer) - 2
            return {
                "orders": [
                    {"id": f"{customer.upper()}-{n}", "amount": 40.0 + n * 10, "open": n % 2 == 1}
                    for n in range(1, count + 1)
                ]
            }

        @tool(effect="pure", reads="trusted")
        def get_meeting(meeting: str) -> dict[str, object]:
            """A meeting."""
            day = 10 + len(meeting)
            return {
                "meeting": meeting,
                "start": f"2031-05-{day}T09:30:00+02:00",
                "room": f"R{day}",
            }

        @tool(effect="once")
        def book(date: str, time: str, room: str) -> dict[str, object]:
            """Book a room."""
            log.append(("book", {"date": date, "time": time, "room": room}))
            return {"booked": True}

        @tool(effect="pure", reads="trusted")
        def stock_of(item: str) -> dict[str, object]:
            """How many there are; the first call fails."""
            if self.fails:
                self.fails -= 1
                raise ConnectionError("The warehouse did not answer.")
            return {"item": item, "count": 10 * len(item) + 3}

        @tool(effect="once")
        def order_more(item: str, count: int) -> dict[str, object]:
            """Order more of an item."""
            log.append(("order_more", {"item": item, "count": count}))
            return {"ordered": count}

        @tool(effect="pure", reads="trusted")
        def read_clock() -> dict[str, object]:
            """The time; another one each time."""
            self.polls += 1
            return {"time": f"2031-05-0{self.polls}T08:0{self.polls}:00Z"}

        @tool(effect="pure", reads="trusted")
        def read_archive(name: str) -> dict[str, object]:
            """A large text."""
            return {"name": name, "text": f"{name} " * (1_000_000 // (len(name) + 1)), "pages": 512}

        return [
            *super().tools(),
            *(list_orders, get_meeting, book, stock_of, order_more, read_clock, read_archive),
        ]


def _last_word(task: str) -> str:
    return task.rsplit(maxsplit=1)[-1].strip(".")


def _copy(task: str, results: Results) -> Answer:
    words = task.split()
    match results:
        case []:
            return tool_request("files__read", {"path": words[1]})
        case [read]:
            text = value_at(read, "text")
            return tool_request("files__write", {"path": words[3], "text": text})
    return "Copied."


def _folder(task: str, results: Results) -> Answer:
    """Reads each file of a folder, and marks it in another."""
    folder = _last_word(task)
    if not results:
        return tool_request("files__glob", {"pattern": f"{folder}/*.txt"})
    names = value_at(results[0], "files")
    assert isinstance(names, list)
    if len(results) == 1:
        return calls_of(*(("files__read", {"path": each}) for each in names))
    done = len(results) - 1 - len(names)
    if done < len(names):
        text = str(value_at(results[1 + done], "text"))
        return tool_request(
            "set_label", {"key": names[done], "label": "late" if "late" in text else "fine"}
        )
    return f"Marked {len(names)} files."


def _rows(task: str, results: Results) -> Answer:
    """Orders what a table lists."""
    match results:
        case []:
            return tool_request("files__read", {"path": _last_word(task)})
        case [read]:
            return tool_request("data__parse_csv", {"text": value_at(read, "text")})
    rows = value_at(results[1], "rows")
    assert isinstance(rows, list)
    done = len(results) - 2
    if done < len(rows):
        row = rows[done]
        count = int(str(value_at(row, "count")))
        return tool_request("order_more", {"item": value_at(row, "item"), "count": count})
    return {"ordered": len(rows)}


def _discount(task: str, results: Results) -> Answer:
    order, share = _last_word(task), int(task.split()[1])
    if not results:
        return tool_request("get_order", {"order_id": order})
    amount = round(float(str(value_at(results[0], "amount"))) * share / 100, 2)
    if len(results) == 1:
        return tool_request("refund", {"order_id": order, "amount": amount})
    return {"refunded": amount}


def _meeting(task: str, results: Results) -> Answer:
    match results:
        case []:
            return tool_request("get_meeting", {"meeting": _last_word(task)})
        case [found]:
            start = str(value_at(found, "start"))
            return tool_request(
                "book",
                {"date": start[:10], "time": start[11:16], "room": value_at(found, "room")},
            )
    return {"date": str(value_at(results[0], "start"))[:10]}


def _flaky(task: str, results: Results) -> Answer:
    item = _last_word(task)
    found = [each for each in results if isinstance(each, Mapping)]
    good = [each for each in found if "count" in each]
    if not good:
        return tool_request("stock_of", {"item": item})
    if not any("ordered" in each for each in found):
        return tool_request("order_more", {"item": item, "count": good[0]["count"]})
    return {"ordered": good[0]["count"]}


def _open_orders(task: str, results: Results) -> Answer:
    """Pays back every open order of a customer."""
    customer = _last_word(task)
    if not results:
        return tool_request("list_orders", {"customer": customer})
    orders = value_at(results[0], "orders")
    assert isinstance(orders, list)
    wanted = [each for each in orders if value_at(each, "open")]
    done = len(results) - 1
    if done < len(wanted):
        each = wanted[done]
        return tool_request(
            "refund", {"order_id": value_at(each, "id"), "amount": value_at(each, "amount")}
        )
    return {"count": len(wanted)}


def _nested(task: str, results: Results) -> Answer:
    customer = _last_word(task)
    if not results:
        return tool_request("list_orders", {"customer": customer})
    orders = value_at(results[0], "orders")
    assert isinstance(orders, list)
    return {
        "customer": customer,
        "orders": [
            {"id": value_at(each, "id"), "due": value_at(each, "amount")} for each in orders
        ],
        "ids": [value_at(each, "id") for each in orders],
    }


def _end_nested(prompt: str) -> JsonValue:
    found = re.findall(r'"id":\s*"([^"]+)",\s*"amount":\s*([0-9.]+)', prompt)
    return {"orders": [{"id": own, "due": float(amount)} for own, amount in found]}


def _clock(task: str, results: Results) -> Answer:
    match results:
        case []:
            return tool_request("read_clock", {})
        case [found]:
            text = f"Seen at {value_at(found, 'time')}"
            return tool_request("save_note", {"path": _last_word(task), "text": text})
    return "Noted."


def _archive(task: str, results: Results) -> Answer:
    match results:
        case []:
            return tool_request("read_archive", {"name": _last_word(task)})
        case [found]:
            pages = 512 if isinstance(found, str) else value_at(found, "pages")
            return tool_request("order_more", {"item": _last_word(task), "count": pages})
    return "Ordered."


KINDS: Final[tuple[Work, ...]] = (
    Work(
        name="copy_file",
        tools=("files__read", "files__write"),
        declared="[{files: {root: .}}]",
        files={"in/may.txt": "Lamps: 12\n", "in/june-2.txt": "Chairs: 3\nLamps: 7\n"},
        policy=_copy,
        tasks=("Copy in/may.txt to out/may.txt", "Copy in/june-2.txt to out/summer.txt"),
        new=({"path": "in/june-2.txt", "path_2": "out/summer.txt"},),
        end=lambda prompt: "Copied.",
    ),
    Work(
        name="mark_folder",
        tools=("files__glob", "files__read", "set_label"),
        declared="[{files: {root: .}}]",
        files={
            "IT3/a.txt": "It is late.",
            "IT3/b.txt": "All is well.",
            "IT3/c.md": "late",
            "Box9/x.txt": "Very well.",
            "Box9/y.txt": "Too late.",
            "Box9/z.txt": "Well.",
        },
        policy=_folder,
        judge=lambda prompt: {"label": "late" if "late." in prompt else "fine"},
        tasks=("Mark the files of the folder IT3", "Mark the files of the folder Box9"),
        new=({"pattern": "Box9"},),
        end=lambda prompt: f"Marked {3 if 'Box9' in prompt else 2} files.",
    ),
    Work(
        name="order_rows",
        tools=("files__read", "data__parse_csv", "order_more"),
        declared="[{files: {root: .}}, data]",
        files={
            "lists/may.csv": "item,count\nlamp,12\nchair,40\nbox,5\n",
            "lists/june.csv": "item,count\ndesk,3\nlamp,7\nsofa,25\n",
        },
        policy=_rows,
        tasks=("Order what is in lists/may.csv", "Order what is in lists/june.csv"),
        new=({"path": "lists/june.csv"},),
        output="{ordered: integer}",
    ),
    Work(
        name="discount",
        tools=("get_order", "refund"),
        policy=_discount,
        tasks=("Pay 10 % back of order A-17", "Pay 25 % back of order B-31"),
        new=({"order_id": "B-31", "percent": 25},),
        output="{refunded: number}",
    ),
    Work(
        name="meeting",
        tools=("get_meeting", "book"),
        policy=_meeting,
        tasks=("Book the room of the meeting M1", "Book the room of the meeting Board_2"),
        new=({"meeting": "Board_2"},),
        output="{date: string}",
    ),
    Work(
        name="flaky",
        tools=("stock_of", "order_more"),
        policy=_flaky,
        tasks=("Order as many again of Lamp-2", "Order as many again of Chair-40"),
        new=({"item": "Chair-40"},),
        output="{ordered: integer}",
    ),
    Work(
        name="open_orders",
        tools=("list_orders", "refund"),
        policy=_open_orders,
        tasks=("Pay back what is open of Ann_07", "Pay back what is open of Bo_3"),
        new=({"customer": "Bo_3"},),
        output="{count: integer}",
    ),
    Work(
        name="loop_lengths",
        tools=("list_orders", "refund"),
        policy=_open_orders,
        tasks=(
            "Pay back what is open of Ann_07",
            "Pay back what is open of Bo_3",
            "Pay back what is open of Clara_12",
        ),
        recorded=2,
        new=({"customer": "Clara_12"},),
        output="{count: integer}",
    ),
    Work(
        name="loop_over_nothing",
        tools=("list_orders", "refund"),
        policy=_open_orders,
        tasks=(
            "Pay back what is open of Ann_07",
            "Pay back what is open of X1",
            "Pay back what is open of Clara_12",
        ),
        recorded=2,
        new=({"customer": "Clara_12"},),
        output="{count: integer}",
    ),
    Work(
        name="nested_output",
        tools=("list_orders",),
        policy=_nested,
        tasks=("List the orders of Ann_07", "List the orders of Bo_3"),
        new=({"customer": "Bo_3"},),
        end=_end_nested,
        output="{customer: string, orders: [{id: string, due: number}], ids: [string]}",
    ),
    Work(
        name="clock",
        tools=("read_clock", "save_note"),
        policy=_clock,
        tasks=("Note the time in T1", "Note the time in T22"),
        new=({"path": "T22"},),
        end=lambda prompt: "Noted.",
    ),
    Work(
        name="archive",
        tools=("read_archive", "order_more"),
        policy=_archive,
        tasks=("Order the pages of Book-1", "Order the pages of Atlas-22"),
        new=({"name": "Atlas-22"},),
        end=lambda prompt: "Ordered.",
    ),
)


# --- playing a work ------------------------------------------------------------------------------


@frozen(kw_only=True)
class Played:
    """What one run of an agent, or of a captured recipe, did."""

    result: AgentResult[object]
    effects: tuple[str, ...]
    """Calls with an effect, sorted."""
    files: Mapping[str, str]
    """The working folder after it."""
    asked: tuple[tuple[Prompt, Answer], ...]
    """What the model was asked, in order, and what it answered."""


async def run_agent(work: Work, task: str) -> Played:
    """The agent on a task, in a folder of its own."""
    return await _play(work, lambda app: app.arun(work.recipe, {"task": task}), agent_answers(work))


async def run_recipe(work: Work, text: str, inputs: Mapping[str, JsonValue]) -> Played:
    """A captured recipe on the inputs of another task, in a folder of its own."""
    return await _play(work, lambda app: app.arun(text, inputs), judge_answers(work))


async def capture_work(work: Work) -> Capture:
    """The recipe that is captured from the recorded tasks."""
    world = WiderWorld(fails=1)
    with _folder_of(work):
        async with Minions(model=agent_model(work), tools=world.tools(), approve="all") as app:
            runs = []
            for task in work.tasks[: work.recorded]:
                result = await app.arun(work.recipe, {"task": task})
                assert result.status is RunStatus.COMPLETED, result.error
                runs.append(result.run_id)
            return await app.capture(*runs)


async def _play(
    work: Work,
    run: Callable[[Minions], Awaitable[AgentResult[object]]],
    answers: Callable[[Prompt], Answer],
) -> Played:
    world = WiderWorld(fails=1)
    asked: list[tuple[Prompt, Answer]] = []

    def answer(prompt: Prompt) -> Answer:
        given = answers(prompt)
        asked.append((prompt, given))
        return given

    model = ScriptedModel(answer)
    with _folder_of(work) as folder:
        async with Minions(model=model, tools=world.tools(), approve="all") as app:
            result = await run(app)
        files = _files_in(folder)
    return Played(
        result=result,
        effects=tuple(sorted(map(str, world.effects))),
        files=files,
        asked=tuple(asked),
    )


@contextlib.contextmanager
def _folder_of(work: Work) -> Iterator[Path]:
    """A new current directory with the files of the work, until the block ends."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for path, text in work.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        yield Path(name)


def _files_in(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_text() for each in files}
