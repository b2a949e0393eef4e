"""`goal:` — a model loop with tools, a completion chain and a declared output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypedDict

from attrs import evolve, field, frozen
from msgspec import structs

from minions.contracts.completion import CompletionCriteria
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import HistoryStrategy, HistoryWindow
from minions.contracts.sandbox import CODE_LIMITS, SandboxLimits
from minions.contracts.steps import USUAL_SEARCH, ToolSearch
from minions.data.errors import Fault, SchemaError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, check_schema
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import TEXT_OUTPUT, GoalParts, StepDraft, read_templates
from minions.recipe.examples import (
    EXAMPLE,
    EXAMPLES_FROM,
    EXAMPLES_KEY,
    Example,
    ExampleBounds,
    ExampleKeys,
    ExampleSource,
    ExampleStepSpec,
    read_example_keys,
    read_examples,
)
from minions.recipe.kinds.code_kind import (
    SANDBOX,
    SANDBOX_KEY,
    SANDBOXES,
    check_names,
    ignore_fault,
    read_sandbox,
)
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind, given_mapping
from minions.recipe.model import ContextPart, ExecutionMode, MessageSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import (
    CACHE_KEY,
    MODEL_KEY,
    TEXTS,
    Key,
    Table,
    choice_key,
    count_key,
    flag_key,
    mapping_key,
    text_key,
)
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, SequenceNode
from minions.recipe.text.schemas import read_output_schema
from minions.recipe.text.sections import Report, Section, read_section, read_texts, suggestion

MESSAGE = Table(
    "a message",
    (
        choice_key("role", "The author of the message.", ("system", "user")),
        text_key("content", "The text; a template."),
        text_key("system", "Short for a system message."),
        Key(
            name="user",
            description="Short for a user message: a text, or its parts.",
            types=("string", "array"),
            shape={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"$ref": "#/$defs/part"}},
                ]
            },
        ),
    ),
)


PART = Table(
    "a part of a message",
    (
        text_key("text", "A text; a template."),
        text_key("image", "Path of an image beneath the recipe's folder; a template."),
        text_key("file", "Path of a PDF file or an image there; a template."),
    ),
)


STEP_TOOLS = Table(
    "tools",
    (
        Key(
            name="names",
            description="The tools that the model may call: names, or a toolset for all of its "
            "tools; default: all toolsets of the recipe.",
            types=("array",),
            shape=TEXTS,
        ),
        Key(
            name="always",
            description="Those that the model is offered from the first request on, whatever it "
            "finds; also of tools that `names` does not list.",
            types=("array",),
            shape=TEXTS,
        ),
        flag_key(
            "search",
            "Whether the model is offered `find_tools` and those under `always`, and finds the "
            "others by words; default: with more than 12 tools, or more than 3 with more than "
            "2,000 tokens of texts.",
        ),
        flag_key(
            "caller",
            "Whether the model may also call tools that whoever asks over HTTP brings with the "
            "request: the run then waits for their results. Default: false, and such a request "
            "is refused.",
        ),
    ),
)


HISTORY = Table(
    "history",
    (
        Key(
            name="max_tokens",
            description="Most tokens of a prompt, estimated at four characters each.",
            types=("integer",),
            minimum=1,
            is_required=True,
        ),
        choice_key(
            "strategy",
            "What becomes of the oldest messages that do not fit: `drop` leaves them out of the "
            "prompt, `summarise` has the model write notes of them.",
            HistoryStrategy,
        ),
    ),
)


COMPLETION = Table(
    "completion",
    (
        choice_key("mode", "What completes the step when nothing else decides.", CompletionMode),
        Key(
            name="patterns",
            description="Regular expressions; one found in the model's text completes the step.",
            types=("array",),
            shape=TEXTS,
        ),
        Key(
            name="links",
            description="Registered completion links, asked first.",
            types=("array",),
            shape=TEXTS,
        ),
    ),
)


CONTEXT_PART = Table(
    "a part of a context",
    (
        text_key("text", "A text; a template. Beside `file`: the content of the file."),
        text_key(
            "file",
            "Path of a text file of the recipe's folder or project, whose content is shown within "
            "a border.",
        ),
    ),
)


def context_texts(parts: Sequence[Node]) -> tuple[ScalarNode, ...]:
    """The texts of a context that are templates: the content of a file is none."""
    found = []
    for part in parts:
        if isinstance(part, MappingNode) and part.find("file") is None:
            entry = part.find("text")
            if entry is not None and isinstance(entry.value, ScalarNode):
                found.append(entry.value)
    return tuple(found)


def _context(section: Section, reader: KindReader) -> tuple[ContextPart, ...]:
    """What the step reads as others do."""
    nodes = section.items("context")
    for text_node in context_texts(nodes):
        reader.templates.extend(read_templates(text_node, reader.report, reader.recipe_templates))
    parts = []
    for node in nodes:
        part = read_section(node, CONTEXT_PART, reader.report)
        text, file = part.text("text"), part.text("file")
        if text is None and file is None and not part.refused:
            message, help_ = "a part is a text or a file", "write {text: …} or {file: path}"
            reader.report(node.place.fault("bad-value", message, help=help_))
        parts.append(ContextPart(text=text or "", file=file))
    return tuple(parts)


def read_goal_parts(section: Section, reader: KindReader) -> GoalParts:
    """The output, messages, completion and model of a goal step; faults are reported.

    Args:
        section: The keys of the step.
    """
    _check_memory(section, reader.mode, reader.report)
    schema = None
    output = section.mapping("output")
    is_declared = output is not None or "output" in section.refused
    if output is not None:
        schema = read_output_schema(output, reader.report)
    model = section.node("model")
    parts = GoalParts(
        history=_history(section, reader.report),
        messages=_messages(section.items("messages"), reader),
        context=_context(section, reader),
        # A faulty schema allows everything, so that references to the output are not reported too.
        schema={} if schema is None and is_declared else schema,
        artifacts=_artifacts(section, reader.report, is_declared=is_declared),
        images=tuple(
            text.text for text in read_texts(section.items("images"), "a path", reader.report)
        ),
        question=section.text("goal") or "",
        **read_step_examples(
            section,
            section.text("goal") or "",
            schema,
            reader,
            is_declared=is_declared,
        ),
        model=reader.read_model(model) if model is not None else None,
    )
    return _with_completion(parts, section, reader.catalog, reader.report)


def _check_memory(section: Section, mode: ExecutionMode, report: Report) -> None:
    """Report `memory: conversation` in a parallel recipe: a conversation
    needs an order of steps.
    """
    node = section.node("memory")
    if node is not None and section.text("memory") == "conversation":
        if mode is ExecutionMode.PARALLEL:
            message = "several steps cannot continue one conversation at once"
            report(node.place.fault("bad-value", message, help="use execution_mode: planned"))
        elif section.node("loop") is not None and section.plain("max_parallel", 1) != 1:
            message = "several items cannot continue one conversation at once"
            report(node.place.fault("bad-value", message, help="leave out max_parallel"))


def _artifacts(section: Section, report: Report, *, is_declared: bool) -> tuple[str, ...]:
    """The declared artifacts: kinds, or paths below a folder."""
    if not (items := section.items("artifacts")):
        return ()
    from minions.recipe.artifacts import ARTIFACT_KINDS, as_path

    texts = read_texts(items, "an artifact", report)
    for text in texts:
        if text.text not in ARTIFACT_KINDS and as_path(text.text) is None:
            report(
                text.node.place.fault(
                    "bad-value",
                    f"'{text.text:.60}' is no artifact",
                    label=suggestion(text.text, ARTIFACT_KINDS),
                    help=f"write the path of a file, or one of: {', '.join(ARTIFACT_KINDS)}",
                )
            )
    if texts and is_declared:
        message = "artifacts are found in an answer of free text, and 'output' declares another"
        report(section.place_of("artifacts").fault("bad-value", message, help="leave one out"))
    return tuple(text.text for text in texts)


class _StepExamples(TypedDict):
    examples: tuple[Example, ...]
    examples_from: ExampleSource | None
    nearest: ExampleBounds | None


def read_step_examples(
    section: Section,
    question: str,
    schema: JsonSchema | None,
    reader: KindReader,
    *,
    is_declared: bool,
) -> _StepExamples:
    """The parts of a step that its examples are.

    Args:
        question: What the step asks; a template.
        is_declared: Whether it declares an output, whose schema is None if it has a fault.
    """
    report, node = reader.report, section.node("examples")
    keys = ExampleKeys(items=section.items("examples"))
    if isinstance(node, MappingNode):
        keys = read_example_keys(node, report)
    if (keys.items or isinstance(node, MappingNode)) and section.text("memory") == "conversation":
        message = "a conversation has turns of its own, and 'examples' would be among them"
        help_ = "leave out memory: conversation, or say the examples in system_prompt"
        report(section.place_of("examples").fault("bad-value", message, help=help_))
    known = {} if schema is None and is_declared else schema
    return {
        "examples": read_examples(keys.items, question, known, report, reader.recipe_templates),
        "examples_from": keys.source,
        "nearest": keys.nearest,
    }


def _history(section: Section, report: Report) -> HistoryWindow | None:
    node = section.mapping("history")
    if node is None:
        return None
    if section.text("memory") != "conversation":
        message = "'history' bounds a conversation, and this step has none"
        report(node.place.fault("bad-value", message, help="add memory: conversation"))
    values = read_section(node, HISTORY, report).values()
    max_tokens = values.get("max_tokens")
    if not isinstance(max_tokens, int):
        return None
    strategy = HistoryStrategy(str(values.get("strategy", HistoryStrategy.DROP)))
    return HistoryWindow(max_tokens=max_tokens, strategy=strategy)


def _messages(nodes: Sequence[Node], reader: KindReader) -> tuple[MessageSpec, ...]:
    messages, report, compiled = [], reader.report, reader.recipe_templates
    for node in nodes:
        faults: list[Fault] = []
        section = read_section(node, MESSAGE, faults.append)
        said = [(role, section.node(role)) for role in ("system", "user")]
        said.append((section.text("role") or "", section.scalar("content")))
        given = [(role, content) for role, content in said if content is not None]
        role, content = given[0] if len(given) == 1 else ("", None)
        if role and content is not None and section.text("role") in (None, role):
            reader.templates.extend(read_templates(content, report, compiled))
            if isinstance(content, ScalarNode):
                messages.append(MessageSpec(role=role, content=str(content.value)))
            elif isinstance(content, SequenceNode):
                messages.append(_message_of_parts(role, content.items, faults.append))
        elif not faults:
            faults.append(
                node.place.fault(
                    "bad-value",
                    "a message has one role",
                    help="write {user: text}, {system: text} or {role: user, content: text}",
                )
            )
        for fault in faults:
            report(fault)
    return tuple(messages)


def _message_of_parts(role: str, nodes: Sequence[Node], report: Report) -> MessageSpec:
    """The message of these parts: images and files stand before the texts."""
    texts: list[str] = []
    files: list[str] = []
    for node in nodes:
        section = read_section(node, PART, report)
        given = [name for name in ("text", "image", "file") if section.text(name) is not None]
        if len(given) != 1:
            message = "a part is a text, an image or a file"
            help_ = "write {text: …}, {image: path} or {file: path}"
            report(node.place.fault("bad-value", message, help=help_))
            continue
        (texts if given == ["text"] else files).append(section.text(given[0]) or "")
    return MessageSpec(role=role, content="\n\n".join(texts), files=tuple(files))


def _with_completion(
    parts: GoalParts, section: Section, catalog: Catalog, report: Report
) -> GoalParts:
    node = section.node("completion")
    if node is None:
        return parts
    usual = CompletionMode.TEXT if parts.schema is None else CompletionMode.STRUCTURED
    if isinstance(node, ScalarNode):
        return structs.replace(parts, completion=_mode(parts, node, usual, report))
    inner = read_section(node, COMPLETION, report)
    criteria = _mode(parts, inner.scalar("mode"), usual, report)
    patterns = read_texts(inner.items("patterns"), "a pattern", report)
    for pattern in patterns:
        try:
            check_schema({"type": "string", "pattern": pattern.text})
        except SchemaError as error:
            message = error.message.removeprefix("$.pattern: ")
            report(pattern.node.place.fault("bad-value", message))
    links = read_texts(inner.items("links"), "a link's name", report)
    for link in links:
        if link.text not in catalog.links:
            known = tuple(sorted(catalog.links))
            report(
                link.node.place.fault(
                    "unknown-link",
                    f"unknown completion link '{link.text}'",
                    label=suggestion(link.text, known),
                    help=f"registered links are: {', '.join(known) or 'none'}",
                )
            )
    return structs.replace(
        parts,
        completion=evolve(criteria, patterns=[pattern.text for pattern in patterns]),
        links=tuple(link.text for link in links),
    )


def _mode(
    parts: GoalParts, node: ScalarNode | None, usual: CompletionMode, report: Report
) -> CompletionCriteria:
    modes = tuple(str(mode) for mode in CompletionMode)
    if node is None:
        return CompletionCriteria(mode=usual)
    if node.value not in modes:
        report(
            node.place.fault(
                "bad-value",
                f"'completion' cannot be '{node.value}'",
                label=suggestion(str(node.value), modes),
                help=f"choices are: {', '.join(modes)}",
            )
        )
        return CompletionCriteria(mode=usual)
    mode = CompletionMode(str(node.value))
    if mode is CompletionMode.STRUCTURED and parts.schema is None:
        message = "completion 'structured' needs a declared output"
        report(node.place.fault("missing-key", message, help="add output: {field: type}"))
    return CompletionCriteria(mode=mode)


@frozen(kw_only=True)
class GoalSpec(ExampleStepSpec):
    """A model loop with tools, a completion chain and a declared output."""

    kind: ClassVar[str] = "goal"
    asks_model: ClassVar[bool] = True
    calls_tools: ClassVar[bool] = True

    goal: str
    """The aim; a template."""
    system_prompt: str | None = None
    context: tuple[ContextPart, ...] = ()
    """What other steps read, too: the recipe's and its own."""
    messages: tuple[MessageSpec, ...] = ()
    tools: tuple[str, ...] = ()
    """Full names of the tools that the model may call."""
    tool_search: ToolSearch = USUAL_SEARCH
    """How it comes to them."""
    unfit_output: str = "mend"
    """`mend`, or `text`: the text of an answer that does not fit is the output."""
    artifacts: tuple[str, ...] = ()
    """What the answer has to hold: paths of files, or kinds of `ARTIFACT_KINDS`."""
    images: tuple[str, ...] = ()
    """Paths of images that its model sees with the goal; templates."""
    completion: CompletionCriteria | None = None
    """When the step is complete; None: `structured` where `output` is declared, else `text`."""
    completion_links: tuple[str, ...] = ()
    """Names of registered completion links, which are asked before the default chain."""
    tool_failure: str = "fail"
    at_limit: str = "fail"
    """`fail`, or `answer`: one more call answers from what there is."""
    memory: str = "isolated"
    """`isolated` or `conversation`."""
    history: HistoryWindow | None = None
    """The bound of its prompts; None: there is none."""
    model: ModelConfig | None = None

    @property
    def own_model(self) -> ModelConfig | None:
        return self.model

    @property
    def offered_tools(self) -> tuple[str, ...]:
        return self.tools

    @property
    def offers_caller_tools(self) -> bool:
        return self.tool_search.caller

    @property
    def sources(self) -> Sequence[JsonValue]:
        context = (each.text for each in self.context if each.file is None)
        messages = (each.content for each in self.messages)
        return (self.system_prompt, *context, *messages, self.goal)

    @property
    def declared_output(self) -> JsonSchema | None:
        return self.output if self.unfit_output == "mend" else None  # it may be any text

    @property
    def shares_conversation(self) -> bool:
        return self.memory == "conversation"

    @property
    def example_question(self) -> str:
        return self.goal

    @property
    def content(self) -> str:
        return self.goal


