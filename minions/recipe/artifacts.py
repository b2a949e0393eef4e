"""Artifacts: the parts of a step's answer that later steps use, found without a model.

A pure function of the answer, so that they need no record of their own. Lines are walked from the
first to the last; no pattern goes back over the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct, field

from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue, parse_json, texts_in
from minions.data.schema import JsonSchema
from minions.data.texts import parse_toml
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.yaml_reader import read_document

ARTIFACT_KINDS: Final = ("code_blocks", "files", "edits", "changes", "config", "validation")
"""Artifacts that a step may declare by their kind (`changes`: files or edits); any other is the
path of a file."""
_MOST_CHARACTERS: Final = 250_000
"""Characters of an answer that are looked through: 100 ms at most; a longer one counts as cut."""
_MOST_ITEMS: Final = 2_000
"""Code blocks, edits or paths that are taken."""
_LONGEST_PATH: Final = 300
_MOST_LINES: Final = 20_000
_LONGEST_CONFIG: Final = 64_000

_TEXT: Final[JsonValue] = {"type": "string"}


def _object(**properties: JsonValue) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _items(**properties: JsonValue) -> dict[str, JsonValue]:
    return {"type": "array", "items": _object(**properties)}


@cache
def artifacts_schema(declared: tuple[str, ...] = ()) -> JsonSchema:
    """JSON Schema of what templates read as `steps.ID.artifacts`.

    Args:
        declared: What the step declares: without one of these it fails, so none of them is null.
    """
    config, validation = (
        "object" if kind in declared else ["object", "null"] for kind in ("config", "validation")
    )
    return _object(
        result={},
        code_blocks=_items(language=_TEXT, content=_TEXT, path={"type": ["string", "null"]}),
        files=_items(path=_TEXT, text=_TEXT),
        edits=_items(path=_TEXT, old=_TEXT, new=_TEXT),
        file_paths={"type": "array", "items": _TEXT},
        config={"type": config},
        validation={**_object(passed={"type": "boolean"}, text=_TEXT), "type": validation},
        is_cut={"type": "boolean"},
    )


def artifacts_of(output: JsonValue) -> dict[str, JsonValue]:
    """The artifacts of a step's output, as `artifacts_schema` describes them.

    Args:
        output: A text; of anything else the texts in it are looked through, in order.
    """
    text = output if isinstance(output, str) else "\n\n".join(texts_in(output))
    lines = text[:_MOST_CHARACTERS].splitlines()
    found = _Found(is_cut=len(text) > _MOST_CHARACTERS or len(lines) > _MOST_LINES)
    _walk(lines[:_MOST_LINES], found)
    return {
        "result": output,
        "code_blocks": [
            {"language": each.language, "content": each.content, "path": each.path}
            for each in found.blocks
        ],
        "files": [{"path": path, "text": content} for path, content in found.files.items()],
        "edits": [{"path": each.path, "old": each.old, "new": each.new} for each in found.edits],
        "file_paths": list[JsonValue](sorted(found.paths)),
        "config": _config(found.blocks),
        "validation": _validation(output, found),
        "is_cut": found.is_cut,
    }


def missing_artifacts(declared: Sequence[str], artifacts: Mapping[str, JsonValue]) -> list[str]:
    """The declared artifacts that an answer lacks.

    Args:
        declared: Kinds, or paths of files that have to be among `files` or `edits`.
    """
    given = {
        str(each["path"]) for kind in ("files", "edits") for each in _mappings(artifacts.get(kind))
    }
    there = {each for each in ARTIFACT_KINDS if artifacts.get(each)}
    there |= {"changes"} if given else set()
    return [each for each in declared if each not in (there if each in ARTIFACT_KINDS else given)]


def _mappings(value: JsonValue) -> Iterator[Mapping[str, JsonValue]]:
    if isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, Mapping))


# --- what is found ------------------------------------------------------------------------------


class _Block(Struct, frozen=True):
    """A fenced block of code."""

    language: str
    content: str
    path: str | None


class _Edit(Struct, frozen=True):
    """A piece of a file that is to be replaced."""

    path: str
    old: str
    new: str


class _Found(Struct):
    """What the walk over the lines found so far."""

    blocks: list[_Block] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Whole texts of files, by path; the last block of a path counts."""
    edits: list[_Edit] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    prose: list[str] = field(default_factory=list)
    """The lines outside of blocks and edits."""
    path: str | None = None
    """The path that the newest line of its own, or the newest edit, named."""
    is_cut: bool = False
    """Whether the last block or edit is not closed: the answer was cut off."""

    def add_path(self, path: str | None) -> None:
        if path is not None and len(self.paths) < _MOST_ITEMS:
            self.paths.add(path)


