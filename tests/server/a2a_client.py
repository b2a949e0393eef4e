"""The protocol's own client for Python against a server; what it saw, as JSON.

`python a2a_client.py ADDRESS TOKEN`, with the package `a2a-sdk`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
from a2a.client import AuthInterceptor, ClientConfig, create_client
from a2a.client.auth import CredentialService
from a2a.types import a2a_pb2 as a2a
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format, struct_pb2


class Token(CredentialService):
    """The token for each scheme of a card."""

    async def get_credentials(self, *_: object) -> str:
        """The token."""
        return sys.argv[2]


def message(number: int, part: object, skill: str = "", task: str = "") -> a2a.SendMessageRequest:
    told = a2a.Part()
    if isinstance(part, str):
        told.text = part
    else:
        json_format.ParseDict(part, told.data)
    metadata = struct_pb2.Struct()
    if skill:
        metadata["skill"] = skill
    return a2a.SendMessageRequest(
        message=a2a.Message(
            message_id=f"m{number}",
            role=a2a.ROLE_USER,
            parts=[told],
            metadata=metadata,
            task_id=task,
        )
    )


async def raised(call: Coroutine[Any, Any, object]) -> str:
    """The class of the error that the client raises."""
    try:
        await call
    except Exception as error:  # noqa: BLE001  # its class is what the test compares
        return type(error).__name__
    return "nothing"


def name_of(state: int) -> str:
    return str(a2a.TaskState.Name(state)).removeprefix("TASK_STATE_").lower()


async def main() -> dict[str, object]:
    config = ClientConfig(httpx_client=httpx.AsyncClient(timeout=60), streaming=True)
    auth = [AuthInterceptor(Token())]
    client = await create_client(sys.argv[1], config, auth)
    whole = await create_client(
        sys.argv[1], ClientConfig(httpx_client=config.httpx_client, streaming=False), auth
    )
    seen: dict[str, object] = {}
    card = await client.get_extended_agent_card(a2a.GetExtendedAgentCardRequest())
    validate_proto_required_fields(card)
    seen["skills"] = sorted(each.id for each in card.skills)

    async def told(sent: a2a.SendMessageRequest, by: Any = client) -> list[a2a.StreamResponse]:
        found = []
        async for each in by.send_message(sent):
            validate_proto_required_fields(each)
            found.append(each)
        return found

    (sent,) = await told(message(1, {"a": 2, "b": 3}, "adds"), whole)
    seen["sum"] = json_format.MessageToDict(sent.task.artifacts[0].parts[0].data)
    seen["state"] = name_of(sent.task.status.state)
    events = await told(message(2, "Hello", "chat"))
    seen["streamed"] = [each.WhichOneof("payload") for each in events]
    seen["said"] = events[-2].artifact_update.artifact.parts[0].text

    waits = (await told(message(3, {}, "signs")))[-1].status_update
    seen["waits"] = name_of(waits.status.state)
    decision = json_format.MessageToDict(waits.status.message.parts[1].data)["decisions"][0]
    approval = {"decision": "approve", "digest": decision["digest"]}
    done = (await told(message(4, approval, task=waits.task_id)))[-2]
    seen["signed"] = done.artifact_update.artifact.parts[0].text
    asks = (await told(message(5, {}, "asks"), whole))[0].task
    answered = (await told(message(6, "3", task=asks.id), whole))[0].task
    seen["answered"] = answered.artifacts[0].parts[1].text

    begun = message(7, {}, "waits")
    begun.configuration.return_immediately = True
    task = (await told(begun, whole))[0].task
    followed = client.subscribe(a2a.SubscribeToTaskRequest(id=task.id))
    seen["follows"] = (await anext(followed)).WhichOneof("payload")
    got = await client.get_task(a2a.GetTaskRequest(id=task.id))
    validate_proto_required_fields(got)
    cancelled = await client.cancel_task(a2a.CancelTaskRequest(id=task.id))
    rest = [each async for each in followed]
    seen["cancelled"] = [
        name_of(cancelled.status.state),
        name_of(rest[-1].status_update.status.state),
    ]
    listed = await client.list_tasks(a2a.ListTasksRequest(page_size=2))
    validate_proto_required_fields(listed)
    seen["listed"] = len(listed.tasks)

    none = a2a.GetTaskRequest(id="run_none")
    push = a2a.TaskPushNotificationConfig(task_id=task.id, url="http://127.0.0.1/")
    picture = message(8, "a", "chat")
    picture.message.parts[0].Clear()
    picture.message.parts[0].url = "http://127.0.0.1/x.png"
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "unknown": lambda: client.get_task(none),
        "over": lambda: client.cancel_task(a2a.CancelTaskRequest(id=task.id)),
        "ended": lambda: anext(client.subscribe(a2a.SubscribeToTaskRequest(id=task.id))),
        "late": lambda: told(message(9, "x", task=task.id)),
        "push": lambda: client.create_task_push_notification_config(push),
        "file": lambda: told(picture),
        "inputs": lambda: told(message(10, {"c": 1}, "adds"), whole),
    }
    seen["raised"] = {name: await raised(call()) for name, call in calls.items()}
    stranger = await create_client(sys.argv[1], config)
    seen["stranger"] = await raised(stranger.get_task(none))
    return seen


sys.stdout.write(json.dumps(asyncio.run(main())))