@frozen(kw_only=True)
class ProgramSpec(GoalSpec):
    """A goal for which the model writes one program, which may call the step's tools."""

    needs_sandbox: ClassVar[bool] = True

    sandbox: str = SANDBOXES[0]
    """The name of the sandbox that runs the program."""
    sandbox_limits: SandboxLimits = CODE_LIMITS
    max_repairs: int = 1
    """How often the model may mend a program that failed."""
    given: Mapping[str, JsonValue] = field(factory=dict)
    """The variables of the program, with templates of their values (YAML key `with`)."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (*super().sources, self.given)


_OF_PROGRAMS: Final = ("sandbox", "max_repairs", "with")
"""Keys that say something of a program alone."""
_NOT_OF_PROGRAMS: Final = (
    *("examples", "artifacts", "memory", "history", "completion"),
    *("tool_failure", "at_limit", "unfit_output"),
)
"""Keys that say something of a conversation with a model, which a program takes the place of."""


def writes_program(section: Section) -> bool:
    """Whether a goal step has its model write a program (`code: true`)."""
    return section.plain("code") is True


def _check_program(section: Section, report: Report) -> None:
    is_program = writes_program(section)
    if is_program and section.mapping("tools") is not None:
        message = "a program is shown all tools of its step, and nothing is searched"
        help_ = "write tools: [name, …]"
        report(section.place_of("tools").fault("bad-value", message, help=help_))
    for name in _NOT_OF_PROGRAMS if is_program else _OF_PROGRAMS:
        if section.node(name) is None:
            continue
        place = section.place_of(name)
        if is_program:
            message = f"'{name}' is of a conversation, and here the model writes a program"
            help_ = f"leave out '{name}', or 'code: true'"
        else:
            message = f"'{name}' is of a program, and this step has none"
            help_ = f"add 'code: true', or leave out '{name}'"
        report(place.fault("bad-value", message, help=help_))


class _Goal(StepKind):
    name = "goal"
    spec = GoalSpec
    table = Table(
        "a goal step",
        (
            text_key("goal", "The aim; a template.", is_required=True),
            text_key("system_prompt", "System message of this step only; a template."),
            Key(
                name="context",
                description="What the step reads after the recipe's own `context`: a list of "
                "`{text: …}`, a template, and `{file: …}`. Steps that `extend` one template read "
                "the same at the same place.",
                types=("array",),
                shape={"items": {"$ref": "#/$defs/context_part"}},
            ),
            Key(
                name="messages",
                description="Further messages, in order.",
                types=("array",),
                shape={"items": {"$ref": "#/$defs/message"}},
            ),
            Key(
                name="tools",
                description="The tools that the model may call: names, or a toolset for all of its "
                "tools. As a mapping also how the model comes to them.",
                types=("array", "object"),
                shape={
                    "anyOf": [
                        {"type": "array", **TEXTS},
                        {"$ref": "#/$defs/step_tools"},
                    ]
                },
            ),
            mapping_key("output", "JSON Schema of the answer, or in short `{field: type}`."),
            flag_key(
                "code",
                "Whether the model writes one Python program, which calls the tools as functions "
                "of the module `tools` and whose last expression is the answer.",
            ),
            SANDBOX_KEY,
            mapping_key(
                "with",
                "With `code`: variables of the program; templates are rendered. The model is told "
                "their names and types, not their values.",
            ),
            count_key(
                "max_repairs",
                "With `code`: how often the model may mend a program that failed. Default: 1.",
                minimum=0,
                maximum=20,
            ),
            choice_key(
                "unfit_output",
                "What becomes of an answer that does not fit `output`: the model is asked to mend "
                "it, or its text is the output and no further call is made.",
                ("mend", "text"),
            ),
            Key(
                name="images",
                description="Paths of images that the model sees with the goal: PNG, JPEG, GIF or "
                "WebP beneath the recipe's folder, at most 20 of 5 MiB; templates.",
                types=("array",),
                shape=TEXTS,
            ),
            EXAMPLES_KEY,
            Key(
                name="artifacts",
                description="What the answer, a text, has to hold: paths of files, each in a "
                "fenced block with its path, or `code_blocks`, `files`, `edits`, `config`, "
                "`validation`. The step fails where one is missing.",
                types=("array",),
                shape=TEXTS,
            ),
            choice_key(
                "memory",
                "`isolated`: the prompt holds what templates read, and the bounded outputs of the "
                "steps under `depends_on` that no template reads. `conversation`: also the "
                "messages of earlier steps with `conversation`, and of earlier runs of the "
                "session.",
                ("isolated", "conversation"),
            ),
            Key(
                name="history",
                description="The bound of the prompts of a step with `memory: conversation`.",
                types=("object",),
                shape={"$ref": "#/$defs/history"},
            ),
            Key(
                name="completion",
                description="What completes the step.",
                types=("string", "object"),
                shape={
                    "anyOf": [
                        {"type": "string", "enum": [str(mode) for mode in CompletionMode]},
                        {"$ref": "#/$defs/completion"},
                    ]
                },
            ),
            choice_key(
                "tool_failure",
                "Whether a tool's failure ends the step or is reported to the model.",
                ("fail", "report"),
            ),
            choice_key(
                "at_limit",
                "What happens when a limit on model calls, tokens or cost is reached: the step "
                "fails, or one more call, without tools, answers from what there is; the step and "
                "the run are then partial.",
                ("fail", "answer"),
            ),
            MODEL_KEY,
            CACHE_KEY,
        ),
    )
    templates = ("goal", "system_prompt", "images", "with")
    tables: ClassVar = {
        "message": MESSAGE,
        "part": PART,
        "context_part": CONTEXT_PART,
        "example": EXAMPLE,
        "examples_from": EXAMPLES_FROM,
        "completion": COMPLETION,
        "history": HISTORY,
        "sandbox": SANDBOX,
        "step_tools": STEP_TOOLS,
    }
    look = Look(light="#7c3aed", dark="#a78bfa", outline="#7c3aed", brackets=("(", ")"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        step.goal = read_goal_parts(step.section, reader)
        _check_program(step.section, reader.report)
        read_sandbox(step.section, reader.report)
        check_names(step.section, reader.report)
        step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
        if step.section.text("unfit_output") == "text":
            step.output = {}

    def build(self, step: StepDraft, common: CommonKeys) -> GoalSpec:
        """The spec, with the tools that the checks resolved."""
        section = step.section
        if writes_program(section):
            name, limits = read_sandbox(section, ignore_fault)
            repairs = section.plain("max_repairs", 1)
            return ProgramSpec(
                **common,
                goal=section.text("goal") or "",
                system_prompt=section.text("system_prompt"),
                context=step.goal.context,
                messages=step.goal.messages,
                tools=step.tools,
                output=step.goal.schema,
                images=step.goal.images,
                model=step.goal.model,
                sandbox=name,
                sandbox_limits=limits,
                max_repairs=repairs if isinstance(repairs, int) else 1,
                given=given_mapping(section, "with"),
            )
        return GoalSpec(
            **common,
            goal=section.text("goal") or "",
            system_prompt=section.text("system_prompt"),
            context=step.goal.context,
            messages=step.goal.messages,
            tools=step.tools,
            tool_search=step.tool_search,
            output=step.goal.schema,
            unfit_output=section.text("unfit_output") or "mend",
            artifacts=step.goal.artifacts,
            images=step.goal.images,
            examples=step.goal.examples,
            examples_from=step.goal.examples_from,
            nearest=step.goal.nearest,
            completion=step.goal.completion,
            completion_links=step.goal.links,
            tool_failure=section.text("tool_failure") or _usual_policy(section),
            at_limit=section.text("at_limit") or "fail",
            memory=section.text("memory") or "isolated",
            history=step.goal.history,
            model=step.goal.model,
        )

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        return step.tools

    def cache_problems(self, step: StepDraft) -> Iterator[str]:
        """A shared conversation is a second result, which the cache does not hold."""
        if step.section.text("memory") == "conversation":
            yield "later steps continue its conversation (memory: conversation)"
        tools = step.section.mapping("tools")
        if tools is not None and read_section(tools, STEP_TOOLS, ignore_fault).plain("caller"):
            yield "it may call tools of whoever asks (tools: caller)"


GOAL = _Goal()


def _usual_policy(section: Section) -> str:
    """The default for `tool_failure`: in a conversation, errors
    of tools are reported to the model.
    """
    return "report" if section.text("memory") == "conversation" else "fail"
