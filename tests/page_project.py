"""A project whose recipes run offline, for the page: slow words, tools, consent, questions."""

from __future__ import annotations

from pathlib import Path

__all__ = ["HOSTILE", "write_project"]

HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>"
"""What a model might say to a page that takes text for markup."""

_CONFIG = 'extensions = ["own.py"]\n'

_EXTENSIONS = '''
import asyncio
import re
from pathlib import Path

from minions import Extensions, ModelCallResponse, ScriptedModel, tool
from minions.guide import Confidence
from minions.testing import tool_request
from minions.contracts.messages import assistant
from minions.contracts.tools import Toolbox


class SlowModel(ScriptedModel):
    """Says one word at a time. Of `slow x` it waits at `one` and `two` for files x.one, x.two."""

    async def complete(self, prompt, on_delta=None):
        pieces, slow = [], re.search(r"slow (\\w+)", prompt.messages[-1].content or "")
        outcome = await super().complete(prompt, pieces.append)
        for piece in pieces:
            if on_delta is not None:
                on_delta(piece)
            await asyncio.sleep(0.001)
            word = (piece.content or "").strip()
            while slow and word in ("one", "two") and not Path(f"{slow[1]}.{word}").exists():
                await asyncio.sleep(0.01)
        return outcome


def story(prompt):
    asked = prompt.messages[-1].content or ""
    if "hostile" in asked:
        return HOSTILE
    return "Once there was number one and then number two and then the end."


def talk(prompt):
    said = [message for message in prompt.messages if message.role == "user"]
    last = said[-1].content or ""
    if prompt.messages[-1].role == "user" and "weather" in last:
        return tool_request("weather", {"city": "Bern"})
    talk.count += 1
    return f"Answer {talk.count} to: {last}"


talk.count = 0


def greet(prompt):
    asked = prompt.messages[-1].content or ""
    if "nobody" in asked:
        raise RuntimeError(f"cannot greet: {asked}")
    return f"Here is one and here are two. {asked}"


def essay(prompt):
    letters = int(re.findall(r"\\d+", prompt.messages[-1].content or "")[-1])
    text = f"{'word ' * (letters // 5)}The end."
    return ModelCallResponse(message=assistant(text), confidence=Confidence(0.125, "$.text"))


FIRST = """PLAN: Notes
STEP: write
TYPE: generate
GOAL: Write the notes
ARTIFACTS: notes.md
STEP: sum
TYPE: generate
GOAL: Sum up all that stands in the notes
DEPENDENCIES: write
ARTIFACTS: sum.md
STEP: print
TYPE: generate
GOAL: Make a page of it that can be printed
DEPENDENCIES: sum
ARTIFACTS: page.md
END_PLAN"""
SECOND = """PLAN: The rest of the notes
STEP: sum
TYPE: generate
GOAL: Sum up the first half of the notes, in a few words
DEPENDENCIES: write
ARTIFACTS: sum.md
STEP: other
TYPE: generate
GOAL: Sum up the second half
DEPENDENCIES: write
ARTIFACTS: other.md
END_PLAN"""


def plan(prompt):
    said = "\\n".join(message.content or "" for message in prompt.messages)
    if "You plan work" not in said and "Sum up all" in said:
        return "I will not."
    if "You plan work" not in said:
        path = said.rpartition("Write: ")[2].splitlines()[0]
        return f"{path}\\n```\\nWritten.\\n```"
    if "fail first" in said:
        return SECOND if "An earlier plan failed" in said else FIRST
    name = "terse.md" if "Shorter" in said else "notes.md"
    return (
        "PLAN: Notes\\n\\nSTEP: write\\nTYPE: generate\\nGOAL: Write the notes\\n"
        f"ARTIFACTS: {name}\\nEND_PLAN"
    )


@tool(effect="pure")
def weather(city: str) -> dict[str, object]:
    """The weather of a city."""
    return {"city": city, "sky": "clear", "degrees": 21}


@tool(effect="once")
def send(to: str, text: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool(effect="pure")
def count_words(text: str) -> dict[str, int]:
    """How many words it has."""
    return {"words": len(text.split())}


@tool(effect="pure")
def explode(text: str) -> str:
    """Fail."""
    raise ValueError(f"cannot take {text!r}")


EXTENSIONS = Extensions(
    tools=Toolbox((weather, send, count_words, explode)),
    models={
        "scripted/slow": SlowModel(story, name="scripted/slow"),
        "scripted/chat": SlowModel(talk, name="scripted/chat"),
        "scripted/greet": SlowModel(greet, name="scripted/greet"),
        "scripted/writer": ScriptedModel(essay, name="scripted/writer"),
        "scripted/planner": ScriptedModel(plan, name="scripted/planner"),
    },
)
'''