def _walk(lines: Sequence[str], found: _Found) -> None:
    at, announced = 0, False
    while at < len(lines):
        line = lines[at]
        fence = _fence(line)
        if fence is not None:
            end = _end_of_block(lines, at + 1, fence)
            _add_block(lines[at + 1 : end], fence, found, announced=announced)
            found.is_cut |= end == len(lines)
            at, announced = end + 1, False
        elif _is_search(line):
            at, announced = _read_edit(lines, at, found), False
        else:
            found.prose.append(line)
            if line.strip():
                path = _announced_path(line)
                found.path, announced = path or found.path, path is not None
                if "." in line:  # a path in prose has an ending
                    for word in _words_of(line):
                        found.add_path(_path_in_prose(word))
            at += 1


# --- fenced blocks ------------------------------------------------------------------------------


class _Fence(Struct, frozen=True):
    """The first line of a fenced block."""

    mark: str
    """The fence itself, such as three backticks."""
    info: str
    """The text behind it."""


def _fence(line: str) -> _Fence | None:
    bare = line.strip()
    sign = bare[:1]
    if sign not in ("`", "~"):
        return None
    mark = bare[: len(bare) - len(bare.lstrip(sign))]
    info = bare[len(mark) :].strip()
    return _Fence(mark, info) if len(mark) >= 3 and "`" not in info else None


def _end_of_block(lines: Sequence[str], start: int, fence: _Fence) -> int:
    """The index of the closing line; the number of lines where there is none."""
    for at in range(start, len(lines)):
        bare = lines[at].strip()
        if bare.startswith(fence.mark) and not bare.strip(fence.mark[0]):
            return at
    return len(lines)


def _add_block(lines: Sequence[str], fence: _Fence, found: _Found, *, announced: bool) -> None:
    language, path = _info(fence.info)
    path = path or (found.path if announced else None)
    if any(_is_search(line) for line in lines):
        found.path = path or found.path
        _edits_in(lines, found)
        return
    path = path or _path_of_comment(lines)
    content = "".join(f"{line}\n" for line in lines)
    if len(found.blocks) < _MOST_ITEMS:
        found.blocks.append(_Block(language, content, path))
        if path is not None:
            found.files[path] = content
    found.add_path(path)


def _info(info: str) -> tuple[str, str | None]:
    """Language and path in the text behind a fence: `python a/b.py`, `python:a/b.py`,
    `python title="a/b.py"`, `a/b.py`.
    """
    from minions.contracts.plans import FILES_BY_NAME

    language, path = "", None
    for number, word in enumerate(info.replace("{", " ").replace("}", " ").split()):
        name, sign, value = word.partition("=")
        if sign and name.casefold() in ("path", "file", "filename", "title", "name"):
            path = path or as_path(value)
        elif number == 0 and ":" in word and as_path(word.partition(":")[2]) is not None:
            language, path = word.partition(":")[0], as_path(word.partition(":")[2])
        elif number == 0 and word in FILES_BY_NAME:
            language = word  # as in `Dockerfile`
        elif (found := as_path(word)) is not None:
            path = path or found
        elif number == 0:
            language = word
    return language.casefold() or "text", path


_COMMENTS: Final = ("//", "#", "--", ";", "/*", "<!--", "%")


