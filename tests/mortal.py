"""A process that dies, played inside one: its journal stops at the n-th fact, the world goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from builders import FakeTool, deterministic_services, executor_of, fake_tool
from minions.adapters.models.script_items import Answer, AnswerFunction
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.runtime import Clock
from minions.contracts.tools import Effect, Tool
from minions.data.codec import encode
from minions.data.json_values import JsonValue, dumps
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.model import AgentRecipe
from minions.testing.virtual_time import FakeClock

__all__ = ["KilledError", "MortalJournal", "World", "outline"]


class KilledError(BaseException):
    """What stands for `kill -9` inside one process: nothing handles it."""


class MortalJournal(MemoryJournal):
    """Dies with its process at the n-th fact; what was acknowledged before stays."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.dies_at: int | None = None
        self.loses_last = False
        """Whether the fact at which it dies is lost."""
        self.count = 0
        """Facts so far, also those that were lost."""
        self.is_dead = False

    def revive(self) -> None:
        """Another process opens it."""
        self.dies_at, self.is_dead, self.loses_last = None, False, False

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        self._check()
        self.count += 1
        is_last = self.dies_at is not None and self.count >= self.dies_at
        if is_last and self.loses_last:
            self.is_dead = True
        self._check()
        entry = await super().append(lease, draft)
        self.is_dead = is_last
        self._check()
        return entry

    async def release(self, lease: Lease) -> None:
        self._check()
        await super().release(lease)

    def _check(self) -> None:
        if self.is_dead:
            raise KilledError


@frozen(kw_only=True)
class World:
    """A journal that outlives processes, and a count of what really happened outside."""

    journal: MortalJournal = field(factory=lambda: MortalJournal(FakeClock()))
    asked: Counter[str] = field(factory=Counter)
    """Model calls, by the last words of the prompt."""
    done: Counter[str] = field(factory=Counter)
    """Tool runs, by name and idempotency key."""

    def model(self, answer: AnswerFunction) -> ScriptedModel:
        """Answers as the function says, and counts."""

        def counted(prompt: Prompt) -> Answer:
            self.asked[prompt.messages[-1].content or ""] += 1
            return answer(prompt)  # type: ignore[return-value]  # no test here awaits

        return ScriptedModel(counted)

    def tool(self, name: str, effect: Effect, result: JsonValue = "seen") -> FakeTool:
        """Counts its runs."""

        def work(arguments: Mapping[str, JsonValue]) -> object:
            self.done[f"{name} {tool.scopes[-1].idempotency_key}"] += 1
            return result

        tool = fake_tool(name, work, effect=effect)
        return tool

    def executor(self, model: ScriptedModel, tools: Sequence[Tool] = ()) -> AgentExecutor:
        """That of a fresh process."""
        return executor_of(model, tools=tools, services=deterministic_services(self.journal))

    async def killed(
        self, executor: AgentExecutor, recipe: AgentRecipe, at: int, *, loses_last: bool = False
    ) -> bool:
        """Run until the n-th fact; False when it came to its end before."""
        self.journal.dies_at, self.journal.loses_last = at, loses_last
        try:
            await executor.execute(recipe)
        except KilledError:
            return True
        finally:
            self.journal.revive()
        return False


def outline(result: AgentResult[object]) -> dict[str, object]:
    """What a result says, without what differs from run to run."""
    return {
        "status": result.status.value,
        "output": result.output,
        "usage": result.usage,
        "steps": {
            each.step_id: (
                each.status.value,
                dumps(encode(each.output)),
                [call.key for call in each.model_calls],
                [call.key for call in each.tool_calls],
                [call.response and call.response.content for call in each.tool_calls],
                [
                    [message.content for message in call.prompt.messages]
                    for call in each.model_calls
                ],
                each.usage,
            )
            for each in result.executions
        },
    }
