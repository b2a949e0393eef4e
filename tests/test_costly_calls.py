"""Every use of patterns, codecs and parsers has a bound, so that no text keeps them busy.

If a test here fails for a new line of yours: prefer a helper that stands in the table already
(`minions.data.patterns.search` for patterns of others, `parse_json` and `find_json_value` for
JSON, `near_names` for similar names). A constant pattern needs no entry if its time grows with its
text alone: write it so that no two loops can match the same text, and begin a search with a
character rather than a loop. Anything else: say in the table what bounds the text, and test that.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import pytest

from pattern_growth import growing_loops
from source_trees import PACKAGE as ROOT
from source_trees import module_paths, nodes_of, tree_of

PATTERNS: Final = {
    # Constants whose time may grow with the square of the text, with what bounds the text.
    "adapters/models/rate_limit_headers.py::_PART": "64 characters (_LONGEST)",
    "adapters/sandboxes/supervisor/git_trust.py::_LINE": "what follows may be empty: no retry",
    "adapters/tools/confined_paths.py::_CLASS": "1,000 characters (_LONGEST)",
    "data/schema.py::_WORD_OR_TEXT": "2,000 characters (_LONGEST_MESSAGE)",
    "capture/task_inputs.py::_PART": "2,000 characters (MOST_TEXT)",
    "capture/task_inputs.py::_TOKEN": "2,000 characters (MOST_TEXT)",
    "capture/template_writing.py::_EXPRESSION": "a recipe's, or our own: each text is closed",
    "engine/compile/dry_run.py::_EXPRESSION": "compiled before: each '{{' is closed",
    "data/fault_fixes.py::_MEANT": "2,000 characters (_LONGEST_MESSAGE)",
    "interfaces/lsp/completions.py::_MEMBER": "500 characters (_LONGEST)",
    "interfaces/lsp/completions.py::_WORD": "500 characters (_LONGEST)",
    "interfaces/lsp/cursor.py::_FLOW_SIGN": "a word is read from its begin, possessively",
    "recipe/text/recipe_format.py::_DASHES": "a line without blanks at its end: the first try fits",
    "app/settings/settings.py::_KEYS": "the loop behind 'PRIVATE KEY' ends at the end of the text",
    # Patterns that are made while the program runs.
    "adapters/tools/confined_paths.py::__init__": "1,000 characters; `*` of fnmatch is atomic",
    "adapters/tools/files_toolset.py::_check": "compiled; matched in a process with a deadline",
    "adapters/tools/files_toolset.py::_matching_here": "100 characters of texts alone: no loops",
    "capture/origins.py::_texts": "escaped texts alone: no loops",
    "capture/known_values.py::pattern_of_words": "escaped texts alone: no loops",
    "capture/task_inputs.py::_is_specific": "escaped texts alone: no loops",
    "capture/model_steps.py::_names_read": "escaped names alone: no loops",
    "capture/known_runs.py::is_echo": "escaped texts alone: no loops",
    "capture/task_inputs.py::used_by": "escaped names alone: no loops",
    "capture/program_building.py::_without_unread": "escaped names alone: no loops",
    "planning/plan_fit.py::_replace_words": "escaped texts alone: no loops",
    "planning/plan_fit.py::_refuse_traces": "escaped texts alone: no loops",
    "contracts/protected_files.py::__init__": "4,096 characters; `*` of fnmatch is atomic",
    "contracts/secrets.py::__init__": "escaped texts alone: no loops",
    "engine/views/run_search.py::hits_in": "escaped words with blanks between them, of one "
    "query; the texts are those of one run",
    "data/fault_fixes.py::_word_at": "escaped texts alone: no loops",
    "interfaces/lsp/mentions.py::renamed": "STEP_PATTERN: one loop, from the beginning",
    "interfaces/server/router.py::_pattern": "our own paths",
    "recipe/recipe_files.py::slug_of": "NAME_PATTERN: one loop, from the beginning",
    "recipe/text/sections.py::_check_text": "patterns of our keys: one loop each",
}
"""Uses of `re` that are not proven by themselves, with their bound."""

CODECS: Final[dict[str, str]] = {
    "adapters/binary_files/file_reader.py::__init__": "JSON, our own program wrote it; 4 MiB",
    "adapters/binary_files/file_reader.py::json_texts": "JSON, our own program wrote it",
    "adapters/binary_files/file_reader.py::_next": "JSON, our own program wrote it; 300 characters",
    "adapters/binary_files/parquet_writer.py::_groups": "JSON, what we wrote",
    "adapters/binary_files/reader_program.py::main": "JSON, our own process wrote it",
    "adapters/models/answer_confidence.py::tokens_of": "JSON, one answer, or an event of a stream",
    "adapters/models/answer_assembly.py::is_whole": "JSON, 100 looks of one call",
    "adapters/models/answer_reader.py::take_event": "JSON, one event of a stream",
    "adapters/models/block_answers.py::result": "JSON, the body of one answer",
    "adapters/models/cassette_models.py::difference": "in a thread; _MOST_COMPARED lines",
    "adapters/models/cassette_request.py::request_digest": "JSON, what we wrote of one prompt",
    "adapters/models/chat_failures.py::_error_of": "JSON, the body of one answer",
    "adapters/models/profile_files.py::_read": "JSON, 64 KiB of one file",
    "adapters/models/server_facts.py::_fetch_facts": "JSON, 256 KiB of one answer",
    "adapters/models/provider_batches.py::_object_in": "JSON, 20 MiB (_MOST_BYTES), of Gemini "
    "512 MiB with all answers of a batch (_MOST_RESULT_BYTES)",
    "testing/batch_endpoint.py::_carry_out": "JSON, requests of tests",
    "testing/batch_endpoint.py::_gemini": "JSON, written by itself",
    "testing/batch_endpoint.py::_uploaded": "JSON, requests of tests",
    "testing/unconfined_sandbox.py::_execute_text": "JSON, our own function wrote it, in a test",
    "recipe/kinds/code_kind.py::functions_read": "linear in code of a recipe or of one answer",
    "testing/server_behaviours.py::_fits": "JSON, what a test has the model say",
    "testing/server_behaviours.py::_is_object": "JSON, what a test has the model say",
    "adapters/models/chat_request.py::_sendable": "JSON, arguments of a call, of one answer",
    "adapters/models/chat_request.py::request_body": "JSON, what we wrote",
    "adapters/models/openai.py::result": "JSON, the body of one answer",
    "adapters/http/http_response.py::__init__": "decompressed in pieces; the sum is bounded",
    "adapters/models/gemini_prefixes.py::_ask": "JSON, 64 KiB of one answer (_MOST_BYTES)",
    "adapters/models/local/engines.py::start": "JSON, our own program wrote it",
    "adapters/models/local/engine_program.py::serve": "JSON, our own process wrote it",
    "adapters/models/local/weights.py::_read": "JSON, what we wrote",
    "adapters/models/prompt_parts.py::_object_of": "JSON, arguments of a call, of one answer",
    "adapters/models/script_file.py::_read": "a file of 1 MiB",
    "adapters/models/peer_model.py::_arguments": "JSON, arguments of a call, of one answer",
    "adapters/sandboxes/supervised.py::_decoded": "JSON, our own program wrote it",
    "adapters/sandboxes/supervised.py::_carry_out": "JSON, which the supervisor has parsed; 1 MiB",
    "adapters/sandboxes/supervisor/program_tools.py::_call": "in the sandbox, within its limits",
    "adapters/sandboxes/supervisor/program_tools.py::read_request": "in the sandbox; 1 MiB",
    "adapters/sandboxes/supervisor/supervise.py::_add_result": "in the sandbox, within its limits",
    "adapters/sandboxes/supervisor/supervise.py::main": "JSON, our own program wrote it",
    "adapters/sandboxes/supervisor/child.py::_value_of": "in the sandbox, within its limits",
    "adapters/stores/body_cipher.py::_decoded": "what we wrote",
    "adapters/stores/body_cipher.py::_opened": "what we wrote: it was authenticated before",
    "adapters/stores/body_cipher.py::read_keys": "a line of a file that the operator names, of at "
    "most 100,000 bytes",
    "adapters/stores/postgres_journal.py::_unpacked": "what we wrote",
    "adapters/stores/postgres_side_tables.py::_value": "JSON, what we wrote",
    "adapters/stores/sealed_stores.py::get": "JSON, what we wrote",
    "adapters/stores/sqlite_entries.py::decompressed": "what we wrote",
    "adapters/stores/sqlite_entries.py::unpacks_to_more": "unpacked up to a limit",
    "adapters/stores/sqlite_side_tables.py::_entry": "JSON, what we wrote",
    "adapters/stores/stored_rows.py::_lengthened": "JSON, one row",
    "adapters/tools/many_files.py::imported_files": "in a thread; a file of at most "
    "max_read_bytes, 50 of them (_MOST_NAMED)",
    "adapters/tools/many_files.py::outline_of": "in a thread; a file of at most max_read_bytes",
    "adapters/tools/files_toolset.py::_matching_there": "JSON, our own process wrote it",
    "adapters/tools/mcp/login_store.py::read": "JSON, 1 MiB that we wrote ourselves",
    "adapters/tools/mcp/listing.py::_diff": "_MOST_COMPARED lines",
    "adapters/tools/mcp/mcp_toolsets.py::_store_content": "linear in its text, a message of 8 MiB",
    "adapters/tools/many_files.py::_file_diff": "in a thread; _MOST_COMPARED lines",
    "data/codec.py::_from_base64": "in proportion to its text",
    "data/errors.py::near_names": "_MOST_COMPARED pairs of characters",
    "contracts/journal/facts/step_facts.py::before": "in proportion to its text",
    "contracts/protected_files.py::folded_name": "a name of at most 4,096 characters",
    "data/texts.py::parse_toml": "200 dots of a line; the callers bound the text",
    "engine/compile/text_index.py::words_of": "20,000 characters (_MOST_CHARACTERS)",
    "engine/calls/model_executors.py::instruction_in": "JSON, one answer",
    "engine/views/lookup.py::json_of_blob": "JSON, what we wrote, or a blob of an import",
    "engine/views/run_diff.py::_merge_names": "each name stands once in a list: no text",
    "engine/sessions/archive.py::_value": "JSON, one line of a file that the operator imports",
    "engine/step/model_work.py::_answer_text": "JSON, arguments of a call, of one answer",
    "interfaces/cli/shell_completion.py::_table": "JSON, our own file",
    "interfaces/cli/commands/batch_command.py::_is_result": "JSON, a file named in a command",
    "data/fault_fixes.py::likeness": "60 characters (_CUT)",
    "app/pages/run_page.py::_laid_out": "JSON, one value of a run that is exported",
    "interfaces/server/openapi.py::_document": "JSON, our own document",
    "app/wiring/webhook.py::_key": "a setting",
    "planning/step_edit.py::recipe_diff": "a recipe of 1 MiB, in a command",
    "planning/step_executor.py::step_executor_document": "our own file",
    "recipe/kinds/code_kind.py::_check_code": "in proportion to its text, a recipe of 1 MiB",
    "recipe/recipe_files.py::slug_of": "in proportion to its text; the first 64 KiB of a recipe",
    "recipe/text/yaml_reader.py::_key_without_colon": "a recipe of 1 MiB",
    "planning/step_edit.py::_whole_span": "a recipe of 1 MiB, which was read before",
    "recipe/text/yaml_reader.py::document": "a recipe of 1 MiB; nodes are counted",
    "testing/exchange.py::body": "JSON, requests of tests",
}
"""Uses of other parsers and codecs, with the bound of what they are given.

