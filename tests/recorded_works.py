"""Ten kinds of agent work on a small world, for captures: each with its agent, its judge and tasks.

An agent is a function of the task and of what its calls gave until now; it answers with calls, or
with the end. What a captured recipe leaves to a model is answered by the work's judge, a function
of the prompt. So for any other task it is known what the agent would have done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypedDict

from attrs import field, frozen, mutable

from minions import Message, MessageRole, Prompt, ScriptedModel, Tool, tool
from minions.data.json_values import JsonValue
from minions.testing import Answer, tool_request

Results: TypeAlias = Sequence[JsonValue]
Policy: TypeAlias = Callable[[str, Results], Answer]
Judge: TypeAlias = Callable[[str], JsonValue]


class Order(TypedDict):
    """What the shop says of an order."""

    id: str
    status: str
    amount: float
    customer: str


class Hits(TypedDict):
    """What a search gives."""

    hits: list[dict[str, object]]
    total: int


@mutable
class World:
    """The tools, and what they changed."""

    effects: list[tuple[str, dict[str, object]]] = field(factory=list)
    fails: int = 0
    """How often the next flaky call fails."""
    polls: int = 0

    def tools(self) -> list[Tool]:
        """The tools of the world."""
        return [*self._shop(), *self._tickets(), *self._others()]

    def _shop(self) -> list[Tool]:
        log = self.effects

        @tool(effect="pure", reads="trusted")
        def get_order(order_id: str) -> Order:
            """An order by its id."""
            number = int(re.sub(r"\D", "", order_id) or 0)
            return {
                "id": order_id,
                "status": "paid" if number % 2 else "shipped",
                "amount": number * 1.25,
                "customer": f"c{number + 3}",
            }

        @tool(effect="pure", reads="trusted")
        def get_customer(customer_id: str) -> dict[str, object]:
            """A customer by id."""
            return {"id": customer_id, "mail": f"{customer_id}@shop.example", "name": "Ann Lee"}

        @tool(effect="once")
        def refund(order_id: str, amount: float) -> dict[str, object]:
            """Pay money back."""
            log.append(("refund", {"order_id": order_id, "amount": amount}))
            return {"receipt": f"R-{order_id}", "paid": True}

        @tool(effect="once")
        def cancel(order_id: str) -> dict[str, object]:
            """Stop an order that is on its way."""
            log.append(("cancel", {"order_id": order_id}))
            return {"cancelled": True}

        @tool(effect="once")
        def send_mail(to: str, subject: str, body: str) -> dict[str, object]:
            """Send a mail."""
            log.append(("send_mail", {"to": to, "subject": subject, "body": body}))
            return {"sent": True}

        return [get_order, get_customer, refund, cancel, send_mail]

    def _tickets(self) -> list[Tool]:
        log = self.effects

        @tool(effect="pure", reads="untrusted")
        def list_tickets(queue: str) -> dict[str, object]:
            """The tickets of a queue."""
            count = 2 + len(queue)
            return {
                "tickets": [
                    {
                        "key": f"{queue.upper()}-{n}",
                        "title": f"Problem {n} of {queue}",
                        "open": True,
                    }
                    for n in range(1, count)
                ]
            }

        @tool(effect="pure", reads="untrusted")
        def read_ticket(key: str) -> dict[str, object]:
            """The text of a ticket."""
            return {
                "key": key,
                "text": f"{key}: the printer {'burns' if '1' in key else 'is slow'}",
            }

        @tool(effect="idempotent")
        def set_label(key: str, label: str) -> dict[str, object]:
            """Label a ticket."""
            log.append(("set_label", {"key": key, "label": label}))
            return {"ok": True}

        return [list_tickets, read_ticket, set_label]

    def _others(self) -> list[Tool]:
        log = self.effects

        @tool(effect="pure", reads="trusted")
        def list_rows(page: str = "") -> dict[str, object]:
            """Rows, three a page; `next` names the next page."""
            at = int(page or "0")
            return {
                "rows": [{"n": at * 3 + k} for k in range(3)],
                "next": str(at + 1) if at < 2 else "",
            }

        @tool(effect="pure", reads="trusted")
        def job_state(job: str) -> dict[str, object]:
            """How far a job is."""
            self.polls += 1
            return {
                "job": job,
                "state": "running" if self.polls % 3 else "done",
                "percent": self.polls,
            }

        @tool(effect="once")
        def start_job(name: str) -> dict[str, object]:
            """Start a job."""
            log.append(("start_job", {"name": name}))
            return {"job": f"job-{name}"}

        @tool(effect="idempotent")
        def save_note(path: str, text: str) -> dict[str, object]:
            """Keep a note."""
            log.append(("save_note", {"path": path, "text": text}))
            return {"bytes": len(text)}

        @tool(effect="pure", reads="untrusted")
        def fetch(url: str) -> dict[str, object]:
            """A page of the web."""
            city = url.rpartition("/")[2]
            return {"status": 200, "json": {"city": city, "celsius": len(city) + 7.5}}

        @tool(effect="pure", reads="trusted")
        def find_people(name: str) -> Hits:
            """People by name."""
            if name.islower():
                return {"hits": [], "total": 0}
            return {
                "hits": [
                    {"name": "Someone Else", "mail": "else@shop.example"},
                    {"name": name, "mail": f"{name.split(maxsplit=1)[0].lower()}@shop.example"},
                ],
                "total": 2,
            }

        return [list_rows, job_state, start_job, save_note, fetch, find_people]


@frozen(kw_only=True)
class Work:
    """One kind of agent work."""

    name: str
    tools: tuple[str, ...]
    policy: Policy
    judge: Judge = lambda prompt: prompt
    tasks: tuple[str, ...]
    """The recorded ones first."""
    recorded: int = 1
    """How many of the tasks are captured together."""
    new: tuple[Mapping[str, JsonValue], ...] = ()
    """The inputs of the captured recipe for the other tasks."""
    permissions: str = "{allow_write: true, untrusted: allow}"
    output: str = ""
    declared: str = ""
    """The toolsets of the agent's recipe, as `tools:` has them; empty: none."""
    files: Mapping[str, str] = field(factory=dict)
    """What is in the working folder before the work, by path."""
    end: Judge = lambda prompt: "Done."
    """The agent's last words, where a captured recipe asks a model for them."""

    @property
    def recipe(self) -> str:
        """The agent's recipe."""
        output = f"\n    output: {self.output}" if self.output else ""
        declared = f"tools: {self.declared}\n" if self.declared else ""
        return (
            f"id: {self.name}\ninputs: {{task: string}}\npermissions: {self.permissions}\n"
            f"{declared}limits: {{max_model_calls_per_step: 40}}\n"
            f"steps:\n  - id: work\n    goal: '{{{{ inputs.task }}}}'\n"
            f"    tools: [{', '.join(self.tools)}]{output}\n    tool_failure: report\n"
        )