def _path_of_comment(lines: Sequence[str]) -> str | None:
    """The path in the first line, if that is a comment with nothing else."""
    first = lines[0].strip() if lines else ""
    sign = next((each for each in _COMMENTS if first.startswith(each)), None)
    if sign is None:
        return None
    inner = first[len(sign) :].removesuffix("*/").removesuffix("-->").strip()
    return _titled_path(inner)


def _announced_path(line: str) -> str | None:
    """The path of a line that is nothing but a path: `a/b.py`, `**a/b.py**:`, `File: a/b.py`."""
    bare = line.strip().lstrip("#>*-+ ").strip()
    return _titled_path(bare)


_TITLES: Final = ("file", "path", "filename", "file path", "new file", "create", "update", "modify")


def _titled_path(text: str) -> str | None:
    text = text.strip("*_`: ")
    title, sign, rest = text.partition(":")
    if sign and title.strip("*_` ").casefold() in _TITLES:
        text = rest
    return as_path(text.strip("*_` "))


# --- edits --------------------------------------------------------------------------------------


def _is_search(line: str) -> bool:
    return line.startswith("<<<<<<<") and line.strip("< \t").upper() in ("SEARCH", "ORIGINAL", "")


def _is_divider(line: str) -> bool:
    return line.startswith("=======") and not line.strip("= \t")


def _is_replace(line: str) -> bool:
    return line.startswith(">>>>>>>") and line.strip("> \t").upper() in ("REPLACE", "UPDATED", "")


def _edits_in(lines: Sequence[str], found: _Found) -> None:
    """The edits in a fenced block; lines between them may name another path."""
    at = 0
    while at < len(lines):
        if _is_search(lines[at]):
            at = _read_edit(lines, at, found)
            continue
        path = _announced_path(lines[at]) or _path_of_comment(lines[at : at + 1])
        found.path = path or found.path
        at += 1


def _read_edit(lines: Sequence[str], start: int, found: _Found) -> int:
    """Read the edit that begins there; returns the index of the line behind it."""
    middle = _index(lines, start + 1, _is_divider)
    end = _index(lines, middle + 1, _is_replace)
    if end >= len(lines):
        found.is_cut = True
        return len(lines)
    old, new = lines[start + 1 : middle], lines[middle + 1 : end]
    path = found.path
    found.add_path(path)
    if path is None or len(found.edits) >= _MOST_ITEMS:
        return end + 1
    if not any(line.strip() for line in old):  # nothing to search for: a new file
        found.files[path] = "".join(f"{line}\n" for line in new)
        return end + 1
    # Lines that are removed go with their line ends.
    ending = "" if new else "\n"
    found.edits.append(_Edit(path, "\n".join(old) + ending, "\n".join(new)))
    return end + 1


def _index(lines: Sequence[str], start: int, is_meant: object) -> int:
    assert callable(is_meant)  # noqa: S101
    return next((at for at in range(start, len(lines)) if is_meant(lines[at])), len(lines))


# --- paths --------------------------------------------------------------------------------------

_PATH: Final = re.compile(r"[\w.@+\-\[\]()$~/]+")
_SURROUND: Final = "\"'`*()[]{}<>,;:!?"
_NO_FILES: Final = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "node.js", "vue.js", "next.js", "express.js"}
)
_ENDINGS: Final = frozenset(
    re.findall(
        r"\w+",
        "bash bat c cc cfg cfn conf cpp cs css csv cu dart db diff env ex exs go gradle "
        "graphql h hpp hs html ini ipynb java jl js json json5 jsonl jsx kt less lock log "
        "lua md mdx mjs php pl po properties proto ps1 py pyi pyx r rb rs rst sass scala "
        "scss sh sql svelte svg swift tex tf toml ts tsx txt vb vue xml yaml yml zig zsh ",
    )
)
"""Endings of names without a folder that are files in prose: `os.path` is none."""


