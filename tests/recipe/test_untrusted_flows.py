"""Where untrusted text can reach a tool that writes, sends or spends, and what stops it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minions.adapters.tools.function_tool import tool
from minions.app.wiring.built_in_extensions import built_in_tools, built_in_toolsets
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.checks.flows import find_flows
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import tool_specs
from minions.recipe.reading.load import (
    LoadedRecipe,
    check_recipe_text,
    load_recipe_text,
    recipe_from_document,
)


@tool(effect="once")
def mail(to: str, text: str) -> str:
    """Send a mail."""
    return to


@tool(effect="pure")
def inbox() -> list[str]:
    """Mails that came in."""
    return []


@tool(effect="pure", reads="trusted")
def own_notes() -> str:
    """What the operator wrote."""
    return ""


@tool
def undeclared(text: str) -> str:
    """A function of which nothing is known."""
    return text


_TOOLS = (mail, inbox, own_notes, undeclared, *built_in_tools())
CATALOG = Catalog(
    toolsets=built_in_toolsets(),
    tools={each.spec.name: each.spec for each in _TOOLS},
)
HEAD = (
    "tools: [{http: {allow: [a.example]}}, files, data, shell, git]\n"
    "permissions: {allow_write: true}\n"
)


def checked(steps: str, head: str = HEAD, catalog: Catalog = CATALOG) -> LoadedRecipe:
    return check_recipe_text(f"id: r\n{head}steps:\n{steps}", "r.yaml", catalog)


def paths(steps: str, head: str = HEAD, catalog: Catalog = CATALOG) -> list[str]:
    """The paths that the warnings name; there is no other fault."""
    faults = checked(steps, head, catalog).faults
    found = [fault for fault in faults if fault.code == "untrusted-flow"]
    assert all(fault.is_warning for fault in found)
    assert not [fault for fault in faults if not fault.is_warning]
    return [fault.message.partition("approval: ")[2] for fault in found]


GET = "- {id: fetch, tool: http__get, params: {url: 'https://a.example'}}\n"
POST = "- {id: post, tool: http__post, params: {url: 'https://a.example', json: '{{ VALUE }}'}}\n"


def post(value: str, more: str = "") -> str:
    """A step that posts the value, with further keys."""
    return POST.replace("VALUE", value).replace("}}\n", f"}}{more}}}\n")


def test_a_path_from_a_page_through_a_model_to_a_post_is_named_with_its_steps_and_tools() -> None:
    """A-143."""
    read = "- {id: read, goal: 'Sum up: {{ fetch.body }}'}\n"
    loaded = checked(GET + read + post("read"))
    (fault,) = loaded.faults
    assert (fault.code, fault.line, fault.is_warning) == ("untrusted-flow", 7, True)
    assert "fetch (http__get) -> read (goal) -> post (http__post)" in fault.message
    assert "requires_approval: [http__post]" in str(fault.help)
    assert loaded.recipe is not None


PASSES = {
    "a template": (GET + post("fetch.body"), "fetch (http__get) -> post (http__post)"),
    "a goal that appends outputs": (
        f"{GET}- {{id: read, depends_on: fetch, goal: Sum up}}\n" + post("read"),
        "fetch (http__get) -> read (goal) -> post (http__post)",
    ),
    "a system prompt": (
        f"{GET}- {{id: read, system_prompt: '{{{{ fetch.body }}}}', goal: Do}}\n" + post("read"),
        "fetch (http__get) -> read (goal) -> post (http__post)",
    ),
    "an analysis": (
        f"{GET}- {{id: read, analyze: What?, input: '{{{{ fetch }}}}'}}\n" + post("read"),
        "fetch (http__get) -> read (analyze) -> post (http__post)",
    ),
    "a set": (
        f"{GET}- {{id: put, set: {{a: '{{{{ fetch.body }}}}'}}}}\n" + post("put.a"),
        "fetch (http__get) -> put (set) -> post (http__post)",
    ),
    "a tool that adds nothing": (
        f"{GET}- {{id: parsed, tool: data__parse_json, params: {{text: '{{{{ fetch.body }}}}'}}}}\n"
        + post("parsed"),
        "fetch (http__get) -> parsed (data__parse_json) -> post (http__post)",
    ),
    "an item of a loop": (
        (
            "- {id: mails, tool: inbox}\n"
            "- {id: out, loop: '{{ mails }}', tool: mail, "
            "params: {to: me, text: '{{ loop.item }}'}}\n"
        ),
        "mails (inbox) -> out (mail)",
    ),
    "a shared conversation": (
        (
            f"{GET}- {{id: one, memory: conversation, goal: 'Read {{{{ fetch.body }}}}'}}\n"
            "- {id: two, memory: conversation, goal: Now act, tools: [mail]}\n"
        ),
        "fetch (http__get) -> one (goal) -> two (goal) -> two (mail)",
    ),
    "a parameter that a model fills in": (
        f"{GET}- {{id: out, depends_on: fetch, tool: mail, fill: [text], params: {{to: me}}}}\n",
        "fetch (http__get) -> out (mail)",
    ),
    "an error that is told": (
        (
            f"{GET}- {{id: read, optional: true, goal: 'Read {{{{ fetch.body }}}}'}}\n"
            "- {id: out, tool: mail, params: {to: me, text: '{{ steps.read.error.message }}'}}\n"
        ),
        "fetch (http__get) -> read (goal) -> out (mail)",
    ),
    "state": (
        "- {id: last, tool: loadState, params: {key: k}}\n" + post("last.value"),
        "last (loadState) -> post (http__post)",
    ),
    "a tool of which nothing is known": (
        (
            "- {id: a, tool: own_notes}\n- {id: b, tool: inbox}\n"
            "- {id: c, tool: undeclared, params: {text: '{{ b[0] }}'}}\n"
        ),
        "b (inbox) -> c (undeclared)",
    ),
}


@pytest.mark.parametrize("way", PASSES)
def test_untrusted_text_passes_through(way: str) -> None:
    """A-143."""
    steps, path = PASSES[way]
    assert path in [each.partition(";")[0] for each in paths(steps)]


def test_one_step_that_may_read_and_send_is_a_path_of_its_own() -> None:
    """A-143: what a page says is read by the model that holds the tool."""
    assert paths("- {id: work, goal: Do, tools: [http__get, mail]}\n") == [
        "work (http__get) -> work (goal) -> work (mail)"
    ]


def test_private_data_within_reach_of_untrusted_text_and_a_tool_that_sends_is_said() -> None:
    """A-143: all three together are what an attacker needs."""
    (path,) = paths("- {id: work, goal: Do, tools: [http__get, files__read, mail]}\n")
    assert path.endswith("it could send what files__read holds")


def test_a_secret_in_the_call_that_untrusted_text_reaches_is_said() -> None:
    head = "inputs: {key: {type: string, secret: true}}\n" + HEAD
    steps = (
        "- {id: fetch, tool: http__get, params: {url: 'https://a.example'}}\n"
        "- {id: out, tool: http__post, params: {url: '{{ fetch.body }}', headers: "
        "{Authorization: '{{ inputs.key }}'}}}\n"
    )
    (path,) = paths(steps, head)
    assert path.endswith("it could send what inputs.key holds")


def test_a_file_that_is_written_back_to_where_it_was_read_is_sent_nowhere() -> None:
    (path,) = paths("- {id: work, goal: Do, tools: [files__read, files__write]}\n")
    assert "could send" not in path


KIND = (
    "- {id: kind, goal: 'Of {{ fetch.body }}', KEYoutput: {type: object, properties: "
    "{kind: {enum: [bug, wish]}}, required: [kind]}}\n"
)
EACH = (
    "- {id: each, loop: '{{ fetch.body | split }}', KEYtool: mail, params: {to: me, text: new}}\n"
)
QUIET = {
    "nothing reads the outside": "- {id: a, tool: own_notes}\n" + post("a"),
    "a constant call after a page was read": GET + "- {id: out, depends_on: fetch, tool: mail, "
    "params: {to: me, text: done}}\n",
    "an endorsed condition": GET + "- {id: out, when: fetch.status == 200, endorse: when, tool: "
    "mail, params: {to: me, text: done}}\n",
    "an endorsed word of a list": GET
    + KIND.replace("KEY", "endorse: output.kind, ")
    + post("kind.kind", ", when: kind.kind == 'bug'"),
    "an endorsed comparison": GET + "- {id: len, set: {short: '{{ fetch.body | length < 9 }}'}, "
    "endorse: output}\n" + post("len.short"),
    "as many as an endorsed loop has": GET + EACH.replace("KEY", "endorse: loop, "),
    "what a constant condition and a plain loop decide": GET
    + EACH.replace("fetch.body | split", "[1, 2]").replace("KEY", "when: true, "),
    "state, which is untrusted when it is read": GET
    + "- {id: kept, tool: saveState, params: {key: k, value: '{{ fetch.body }}'}}\n",
    "a receipt": "- {id: out, tool: mail, params: {to: a, text: b}}\n"
    "- {id: again, tool: mail, params: {to: a, text: '{{ out }}'}}\n",
    "commands in a folder": "- {id: work, goal: Do, tools: [shell__run, shell__exec]}\n",
    "a history that is written on": "- {id: work, goal: Do, tools: [git__diff, git__commit]}\n",
    "one tool that only sends": "- {id: work, goal: Do, tools: [mail]}\n",
}


@pytest.mark.parametrize("name", ["shell__run", "git__log"])
def test_what_commands_and_a_history_tell_is_untrusted(name: str) -> None:
    assert len(paths(f"- {{id: work, goal: Do, tools: [{name}, mail]}}\n")) == 1


@pytest.mark.parametrize("why", QUIET)
def test_there_is_no_warning_for(why: str) -> None:
    assert paths(QUIET[why]) == []


INFLUENCED = {
    "a condition": GET + "- {id: out, when: fetch.status == 200, tool: mail, "
    "params: {to: me, text: done}}\n",
    "a number": GET + post("fetch.body | length"),
    "a comparison": GET + post("fetch.status == 200"),
    "a choice": GET + post("1 if fetch.status == 200 else 2"),
    "a word of a list": GET + KIND.replace("KEY", "") + post("kind.kind"),
    "whether a step ended": GET
    + "- {id: one, when: fetch.body, set: {a: 1}}\n"
    + post("steps.one.status"),
    "whether a step ran": GET
    + "- {id: one, when: fetch.body, set: {a: 1}}\n"
    + post("one.a | default(0)"),
    "how often a loop runs": GET + EACH.replace("KEY", ""),
    "how often a step is repeated": GET + "- {id: out, while: 'fetch.status == loop.index', "
    "allow_repeats: true, tool: mail, params: {to: me, text: done}}\n",
    "another part than the endorsed one": GET
    + KIND.replace("KEY", "endorse: output.kind, ")
    + post("kind"),
}


@pytest.mark.parametrize("how", INFLUENCED)
def test_whatever_depends_on_untrusted_text_is_untrusted_as(how: str) -> None:
    """A-168: a value that changes with the text, and a call that is made or not."""
    assert len(paths(INFLUENCED[how])) == 1


def reached(steps: str, head: str = HEAD) -> list[str]:
    """The steps with a tool that untrusted text reaches."""
    recipe = checked(steps, head).unwrap()
    flows = find_flows(recipe, lambda one: tool_specs(one, CATALOG))
    return [flow.path[-1].step for flow in flows]


def mailing(*names: str) -> str:
    """Steps that send the same whatever is in the page."""
    return "".join(f"- {{id: {x}, tool: mail, params: {{to: me, text: a}}}}\n" for x in names)


REPEATED = "limits: {allow_repeated_steps: true, max_steps: 9}\n" + HEAD


@pytest.mark.parametrize(
    ("graph", "route", "found"),
    [
        ("fetch: [a, b], a: c, b: c, c: d", "'{{ fetch.body }}'", ["a", "b"]),
        ("fetch: [a, c], a: b, b: c, c: d", "'{{ fetch.body }}'", ["a", "b"]),
        ("fetch: [a, c], a: b, b: c, c: d", "'Which is it?'", ["a", "b"]),
        ("fetch: [a, b], a: c, c: d", "'{{ fetch.body }}'", ["a", "b", "c", "d"]),
        ("fetch: [a, b], a: c, b: c, c: [d, fetch]", "'{{ fetch.body }}'", ["a", "b", "c", "d"]),
        ("fetch: [a, b], a: c, b: c, c: d", "'{{ fetch.body }}', endorse: route", []),
        ("fetch: [a, b], a: c, b: c, c: d", "'{{ inputs.way }}'", []),
    ],
)
def test_a_choice_in_a_graph_decides_about_what_not_every_way_passes(
    graph: str, route: str, found: list[str]
) -> None:
    """Or passes once more."""
    steps = GET.replace("}}\n", f"}}, route: {route}}}\n") + mailing("a", "b", "c", "d")
    head = f"inputs: {{way: {{type: string, default: a}}}}\ngraph: {{{graph}}}\n" + REPEATED
    assert sorted(reached(steps, head)) == found


def test_a_failure_decides_that_what_came_after_its_target_runs_again() -> None:
    steps = (
        mailing("before", "target", "between", "aside")
        + GET
        + "- {id: try, assert: fetch.status == 200, depends_on: target, on_error: {goto: target}}\n"
    ).replace("{id: between, ", "{id: between, depends_on: [target], ")
    steps += mailing("needing", "after").replace(
        "{id: needing, ", "{id: needing, depends_on: [try], "
    )
    planned = f"execution_mode: planned\n{HEAD}"
    assert sorted(reached(steps, planned)) == ["between", "needing", "target"]
    in_order = steps.replace("assert: fetch.status == 200", "assert: 1 == 1")
    assert reached(in_order, planned) == []


def test_a_failure_in_a_graph_decides_about_all_that_follows_its_target() -> None:
    steps = mailing("a", "b") + GET + mailing("c")
    steps += "- {id: try, assert: fetch.status == 200, on_error: {goto: b}}\n"
    graph = "graph: {a: b, b: fetch, fetch: c, c: try}\n"
    assert sorted(reached(steps, graph + HEAD)) == ["b", "c"]


def test_what_an_error_tells_is_untrusted_where_a_step_reads_it() -> None:
    steps = (
        "- {id: ask, goal: 'Try {{ feedback }}'}\n"
        + GET.replace("- {", "- {depends_on: ask, ")
        + "- {id: try, goal: 'Of {{ fetch.body }}', on_error: {goto: ask}}\n"
        + post("ask")
    )
    assert paths(steps)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("endorse: output", "'output' is no closed answer"),
        ("endorse: output.text", "'output.text' is no closed answer"),
        ("endorse: output.number", "'output.number' is no closed answer"),
        ("endorse: output.knd", "'output.knd' cannot be endorsed. Did you mean 'output.kind'?"),
        ("endorse: when", "there is no 'when' to endorse"),
        ("endorse: [output.kind, route]", "there is no 'route' to endorse"),
        ("endorse: output.kind, loop: [1, 2]", "how many answers the loop gives"),
    ],
)
def test_an_endorsement_of_anything_but_a_choice_among_few_is_refused(
    key: str, message: str
) -> None:
    schema = (
        "{type: object, properties: {kind: {enum: [a, b]}, text: {type: string}, is: {type: "
        "boolean}, rank: {type: integer, minimum: 0, maximum: 9}, number: {type: integer}}}"
    )
    step = f"- {{id: kind, goal: Say, output: {schema}, KEY}}\n"
    (fault,) = checked(step.replace("KEY", key)).errors
    assert (fault.code, message in fault.message) == ("bad-endorsement", True), fault.message
    for fine in ("[output.kind, output.is, output.rank]", "output.kind"):
        assert checked(step.replace("KEY", f"endorse: {fine}")).errors == ()


ASKED = GET + "- {id: ok, ask: 'Send {{ fetch.body }}?', form: {yes: boolean}}\n"
APPROVED = {
    "its condition reads the answer": ASKED + post("fetch.body", ", when: ok.yes"),
    "an assertion about the answer comes first": ASKED
    + "- {id: sure, assert: ok.yes}\n"
    + post("fetch.body"),
    "it depends on a step with the condition": ASKED
    + "- {id: go, when: ok.yes, set: {a: 1}}\n"
    + post("fetch.body", ", depends_on: [go]"),
}


@pytest.mark.parametrize("how", APPROVED)
def test_a_person_who_sees_the_text_and_decides_cuts_the_path_where(how: str) -> None:
    """A-143."""
    assert paths(APPROVED[how]) == []


def test_a_choice_after_the_answer_in_a_graph_cuts_the_path() -> None:
    graph = "graph: {fetch: ok, ok: [post, end], end: []}\n"
    steps = (
        GET
        + "- {id: ok, ask: 'Send {{ fetch.body }}?', route: '{{ ok }}'}\n"
        + post("fetch.body")
        + "- {id: end, set: {a: 1}}\n"
    )
    assert paths(steps, graph + HEAD) == []
    for other in ("Which?", "{{ 'post' if ok else fetch.body }}", "{{ fetch.body }}"):
        assert len(paths(steps.replace("{{ ok }}", other.replace("'", "''")), graph + HEAD)) == 1
    named = steps.replace("{{ ok }}'", "{{ said }}', save_as: said")
    assert paths(named, graph + HEAD) == []
    straight = (graph + HEAD).replace("[post, end]", "post").replace("end: []", "post: end")
    assert len(paths(steps.replace(", route: '{{ ok }}'", ""), straight)) == 1


NOT_APPROVED = {
    "nobody saw the text": GET
    + "- {id: ok, ask: 'Send it?', form: {yes: boolean}}\n"
    + post("fetch.body", ", when: ok.yes"),
    "the answer decides nothing": ASKED + post("fetch.body"),
    "any answer will do": ASKED + post("fetch.body", ", when: 'ok.yes or not ok.yes'"),
    "any answer but one will do": ASKED + post("fetch.body", ", when: 'ok.yes == ok.yes'"),
    "something else will do": ASKED + post("fetch.body", ", when: 'ok.yes or fetch.status == 200'"),
    "that it was answered will do": ASKED
    + post("fetch.body", ", when: steps.ok.status == 'completed'"),
    "it is only shown": ASKED + post("[fetch.body, ok.yes]"),
    "silence approves": ASKED.replace("boolean}}", "boolean}, timeout: 1m, default: {yes: true}}")
    + post("fetch.body", ", when: ok.yes"),
    "another text is sent than the person saw": ASKED
    + "- {id: read, goal: 'Sum up {{ fetch.body }}'}\n"
    + post("read", ", when: ok.yes"),
}


@pytest.mark.parametrize("why", NOT_APPROVED)
def test_a_question_cuts_no_path_where(why: str) -> None:
    assert len(paths(NOT_APPROVED[why])) == 1


@pytest.mark.parametrize(
    ("form", "condition", "approves"),
    [
        ("{type: string}", "ok == 'yes'", True),
        ("{type: string}", "ok", True),
        ("{type: string}", "ok != 'stop'", True),
        ("{type: string}", "ok != 'maybe'", False),
        ("{enum: [yes, no]}", "ok == 'yes'", True),
        ("{enum: ['yes', 'no']}", "ok != 'no'", True),
        ("{enum: ['now', 'later']}", "ok == 'now'", True),
        ("{enum: ['now', 'later']}", "ok in ['now', 'later']", False),
        ("{type: integer}", "ok > 0", True),
        ("{type: number}", "ok > 0.5", True),
        ("{type: number}", "ok >= 0", False),
        ("{type: array, items: {type: string}}", "ok", True),
        ("{type: array, items: {type: string}}", "'all' in ok", True),
        ("{type: object, properties: {a: {type: boolean}, b: {type: string}}}", "ok.a", True),
        ("{type: object, properties: {a: {type: boolean}, b: {type: string}}}", "not ok.a", False),
        (
            "{type: object, properties: {a: {type: boolean}, b: {type: boolean}}}",
            "ok.a or ok.b",
            True,
        ),
        ("{type: boolean}", "said and fetch.status == 200", True),
        ("{type: boolean}", "not (fetch.status == 200)", False),
        ("{type: boolean}", "ok == (fetch.status == 200)", False),
        ("{type: boolean}", "steps.ok.output", True),
        ("{type: boolean}", "steps.ok.output or steps.ok.status", False),
    ],
)
def test_an_answer_approves_where_another_one_is_that_the_step_does_not_run(
    form: str, condition: str, approves: bool
) -> None:
    ask = f"- {{id: ok, ask: 'Send {{{{ fetch.body }}}}?', form: {form}, save_as: said}}\n"
    sending = post("fetch.body", f', when: "{condition}"')
    assert (paths(GET + ask + sending) == []) is approves


def test_silence_that_refuses_is_an_approval_by_whoever_answers() -> None:
    asked = ASKED.replace("boolean}}", "boolean}, timeout: 1m, default: {yes: false}}")
    assert paths(asked + post("fetch.body", ", when: ok.yes")) == []


@pytest.mark.parametrize("named", ["http__post", "http"])
def test_a_tool_of_which_each_call_needs_approval_is_safe(named: str) -> None:
    """A-143."""
    head = HEAD.replace("true}", f"true, requires_approval: [{named}]}}")
    assert paths(GET + post("fetch.body"), head) == []


def test_a_tool_that_may_not_be_called_is_neither_source_nor_sink() -> None:
    denied = HEAD.replace("true}", "true, allow_http__get: false}")
    assert paths("- {id: work, goal: Do, tools: [http__get, mail]}\n", denied) == []
    read_only = HEAD.replace("allow_write: true", "allow_write: false")
    assert paths("- {id: work, goal: Do, tools: [http__get, mail]}\n", read_only) == []


def test_an_author_declares_a_toolset_trusted() -> None:
    head = HEAD.replace("files,", "{files: {root: ., reads: trusted}},")
    steps = "- {id: a, tool: files__read, params: {path: a}}\n"
    steps += "- {id: out, tool: mail, params: {to: me, text: '{{ a.text }}'}}\n"
    assert len(paths(steps)) == 1
    assert paths(steps, head) == []


def test_reads_takes_listed_words_only() -> None:
    head = HEAD.replace("files,", "{files: {reads: mine}},")
    (fault,) = checked("- {id: a, set: {b: 1}}\n", head).faults
    assert (fault.code, fault.is_warning) == ("bad-value", False)


def test_an_input_that_strangers_write_is_declared_untrusted() -> None:
    head = "inputs: {mail: {type: string, untrusted: true}, own: string}\n" + HEAD
    out = "- {id: out, tool: mail, params: {to: me, text: '{{ inputs.%s }}'}}\n"
    assert paths(out % "own", head) == []
    assert paths(out % "mail", head) == ["inputs.mail (untrusted input) -> out (mail)"]
    wrong = head.replace("untrusted: true", "untrusted: 1")
    assert [fault.code for fault in checked(out % "mail", wrong).errors] == ["wrong-type"]


def test_the_system_prompt_of_a_recipe_reads_no_untrusted_input() -> None:
    """A-143."""
    head = "inputs: {mail: {type: string, untrusted: true}}\nsystem_prompt: Of {{ inputs.mail }}\n"
    (fault,) = checked("- {id: a, goal: Go}\n", head).errors
    assert (fault.code, fault.line) == ("untrusted-system-text", 3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("inputs", ["id", "mail"]),
        ("inputs | join(', ')", ["id", "mail"]),
        ("inputs.mail }} {{ inputs.own }} {{ inputs.mail", ["mail"]),
        ("inputs['id']", ["id"]),
        ("inputs.own", []),
        ("inputs | length", []),
        ("run.id", []),
    ],
)
def test_the_system_prompt_of_a_recipe_carries_untrusted_inputs_in_no_way(
    words: str, named: list[str]
) -> None:
    """A-143."""
    head = (
        "inputs: {id: {type: string, untrusted: true}, own: string, mail: {type: string, untrusted:"
        f' true}}}}\nsystem_prompt: "Of {{{{ {words} }}}}"\n'
    )
    errors = checked("- {id: a, goal: Go}\n", head).errors
    assert {fault.code for fault in errors} <= {"untrusted-system-text"}
    assert [fault.message.rpartition("input ")[2].strip("'") for fault in errors] == named


# --- nested recipes ------------------------------------------------------------------------------


def inner(text: str) -> AgentRecipe:
    return load_recipe_text(text, "inner.yaml", CATALOG)


SENDER = inner(
    "id: sender\ninputs: {text: string, to: string}\npermissions: {allow_write: true}\n"
    "steps:\n- {id: out, tool: mail, params: {to: '{{ inputs.to }}', text: '{{ inputs.text }}'}}\n"
)
FETCHER = inner(
    "id: fetcher\ninputs: {url: string}\ntools: [{http: {allow: [a.example]}}]\n"
    "steps:\n- {id: page, tool: http__get, params: {url: '{{ inputs.url }}'}}\n"
    "- {id: body, set: {text: '{{ page.body }}'}}\noutput: '{{ body.text }}'\n"
)
ECHO = inner("id: echo\ninputs: {text: string}\nsteps:\n- {id: a, set: {b: 1}}\n"
             "output: 'You said {{ inputs.text }}'\n")  # fmt: skip
NESTED = replace(CATALOG, recipes={each.id: each for each in (SENDER, FETCHER, ECHO)})


def test_a_path_leads_into_and_out_of_nested_recipes() -> None:
    """A-143."""
    steps = (
        "- {id: got, recipe: fetcher, with: {url: 'https://a.example'}}\n"
        "- {id: said, recipe: echo, with: {text: '{{ got }}'}}\n"
        "- {id: send, recipe: sender, with: {to: me, text: '{{ said }}'}}\n"
    )
    assert paths(steps, catalog=NESTED) == [
        (
            "got/page (http__get) -> got/body (set) -> said (recipe) -> send (recipe) -> "
            "send/out (mail)"
        )
    ]


def test_an_outer_approval_holds_for_nested_recipes() -> None:
    steps = (
        "- {id: got, tool: inbox}\n"
        "- {id: send, recipe: sender, with: {to: me, text: '{{ got[0] }}'}}\n"
    )
    head = HEAD.replace("true}", "true, requires_approval: [mail]}")
    assert len(paths(steps, catalog=NESTED)) == 1
    assert paths(steps, head, NESTED) == []
    trusted = "- {id: send, recipe: sender, with: {to: me, text: hello}}\n"
    assert paths(trusted, catalog=NESTED) == []


# --- strict ---------------------------------------------------------------------------------------


def test_strict_refuses_the_recipe_and_so_does_a_strict_operator() -> None:
    """A-143."""
    own = checked(GET + post("fetch.body"), f"strict: true\n{HEAD}")
    operators = checked(GET + post("fetch.body"), catalog=replace(CATALOG, strict=True))
    for loaded in (own, operators):
        assert [fault.code for fault in loaded.errors] == ["untrusted-flow"]
        with pytest.raises(RecipeError, match="untrusted text can reach 'http__post'"):
            loaded.unwrap()


HARMLESS_BY_ITSELF = {
    "a question": APPROVED["its condition reads the answer"],
    "an assertion": APPROVED["an assertion about the answer comes first"],
    "an endorsed answer": GET + KIND.replace("KEY", "endorse: output.kind, ") + post("kind.kind"),
    "an endorsed condition": QUIET["an endorsed condition"],
}
IN_FULL = replace(CATALOG, strict="full")


@pytest.mark.parametrize("why", HARMLESS_BY_ITSELF)
def test_what_a_recipe_says_itself_makes_no_text_harmless_under_full_strictness(why: str) -> None:
    """Its author chose what a person is asked, and what is endorsed."""
    assert checked(HARMLESS_BY_ITSELF[why], catalog=replace(CATALOG, strict=True)).errors == ()
    refused = checked(HARMLESS_BY_ITSELF[why], catalog=IN_FULL)
    assert [fault.code for fault in refused.errors] == ["untrusted-flow"]
    assert "strict in full" in f"{refused.errors[0].help}"


@pytest.mark.parametrize("where", ["own", "nested"])
def test_no_recipe_declares_a_toolset_trusted_under_full_strictness(where: str) -> None:
    head = HEAD.replace(
        "{http: {allow: [a.example]}}", "{http: {allow: [a.example], reads: trusted}}"
    )
    if where == "own":
        assert paths(GET + post("fetch.body"), head) == []
        refused = checked(GET + post("fetch.body"), head, IN_FULL)
    else:
        inner = load_recipe_text(f"id: inner\n{head}steps:\n{GET}", "inner.yaml", CATALOG)
        outer = "- {id: fetch, recipe: inner}\n" + post("fetch.body")
        with_inner = {"inner": inner}
        assert paths(outer, catalog=replace(CATALOG, recipes=with_inner)) == []
        refused = checked(outer, catalog=replace(IN_FULL, recipes=with_inner))
    assert [fault.code for fault in refused.errors] == ["untrusted-flow"]


def test_approvals_of_calls_and_the_operators_tools_count_under_full_strictness() -> None:
    head = HEAD.replace("true}", "true, requires_approval: [http__post]}")
    assert checked(GET + post("fetch.body"), head, IN_FULL).errors == ()
    for why in ("nothing reads the outside", "a receipt"):
        assert checked(QUIET[why], catalog=IN_FULL).errors == ()


def test_a_strict_recipe_without_such_a_path_runs() -> None:
    recipe = checked("- {id: a, tool: own_notes}\n" + post("a"), f"strict: true\n{HEAD}").unwrap()
    assert recipe.strict


def test_a_stored_run_stays_runnable_under_a_stricter_operator() -> None:
    document = checked(GET + post("fetch.body")).unwrap().document
    assert document is not None
    assert recipe_from_document(document, replace(CATALOG, strict=True)).id == "r"


# --- cost -----------------------------------------------------------------------------------------


def chain(count: int) -> dict[str, JsonValue]:
    steps: list[JsonValue] = [{"id": "s0", "tool": "inbox"}]
    steps += [
        {"id": f"s{n}", "tool": "mail", "params": {"to": "me", "text": f"{{{{ s{n - 1} }}}}"}}
        for n in range(1, count)
    ]
    return {"id": "r", "permissions": {"allow_write": True}, "steps": steps}


def test_a_long_path_shows_its_start_and_its_end() -> None:
    recipe = recipe_from_document(chain(1_000), CATALOG)
    flows = find_flows(recipe, lambda one: tool_specs(one, CATALOG))
    assert len(flows) == 999
    assert flows[-1].words.startswith("s0 (inbox) -> s1 (mail)")
    assert "… (990 more)" in flows[-1].words
    assert flows[-1].words.endswith("s999 (mail)")


def test_steps_that_reach_the_same_tool_are_one_warning() -> None:
    posts = "".join(
        f"  - {{id: p{at}, tool: http__post, params: {{url: 'https://a.example', "
        "json: '{{ page }}'}}\n"
        for at in range(8)
    )
    get = "  - {id: page, tool: http__get, params: {url: 'https://a.example'}}\n"
    (path,) = paths(f"{get}{posts}")
    assert path.endswith("; the same in p1, p2, p3, p4, p5 and 2 more")


CALLER = "- {id: ask, goal: Ask., tools: {names: [NAMES], caller: true}}\n"


def test_what_a_caller_s_tools_give_is_untrusted() -> None:
    own = CALLER.replace("NAMES", "mail")
    assert paths(own) == ["ask (caller) -> ask (goal) -> ask (mail)"]
    assert paths(CALLER.replace("NAMES", "") + post("ask")) == [
        "ask (caller) -> ask (goal) -> post (http__post)"
    ]
    assert paths(CALLER.replace("NAMES", "").replace("true", "false") + post("ask")) == []