def agent_answers(work: Work) -> Callable[[Prompt], Answer]:
    """The answers of a model that works as the policy of the work says."""

    def answer(prompt: Prompt) -> Answer:
        asked = [m for m in prompt.messages if m.role is not MessageRole.SYSTEM]
        task = next(m.content or "" for m in asked if not m.is_context)
        results = [_value(m) for m in prompt.messages if m.role is MessageRole.TOOL]
        return work.policy(task, results)

    return answer


def judge_answers(work: Work) -> Callable[[Prompt], Answer]:
    """The answers that a captured recipe leaves to a model."""

    def answer(prompt: Prompt) -> Answer:
        text = "\n".join(m.content or "" for m in prompt.messages)
        found = work.end(text) if "give the answer" in text else work.judge(text)
        assert isinstance(found, str | dict)
        return found

    return answer


def agent_model(work: Work) -> ScriptedModel:
    """The model that works as the policy of the work says."""
    return ScriptedModel(agent_answers(work))


def judge_model(work: Work) -> ScriptedModel:
    """The model that gives what a captured recipe leaves to one."""
    return ScriptedModel(judge_answers(work))


def _value(message: Message) -> JsonValue:
    try:
        found: JsonValue = json.loads(message.content or "null")
    except ValueError:
        return message.content
    return found


def calls_of(*calls: tuple[str, dict[str, JsonValue]]) -> Answer:
    """Several calls in one answer."""
    requests = tuple(tool_request(name, arguments) for name, arguments in calls)
    return Message(role=MessageRole.ASSISTANT, tool_calls=requests)


def value_at(value: JsonValue, *path: str | int) -> JsonValue:
    for key in path:
        match value, key:
            case Mapping(), str():
                value = value[key]
            case list(), int():
                value = value[key]
    return value


# --- the works -----------------------------------------------------------------------------------


def _letter(name: JsonValue, amount: JsonValue) -> str:
    return f"Dear {name}, we have paid back {amount} euros and are sorry for the trouble."