JSON takes time in proportion to its text, some 10 ms for a MiB."""

COSTLY: Final = frozenset(
    {
        "ElementTree.fromstring",
        "ElementTree.parse",
        "ast.literal_eval",
        "ast.parse",
        "base64.b64decode",
        "b64decode",
        "bz2.decompress",
        "difflib.SequenceMatcher",
        "difflib.get_close_matches",
        "difflib.ndiff",
        "difflib.unified_diff",
        "SequenceMatcher",
        "gzip.decompress",
        "json.load",
        "json.loads",
        "lzma.decompress",
        "tomllib.load",
        "tomllib.loads",
        "unicodedata.normalize",
        "yaml.load",
        "yaml.parse",
        "yaml.safe_load",
        "yaml.scan",
        "self._yaml.parse",
        "zlib.decompress",
        "zlib.decompressobj",
    }
)
RE_CALLS: Final = frozenset(
    {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "finditer", "findall"}
)


class Use(NamedTuple):
    """A call in `minions`."""

    module: str
    """The file below `minions`."""
    scope: str
    """The function around it, or the name that the result is given at the top of the module."""
    line: int
    call: ast.Call

    @property
    def key(self) -> str:
        return f"{self.module}::{self.scope}"


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): tree_of(path) for path in module_paths()}


@cache
def uses() -> tuple[Use, ...]:
    found: list[Use] = []
    for module, tree in trees().items():
        _add_uses(found, module, tree, "")
    return tuple(found)


def _add_uses(found: list[Use], module: str, node: ast.AST, scope: str) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.Name | ast.expr_context):
            continue  # most nodes are such, and contain no call
        inner = scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = child.name
        elif isinstance(child, ast.Assign | ast.AnnAssign) and not scope:
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            inner = ast.unparse(target)
        if isinstance(child, ast.Call):
            found.append(Use(module, scope, child.lineno, child))
        _add_uses(found, module, child, inner)


def _name(call: ast.Call) -> str:
    words, node = [], call.func
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([node.id, *reversed(words)])
    return ast.unparse(call.func) if words else ""


# --- patterns --------------------------------------------------------------------------------


class Known(NamedTuple):
    """A pattern as it stands in the code."""

    pattern: str | bytes
    flags: int
    searches: bool
    whole: bool


def _known(use: Use) -> Known | None:
    """The pattern of a use, with how it is used; None: it is made while the program runs."""
    name = _name(use.call).removeprefix("re.")
    if name == "compile" and use.scope and not use.scope[0].islower():
        made = getattr(importlib.import_module(_dotted(use.module)), use.scope, None)
        if isinstance(made, re.Pattern):
            how = _methods(use)
            whole = how == {"fullmatch"}
            flags = made.flags
            return Known(made.pattern, flags, not how <= {"match", "fullmatch"}, whole)
    try:
        pattern = ast.literal_eval(use.call.args[0])
    except (ValueError, IndexError):
        return None
    flags = 0
    for each in (*use.call.args[1:], *(word.value for word in use.call.keywords)):
        if ast.unparse(each).startswith("re."):
            for part in ast.unparse(each).split(" | "):
                flags |= getattr(re, part.removeprefix("re."))
    return Known(pattern, flags, name not in ("match", "fullmatch"), name == "fullmatch")


def _dotted(module: str) -> str:
    return "minions." + module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _methods(use: Use) -> set[str]:
    """The methods of a pattern that its module calls; `search` too if others may use it."""
    found = {
        node.attr
        for node in nodes_of(ROOT / use.module)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == use.scope
    }
    return found if found and use.scope.startswith("_") else {*found, "search"}


def _pattern_uses() -> list[Use]:
    return [
        use
        for use in uses()
        if _name(use.call).startswith("re.") and _name(use.call)[3:] in RE_CALLS
    ]


def _why_unproven(use: Use) -> str:
    known = _known(use)
    if known is None:
        return "it is made while the program runs"
    pattern, flags, searches, whole = known
    flags &= re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
    return growing_loops(pattern, flags, searches=searches, whole=whole)


def test_every_pattern_takes_time_in_proportion_to_its_text_or_has_a_bound() -> None:
    """A-124."""
    unproven = {use.key: (use, why) for use in _pattern_uses() if (why := _why_unproven(use))}
    new = [
        f"minions/{use.module}:{use.line} {_name(use.call)}: {why}"
        for key, (use, why) in unproven.items()
        if key not in PATTERNS
    ]
    assert not new, "\n".join(["Mend these, or enter a bound (see the top of this file):", *new])
    assert not (PATTERNS.keys() - unproven.keys()), "These need no entry any more."


def test_no_pattern_has_a_possessive_or_atomic_group() -> None:
    """Python before 3.11.5 matches them wrongly where the group could give something back; a
    possessive loop over one set of characters is right.
    """
    odd = re.compile(r"\br[\"'].*(?:\)(?:[*+?]|\{\d*,?\d*\})\+|\(\?>)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(ROOT.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if odd.search(line)
    ]
    assert found == []


def test_every_use_of_a_costly_codec_or_parser_has_a_bound() -> None:
    """A-124."""
    found = {use.key: use for use in uses() if _name(use.call) in COSTLY}
    new = [
        f"minions/{use.module}:{use.line} {_name(use.call)} in {use.scope}"
        for key, use in found.items()
        if key not in CODECS
    ]
    assert not new, "\n".join(["Enter what bounds these (see the top of this file):", *new])
    assert not (CODECS.keys() - found.keys()), "These need no entry any more."


# --- depth ------------------------------------------------------------------------------------

OF_OURS: Final = {
    "adapters/binary_files/file_reader.py::__init__": "our own program",
    "adapters/binary_files/file_reader.py::json_texts": "our own program",
    "adapters/binary_files/file_reader.py::_next": "our own program",
    "adapters/binary_files/parquet_writer.py::_groups": "we wrote it: outputs were read as JSON",
    "adapters/binary_files/reader_program.py::main": "our own process",
    "adapters/models/cassette_request.py::request_digest": "we made it",
    "adapters/models/chat_request.py::request_body": "we made it",
    "adapters/models/local/engines.py::start": "our own program",
    "adapters/models/local/engine_program.py::serve": "our own process",
    "adapters/models/server_facts.py::_fetch_facts": "its caller catches the error",
    "adapters/sandboxes/supervised.py::_decoded": "our own program, which has parsed it before",
    "adapters/sandboxes/supervisor/program_tools.py::_call": "in the sandbox",
    "adapters/sandboxes/supervisor/supervise.py::main": "our own process",
    "adapters/tools/files_toolset.py::_matching_there": "our own program",
    "interfaces/cli/shell_completion.py::_table": "our own file",
    "interfaces/server/openapi.py::_document": "our own document",
    "planning/step_executor.py::step_executor_document": "our own file",
}
"""Parsers that are given nothing of anybody else."""


def _catches_depth(module: str) -> Iterator[tuple[str, bool]]:
    """Each call of a recursive parser by its key, and whether its RecursionError is caught."""

    def look(node: ast.AST, scope: str, *, is_caught: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            inner, caught = scope, is_caught
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner, caught = child.name, False
            if isinstance(node, ast.Try) and child in node.body:
                caught = is_caught or any(
                    each.type is None or "RecursionError" in ast.unparse(each.type)
                    for each in node.handlers
                )
            if isinstance(child, ast.Call) and _name(child) in RECURSIVE:
                yield f"{module}::{inner}", caught
            yield from look(child, inner, is_caught=caught)

    yield from look(trees()[module], "", is_caught=False)


RECURSIVE: Final = frozenset(
    {"json.load", "json.loads", "tomllib.load", "tomllib.loads", "yaml.safe_load", "yaml.load"}
)


def test_no_text_that_is_nested_too_deep_ends_a_process() -> None:
    """A text of 1,000 brackets raises RecursionError, which is no ValueError."""
    calling = {use.module for use in uses() if _name(use.call) in RECURSIVE}
    modules = [module for module in sorted(calling) if not module.startswith("testing/")]
    found = [each for module in modules for each in _catches_depth(module)]
    open_ = {key for key, is_caught in found if not is_caught}
    assert len(found) > 25
    assert sorted(open_ - OF_OURS.keys()) == []
    assert sorted(OF_OURS.keys() - open_) == []


# --- the proof itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        r"a*a*b",
        r"\s+$",
        r"(a|b)*[ab]*c",
        r"x\s*y?\s*z",
        r"(?:a|a)*b",
        r"<a[^>]*>.*</a>",
        r"(a*)*b",
        r"(a+)+b",
        r"(?:(?:ab)+|c)*d(?:x+)+y",
        r"\d+\.\d+",
    ],
)
def test_patterns_that_grow_with_the_square_of_the_text_are_found(pattern: str) -> None:
    assert growing_loops(pattern, searches=True, whole=False)


@pytest.mark.parametrize(
    ("pattern", "searches", "whole"),
    [
        (r"\s+", True, False),
        (r"\s+#", False, False),
        (r"[a-z]+(?:-[a-z]+)*", False, True),
        (r"key: *([^\n]*)", True, False),
        (r"^a+b", True, False),
        (r"[0-9]{1,9}x", True, False),
    ],
)
def test_others_are_not(pattern: str, searches: bool, whole: bool) -> None:
    assert growing_loops(pattern, searches=searches, whole=whole) == ""
