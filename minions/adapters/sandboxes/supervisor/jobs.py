"""What is exchanged with the supervisor, in lines of JSON: one job in, one report out.

Between them the supervisor asks for calls of tools, and is told what they gave.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypedDict

Stop: TypeAlias = Literal[
    "timeout", "cpu", "memory", "output", "processes", "disk", "cancelled", "calls"
]
"""Why the supervisor ended a job."""


class JobLimits(TypedDict):
    """The limits of the whole process tree."""

    memory_bytes: int
    cpu_s: float
    wall_s: float
    output_bytes: int
    shown_bytes: int
    """Of each stream, how much of its head and tail is reported."""
    tasks: int
    """Processes and threads together."""
    file_bytes: int
    disk_bytes: int
    """How much space the job may take in the folders that it may change."""


class WorkspaceRules(TypedDict):
    """What holds for a job that changes a workspace."""

    folder: str
    """The workspace, without links."""
    open_names: list[str]
    """Patterns of what may be changed although it configures tools outside."""
    kept: list[str]
    """Further paths that it must not change, relative to the workspace."""
    is_git: bool
    """Whether the job is a fixed command of Git that stages or commits."""
    temporary: list[str]
    """Other folders that it may change, whose space counts, too."""
    mounts_at: int | None
    """Where in `argv` the mounts of protected paths go; None: the job itself may change nothing in
    the workspace, and the supervisor makes its changes for it."""


class Confinement(TypedDict):
    """What the job's own process gives up before it begins."""

    read: list[str]
    """Files and folders that may be read and executed."""
    write: list[str]
    """Folders that may be changed."""
    devices: list[str]
    """Device files that may be read and written."""
    network: bool
    """Whether sockets of the internet stay open."""


class CodeTools(TypedDict):
    """The module `tools` of code, and what makes the code repeatable."""

    names: list[str]
    now: float
    """The time that it reads, in seconds since 1970."""
    seed: str
    """Where its random numbers begin."""


class CodeJob(TypedDict):
    """Python code, executed in the job's own process."""

    engine: Literal["python", "monty"]
    text: str
    inputs: dict[str, object]
    path: list[str]
    """Folders to import the engine from."""
    program: str
    """The engine's own program; empty: it needs none."""
    memory_bytes: int
    """What the code's values may take; the limits of the job include the engine itself."""
    tools: CodeTools | None
    """None: it calls no tools."""


class Job(TypedDict):
    """One job; either `code` or `argv`."""

    code: CodeJob | None
    argv: list[str]
    env: dict[str, str]
    folder: str
    limits: JobLimits
    confinement: Confinement | None
    """None: what `argv` starts confines itself."""
    filter: str | None
    """The system call filter, as `bpf_program` names it; None: none."""
    filter_argument: int | None
    """Where in `argv` the number of a file with the filter goes; None: the job's own process
    installs it."""
    merged: bool
    """Whether stderr is part of stdout."""
    workspace: WorkspaceRules | None
    """None: the job changes no files."""
    protected: list[str]
    """Files and folders that are put back as they were when the job has ended."""
    lock: str | None
    """A file that is locked meanwhile, so that no two jobs take each other's changes for the state
    to put back; None: none is needed."""


class Trouble(TypedDict):
    """The exception that ended the code."""

    type: str
    message: str
    line: int | None


class Report(TypedDict):
    """How a job ended."""

    refused: str | None
    """Why it could not be started as confined as it has to be; then nothing ran."""
    stop: Stop | None
    exit_code: int | None
    signal: int | None
    value: object
    has_value: bool
    trouble: Trouble | None
    stdout: str
    stderr: str
    output_bytes: int
    is_cut: bool
    cpu_s: float
    wall_s: float
    peak_memory_bytes: int
    restored: list[str]
    """Protected files that the job had changed, and what was removed because tools trust it."""
    disk_bytes: int
    """How much more space its folders take than before."""
    unchecked: str | None
    """Why what the job left could not be looked through; then it must not be trusted."""


class ToolRequest(TypedDict):
    """A call of a tool that code asks for: one line from the supervisor before the report. The
    starter answers each with a line that is a `ToolAnswer`.
    """

    tool: str
    arguments: dict[str, object]


class ToolAnswer(TypedDict):
    """What the call gave."""

    value: object
    code: str | None
    """Why there is no value; None: there is one."""
    message: str


REQUEST_BYTES: Final = 1_048_576
"""The longest request of code, in bytes of JSON."""
ANSWER_BYTES: Final = 4_194_304
"""The longest answer that code is given, in bytes of JSON."""
RESULT_BYTES: Final = 1_048_576
"""The largest value that code may give, in bytes of JSON."""