def _refund(task: str, results: Results) -> Answer:
    order = re.search(r"[A-Z]-[0-9]+", task)
    assert order is not None
    own = order.group()
    match results:
        case []:
            return tool_request("get_order", {"order_id": own})
        case [found]:
            return tool_request("get_customer", {"customer_id": value_at(found, "customer")})
        case [found, _]:
            return tool_request("refund", {"order_id": own, "amount": value_at(found, "amount")})
        case [found, who, _]:
            body = _letter(value_at(who, "name"), value_at(found, "amount"))
            mail = {"to": value_at(who, "mail"), "subject": f"Refund of {own}", "body": body}
            return tool_request("send_mail", mail)
    return f"Refunded {own}."


def _judge_letter(prompt: str) -> JsonValue:
    name = re.search(r'"name":\s*"([^"]+)"', prompt)
    amount = re.search(r'"amount":\s*([0-9.]+)', prompt)
    assert name is not None
    assert amount is not None
    return {"body": _letter(name.group(1), amount.group(1))}


def _labels(task: str, results: Results) -> Answer:
    queue = task.rsplit(maxsplit=1)[-1].strip(".")
    if not results:
        return tool_request("list_tickets", {"queue": queue})
    tickets = value_at(results[0], "tickets")
    assert isinstance(tickets, list)
    done, count = len(results) - 1, len(tickets)
    if done < 2 * count:
        key = value_at(tickets, done // 2, "key")
        if done % 2 == 0:
            return tool_request("read_ticket", {"key": key})
        text = str(value_at(results[-1], "text"))
        return tool_request("set_label", {"key": key, "label": _label_of(text)})
    return f"Labelled {count} tickets."


def _label_of(text: str) -> str:
    return "urgent" if "burns" in text else "normal"


def _judge_label(prompt: str) -> JsonValue:
    return {"label": _label_of(prompt)}


def _read_all(task: str, results: Results) -> Answer:
    queue = task.rsplit(maxsplit=1)[-1].strip(".")
    if not results:
        return tool_request("list_tickets", {"queue": queue})
    tickets = value_at(results[0], "tickets")
    assert isinstance(tickets, list)
    if len(results) == 1:
        return calls_of(*(("read_ticket", {"key": value_at(each, "key")}) for each in tickets))
    if len(results) == len(tickets) + 1:
        texts = [str(value_at(each, "text")) for each in results[1:]]
        text = f"{sum('burns' in each for each in texts)} of them burn, which is bad enough."
        return tool_request("save_note", {"path": f"notes/{queue}.md", "text": text})
    return "Done."


def _judge_burning(prompt: str) -> JsonValue:
    text = f"{prompt.count('printer burns')} of them burn, which is bad enough."
    return {"text": text}


def _polled(task: str, results: Results) -> Answer:
    name = task.rsplit(maxsplit=1)[-1]
    if not results:
        return tool_request("start_job", {"name": name})
    if len(results) == 1 or value_at(results[-1], "state") != "done":
        return tool_request("job_state", {"job": value_at(results[0], "job")})
    return {"job": value_at(results[0], "job"), "state": "done"}


def _weather(task: str, results: Results) -> Answer:
    city = task.rsplit(maxsplit=1)[-1]
    if not results:
        return tool_request("fetch", {"url": f"https://weather.example/v1/{city}"})
    if len(results) == 1:
        celsius = value_at(results[0], "json", "celsius")
        return tool_request("save_note", {"path": f"weather/{city}.txt", "text": f"{celsius}"})
    return {"city": city, "celsius": value_at(results[0], "json", "celsius")}


def _people(task: str, results: Results) -> Answer:
    name = " ".join(task.split()[-2:])
    match results:
        case []:
            return tool_request("find_people", {"name": name.lower()})
        case [_]:
            return tool_request("find_people", {"name": name})
        case [_, found]:
            mail = value_at(found, "hits", 1, "mail")
            return tool_request(
                "send_mail", {"to": mail, "subject": "Meeting", "body": "Meeting at noon"}
            )
    return "Sent."


def _pages(task: str, results: Results) -> Answer:
    name = task.rsplit(maxsplit=1)[-1]
    pages = [each for each in results if isinstance(each, Mapping) and "rows" in each]
    count = sum(len(rows) for each in pages if isinstance(rows := each["rows"], list))
    if not pages:
        return tool_request("list_rows", {})
    if pages[-1]["next"]:
        return tool_request("list_rows", {"page": pages[-1]["next"]})
    if len(pages) == len(results):
        return tool_request("save_note", {"path": f"rows/{name}.txt", "text": f"{count}"})
    return {"rows": count}


def _warm(task: str, results: Results) -> Answer:
    city = task.rsplit(maxsplit=1)[-1]
    if not results:
        return tool_request("fetch", {"url": f"https://weather.example/v1/{city}"})
    celsius = value_at(results[0], "json", "celsius")
    if len(results) == 1 and isinstance(celsius, float) and celsius > 12:
        return tool_request("save_note", {"path": f"warm/{city}.txt", "text": f"{celsius}"})
    return "Done."


def _judge_warm(prompt: str) -> JsonValue:
    found = re.search(r'"celsius":\s*([0-9.]+)', prompt)
    assert found is not None
    return {"needed": float(found.group(1)) > 12}


def _two_ways(task: str, results: Results) -> Answer:
    own = task.rsplit(maxsplit=1)[-1]
    if not results:
        return tool_request("get_order", {"order_id": own})
    if len(results) == 1:
        if value_at(results[0], "status") == "paid":
            return tool_request(
                "refund", {"order_id": own, "amount": value_at(results[0], "amount")}
            )
        return tool_request("cancel", {"order_id": own})
    return "Done."


_REFUND_TOOLS: Final = ("get_order", "get_customer", "refund", "send_mail")

WORKS: Final[tuple[Work, ...]] = (
    Work(
        name="refund",
        tools=_REFUND_TOOLS,
        policy=_refund,
        judge=_judge_letter,
        tasks=(
            "Refund order A-17 and tell the customer.",
            "Refund order B-31 and tell the customer.",
        ),
        new=({"order_id": "B-31"},),
    ),
    Work(
        name="refund_with_approval",
        tools=_REFUND_TOOLS,
        policy=_refund,
        judge=_judge_letter,
        permissions="{allow_write: true, untrusted: allow, requires_approval: [refund]}",
        tasks=(
            "Refund order A-17 and tell the customer.",
            "Refund order B-31 and tell the customer.",
        ),
        new=({"order_id": "B-31"},),
    ),
    Work(
        name="labels",
        tools=("list_tickets", "read_ticket", "set_label"),
        policy=_labels,
        judge=_judge_label,
        tasks=("Label the tickets of the queue IT3", "Label the tickets of the queue Sales_7"),
        new=({"queue": "Sales_7"},),
    ),
    Work(
        name="read_all",
        tools=("list_tickets", "read_ticket", "save_note"),
        policy=_read_all,
        judge=_judge_burning,
        tasks=("Count what burns in the queue IT3", "Count what burns in the queue Sales_7"),
        new=({"queue": "Sales_7"},),
    ),
    Work(
        name="polled",
        tools=("start_job", "job_state"),
        policy=_polled,
        tasks=("Run the job n1", "Run the job n22"),
        new=({"name": "n22"},),
        output="{job: string, state: string}",
    ),
    Work(
        name="weather",
        tools=("fetch", "save_note"),
        policy=_weather,
        tasks=("Note the weather of Bern", "Note the weather of Lisbon"),
        new=({"city": "Lisbon"},),
        output="{city: string, celsius: number}",
    ),
    Work(
        name="people",
        tools=("find_people", "send_mail"),
        policy=_people,
        tasks=("Invite to the meeting: Ann Lee", "Invite to the meeting: Bob Ray"),
        new=({"name": "Bob Ray"},),
        judge=lambda prompt: {"body": "Meeting at noon"},
        end=lambda prompt: "Sent.",
    ),
    Work(
        name="pages",
        tools=("list_rows", "save_note"),
        policy=_pages,
        tasks=("Count the rows into N1", "Count the rows into N2"),
        new=({"path": "N2"},),
        output="{rows: integer}",
    ),
    Work(
        name="two_ways",
        tools=("get_order", "refund", "cancel"),
        policy=_two_ways,
        tasks=(
            "Undo the order A-17",
            "Undo the order B-20",
            "Undo the order C-33",
            "Undo the order D-8",
        ),
        recorded=2,
        new=({"order_id": "C-33"}, {"order_id": "D-8"}),
    ),
)

WARM: Final = Work(
    name="warm",
    tools=("fetch", "save_note"),
    policy=_warm,
    judge=_judge_warm,
    tasks=(
        "Note if warm: Lisbon",
        "Note if warm: Bern",
        "Note if warm: Rome",
        "Note if warm: Madrid",
    ),
    recorded=2,
    new=({"city": "Rome"}, {"city": "Madrid"}),
)
"""Two ways that no word of a result tells apart."""