def as_path(text: str) -> str | None:
    """The text as the path of a file below a folder; None: it is none."""
    from minions.contracts.plans import is_path

    path = text.strip("\"'`")
    while path.startswith("./"):
        path = path[2:]
    is_plain = 0 < len(path) <= _LONGEST_PATH and _PATH.fullmatch(path) is not None
    parts = path.split("/")
    if not is_plain or not is_path(path) or ".." in parts or not parts[-1] or not parts[0]:
        return None
    return None if _is_number(path) else path


def _is_number(text: str) -> bool:
    """Whether it is a number, a version or a date rather than a name."""
    return not any(each.isalpha() for each in text.lstrip("vV"))


def _words_of(line: str) -> list[str]:
    return line.replace("(", " ").replace(")", " ").split()


def _path_in_prose(word: str) -> str | None:
    """The path that a word of a sentence is."""
    bare = word.strip(_SURROUND).rstrip(".").strip(_SURROUND)
    if "://" in word or "@" in bare or bare.casefold() in _NO_FILES:
        return None
    path = as_path(bare)
    if path is None:
        return None
    name, _, ending = path.rpartition("/")[2].rpartition(".")
    if "/" not in path:
        return path if ending.casefold() in _ENDINGS and name else None
    # Without an ending it may be a choice, `and/or`, or a folder.
    return path if name and ending.isalnum() and not path.startswith("www.") else None


# --- configuration and verdicts -----------------------------------------------------------------


def _config(blocks: Sequence[_Block]) -> dict[str, JsonValue] | None:
    """The last block of JSON, YAML or TOML that is a mapping."""
    for block in reversed(blocks):
        if len(block.content) > _LONGEST_CONFIG:
            continue
        found = _parse(block)
        if isinstance(found, Mapping):
            return dict(found)
    return None


def _parse(block: _Block) -> JsonValue:
    ending = (block.path or "").rpartition(".")[2]
    language = block.language if block.language != "text" else ending
    try:
        if language == "json" or (language == "" and block.content.lstrip().startswith("{")):
            return parse_json(block.content)
        if language in ("yaml", "yml"):
            return to_plain(read_document(block.content, "config"))
        if language == "toml":
            return parse_json(_json_of_toml(block.content))
    except (ValueError, RecipeError, RecursionError):
        return None
    return None


def _json_of_toml(text: str) -> str:
    import json

    return json.dumps(parse_toml(text), default=str)


_VERDICT_KEYS: Final = frozenset(
    {
        *("verdict", "validation", "validation result", "validation status", "status", "passed"),
        *("result", "test result", "tests", "outcome", "success", "valid", "overall"),
    }
)
_PASSED: Final = frozenset(
    {"pass", "passed", "passes", "success", "successful", "succeeded", "ok", "valid", "true", "yes"}
)
_FAILED: Final = frozenset(
    {"fail", "failed", "fails", "failure", "error", "invalid", "false", "no", "unsuccessful"}
)


def _validation(output: JsonValue, found: _Found) -> dict[str, JsonValue] | None:
    """The verdict; None: there is none, or they contradict each other."""
    verdicts: dict[str, bool] = {}
    if isinstance(output, Mapping):
        for key, value in output.items():
            passed = _verdict(key, value)
            if passed is not None:
                verdicts[f"{key}: {value}"] = passed
    for line in found.prose:
        key, sign, value = line.strip().strip("*_#->` ").partition(":")
        passed = _verdict(key, value) if sign else None
        if passed is not None:
            verdicts[line.strip()] = passed
    if len(set(verdicts.values())) != 1:
        return None
    [passed] = set(verdicts.values())
    return {"passed": passed, "text": "\n".join(verdicts)}


def _verdict(key: str, value: JsonValue) -> bool | None:
    if key.strip("*_` ").casefold().replace("_", " ") not in _VERDICT_KEYS:
        return None
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    words = re.split(r"[^a-z]+", value.casefold()[:100].strip("*_` "), maxsplit=1)
    first = next((each for each in words if each), "")
    if first in _PASSED:
        return True
    return False if first in _FAILED else None