_RECIPES = {
    "story": """
id: story
model: scripted/slow
description: Tell a story, count its words.
inputs:
  about: {type: string, description: What it is about.}
  length: {type: integer, minimum: 1, maximum: 9, default: 3, description: How many sentences.}
steps:
  - id: tell
    goal: "Tell a story of {{ inputs.length }} sentences about {{ inputs.about }}."
  - id: measure
    tool: count_words
    params: {text: "{{ tell }}"}
  - id: judge
    when: "{{ measure.words > 1000 }}"
    depends_on: [measure]
    goal: Say whether it is too long.
  - id: both
    depends_on: [tell, measure]
    set: {story: "{{ tell }}", words: "{{ measure.words }}"}
output: "{{ both }}"
""",
    "chat": """
id: chat
model: scripted/chat
description: Talk with somebody who knows the weather.
inputs:
  message: {type: string}
steps:
  - id: answer
    goal: Answer the user.
    memory: conversation
    tools: [weather]
""",
    "mail": """
id: mail
description: Ask to whom, then send a letter with consent.
permissions: {allow_write: true, requires_approval: [send]}
steps:
  - {id: who, ask: "To whom shall it go?", form: {type: string, minLength: 2}}
  - {id: letter, tool: send, params: {to: "{{ who }}", text: "Dear {{ who }}, all is well."}}
output: "{{ letter }}"
""",
    "broken": """
id: broken
steps:
  - {id: one, tool: sned, params: {}}
""",
    "crowd": """
id: crowd
model: scripted/greet
description: Greets people, also those that nobody knows.
inputs: {names: {type: array, items: {type: string}}}
steps:
  - id: greet
    loop: "{{ inputs.names }}"
    on_item_error: collect
    goal: "Write a short and friendly greeting to {{ loop.item }}."
  - id: tell
    depends_on: [greet]
    set: {of: "{{ greet.total }}", failed: "{{ greet.failed }}"}
output: "{{ tell }}"
""",
    "essay": """
id: essay
model: scripted/writer
description: Writes as many letters as are wanted.
inputs: {letters: {type: integer}}
steps:
  - {id: write, goal: "Write {{ inputs.letters }}"}
  - {id: read, depends_on: [write], set: {text: "{{ write }}"}}
output: "{{ write }}"
""",
    "planned": """
id: planned
model: scripted/planner
description: A task that is planned, approved and carried out.
permissions: {allow_write: true}
steps:
  - {id: work, plan: Write notes, workspace: work, form: text}
output: "{{ work.steps | map(attribute='status') | join(', ') }}"
""",
    "replanned": """
id: replanned
model: scripted/planner
description: A plan fails, and another one takes its place.
permissions: {allow_write: true}
steps:
  - {id: work, plan: "Write notes, fail first", workspace: work, form: text}
output: "{{ work.steps | map(attribute='status') | join(', ') }}"
""",
    "unasked": """
id: unasked
model: scripted/planner
description: A plan fails, and another one takes its place without a question.
permissions: {allow_write: true}
steps:
  - {id: work, plan: "Write notes, fail first", workspace: work, form: text, approval: none}
output: "{{ work.steps | map(attribute='status') | join(', ') }}"
""",
    "changing": """
id: changing
description: Changes files, and sends something that nobody can take back.
permissions: {allow_write: true}
tools: [send, {files: {root: changed, create: true, undo: true}}]
steps:
  - {id: one, tool: files__write, params: {path: one.md, text: new}}
  - {id: two, tool: files__write, params: {path: deep/two.md, text: new}}
  - {id: letter, tool: send, params: {to: Ada, text: It is done.}}
output: done
""",
    "fragile": """
id: fragile
description: A tool that fails.
steps:
  - {id: first, set: {text: some words}}
  - {id: boom, tool: explode, params: {text: "{{ first.text }}"}}
  - {id: after, depends_on: [boom], set: {done: true}}
""",
}


_FORTY = "".join(
    f"  - {{id: step_{n:02}, depends_on: [{before}], set: {{n: {n}}}}}\n"
    for n, before in enumerate([""] * 4 + [f"step_{n:02}" for n in range(36)])
)
_RECIPES["forty"] = f"id: forty\ndescription: Many steps.\nsteps:\n{_FORTY}"


def write_project(folder: Path) -> Path:
    """Everything that `minions serve` needs there."""
    (folder / "recipes").mkdir(parents=True)
    (folder / ".git").mkdir()  # the search for minions.toml ends here
    (folder / "minions.toml").write_text(_CONFIG, "utf-8")
    (folder / "own.py").write_text(f"HOSTILE = {HOSTILE!r}\n{_EXTENSIONS}", "utf-8")
    for name, text in _RECIPES.items():
        (folder / "recipes" / f"{name}.yaml").write_text(text, "utf-8")
    return folder
