"""The recipes that come along, offline and whole: what they give, and what they refuse."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Final, cast

import pytest

import minions
from command_line import Cli, Write
from minions import Prompt, ScriptedModel
from minions.adapters.models.script_items import Answer
from minions.adapters.sandboxes.workspaces import (
    BubblewrapSandbox,
    LandlockSandbox,
    command_sandbox,
)
from minions.contracts.sandbox import SandboxProbe
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.testing import tool_request

RECIPES: Final = Path(__file__).parents[2] / "recipes"
MODELS: Final = {
    "sales_report": "sales_model.py",
    "repository_triage": "triage_model.py",
    "questions_over_documents": "documents_model.py",
    "classify_tickets": "tickets_model.py",
    "write_function": "function_model.py",
    "build_package": "package_model.py",
    "read_reviews": "reviews_model.py",
    "ask_folder": "folder_model.py",
    "ask_table": "table_model.py",
}
WRITES: Final = {"sales_report": ["report"], "write_function": ["check"]}
"""The steps of a recipe whose tools write."""
FOLDERS: Final = {
    "sales_report": "out",
    "write_function": "workspace",
    "build_package": "workspace",
}
"""The input that names the folder where a recipe writes."""


@pytest.fixture(autouse=True)
def needs_sandbox(request: pytest.FixtureRequest) -> None:
    """Skip what runs commands where no sandbox holds; that this ends with exit code 4 is tested."""
    if any(name in request.node.name for name in ("write_function", "build_package")):
        try:
            command_sandbox()
        except EnvironmentRefusedError as error:
            pytest.skip(error.message)


def recipe(name: str) -> str:
    return str(RECIPES / f"{name}.yaml")


def offline(name: str) -> tuple[str, ...]:
    return ("--extensions", str(RECIPES / MODELS[name]), "-m", f"scripted/{name}", "--no-store")


@pytest.mark.parametrize("name", MODELS)
def test_it_is_valid_without_a_warning(cli: Cli, name: str) -> None:
    done = cli("validate", recipe(name), "--extensions", str(RECIPES / MODELS[name]))
    assert (done.code, done.out, done.err) == (0, f"{recipe(name)}: ok\n", "")


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_explained_drawn_and_planned(cli: Cli, here: Path, name: str) -> None:
    extension = offline(name)[:2]
    assert cli("explain", recipe(name), *extension).out.startswith(f"{name}: ")
    assert cli("graph", recipe(name), "-f", "ascii", *extension).out.startswith("1 ")
    done = cli("run", recipe(name), "--dry-run", "--json", *offline(name))
    assert done.code == 0, done.err
    steps = re.findall(r"^  - id: (\w+)$", Path(recipe(name)).read_text("utf-8"), re.MULTILINE)
    planned = cast("list[dict[str, JsonValue]]", done.json["planned"])
    assert [step["step_id"] for step in planned] == steps
    assert [step["step_id"] for step in planned if step["writes"]] == (WRITES.get(name, []))
    assert sorted(path.name for path in here.iterdir()) == [".git"]


@pytest.mark.parametrize("name", MODELS)
def test_in_its_checkout_it_runs_by_its_name_alone(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(RECIPES.parent)
    given = ("-p", f"{FOLDERS[name]}={here / 'made'}") if name in FOLDERS else ()
    done = cli("run", name, "--no-store", *given)
    assert done.code == 0, done.err
    assert done.err.startswith(f"recipe {name} · model scripted/{name} (scripted: ")


LARGEST_PROMPTS: Final = {
    "activity_monitor": ("activity_service.py", 863),
    "ask_folder": ("folder_model.py", 731),
    "ask_table": ("table_model.py", 1355),
    "build_package": ("package_model.py", 2787),
    "classify_tickets": ("tickets_model.py", 803),
    "handbook_chat": ("handbook_model.py", 1104),
    "label_ticket": ("tickets_model.py", 762),
    "questions_over_documents": ("documents_model.py", 1409),
    "quickstart": ("quickstart_model.py", 1506),
    "read_reviews": ("reviews_model.py", 510),
    "refund": ("refund_model.py", 154),
    "repository_triage": ("triage_model.py", 2051),
    "sales_report": ("sales_model.py", 1045),
    "write_function": ("function_model.py", 1538),
}
"""The extension, and the characters of the largest prompt on the data that comes along."""
INPUTS: Final = {
    "quickstart": ("out",),
    "sales_report": ("out",),
    "write_function": ("workspace",),
    "build_package": ("workspace",),
    "handbook_chat": ("message",),
    "label_ticket": ("id", "text"),
}


@pytest.mark.parametrize("name", LARGEST_PROMPTS)
def test_no_prompt_of_a_recipe_grows_unnoticed(here: Path, name: str) -> None:
    """A-107: each token is paid at each call; to change a figure here is a decision."""
    extension, largest = LARGEST_PROMPTS[name]
    made: Iterable[object] = runpy.run_path(str(RECIPES / extension)).values()
    extensions = next((each for each in made if isinstance(each, minions.Extensions)), None)
    made = extensions.models.values() if extensions is not None else made
    model = next(each for each in made if isinstance(each, ScriptedModel))
    inputs = dict.fromkeys(INPUTS.get(name, ()), "How many days of leave do I have?")
    result = minions.run(recipe(name), inputs, model=model, extensions=extensions)
    assert result.status.value == "completed"
    texts = ([m.content or "" for m in prompt.messages] for prompt in model.prompts)
    sizes = [sum(len(text.replace(str(here), "")) for text in prompt) for prompt in texts]
    assert max(sizes) == largest


def test_the_list_of_prompt_sizes_names_every_recipe() -> None:
    assert sorted(LARGEST_PROMPTS) == sorted(path.stem for path in RECIPES.glob("*.yaml"))


# --- sales_report ----------------------------------------------------------------------------


def test_orders_are_cleaned_added_up_and_reported(cli: Cli, here: Path) -> None:
    done = cli("run", recipe("sales_report"), *offline("sales_report"), "--json", "-p", "out=made")
    assert done.code == 0, done.err
    assert done.json["output"] == {
        "revenue": 15428.7,
        "trend": "down",
        "needs_attention": "North",
        "left_out": 5,
        "report": "sales.md",
    }
    assert (here / "made" / "sales.md").read_text("utf-8") == (
        "# Sales\n\n"
        "Sales in 2026-03 changed by -29% against 2026-02. West sold most, North least.\n\n"
        "| region | orders | revenue (EUR) |\n"
        "| --- | ---: | ---: |\n"
        "| West | 11 | 4797.7 |\n"
        "| East | 8 | 4471.0 |\n"
        "| South | 9 | 3932.0 |\n"
        "| North | 9 | 2228.0 |\n\n"
        "Total 15428.7 EUR from 37 orders.\n"
        "Left out as double or incomplete: 5 of 42.\n"
        "Trend: down. Needs attention: North.\n"
    )


def test_another_export_gives_its_own_sums(cli: Cli, here: Path, write: Write) -> None:
    write(
        "may.csv",
        "order,date,region,product,units,price\n"
        "1,2026-04-01,Bern,Lamp,2,10\n"
        "2,2026-05-01,bern ,Lamp,3,10.5\n"
        "3,2026-05-02,Chur,Lamp,1,0.1\n",
    )
    done = cli(
        *("run", recipe("sales_report"), *offline("sales_report"), "--json"),
        *("-p", "folder=.", "-p", "file=may.csv", "-p", "out=made"),
    )
    assert done.code == 0, done.err
    assert done.json["output"] == {
        "revenue": 51.6,
        "trend": "up",
        "needs_attention": "Chur",
        "left_out": 0,
        "report": "sales.md",
    }


def test_a_region_that_the_model_made_up_stops_the_report(here: Path) -> None:
    invented: Answer = {"trend": "up", "needs_attention": "Atlantis", "summary": "Well."}
    result = minions.run(recipe("sales_report"), {"out": "made"}, model=ScriptedModel([invented]))
    assert result.error is not None
    assert result.error.message == "There is no region Atlantis."
    assert not (here / "made").exists()


# --- ask_folder ------------------------------------------------------------------------------


def test_the_model_finds_a_tool_and_answers_with_it(cli: Cli) -> None:
    done = cli("run", recipe("ask_folder"), *offline("ask_folder"), "--json")
    assert done.code == 0, done.err
    assert cast("dict[str, JsonValue]", done.json["output"])["file"] == "shop/mail.py"


def test_the_first_request_has_none_of_the_twelve_tools(cli: Cli) -> None:
    said = " ".join(cli("explain", recipe("ask_folder")).out.split())
    assert "12 tools are found by find_tools" in said


# --- ask_table -------------------------------------------------------------------------------


def test_a_program_of_a_model_reads_a_table_of_which_no_row_is_in_a_prompt(cli: Cli) -> None:
    done = cli("run", recipe("ask_table"), *offline("ask_table"), "--json")
    assert done.code == 0, done.err
    assert done.json["output"] == {"answer": "East bought 9 of them.", "rows": 39, "left_out": 3}


# --- read_reviews ----------------------------------------------------------------------------


def test_each_review_has_its_product_and_mood(cli: Cli) -> None:
    done = cli("run", recipe("read_reviews"), *offline("read_reviews"), "--json")
    assert done.code == 0, done.err
    output = cast("dict[str, JsonValue]", done.json["output"])
    reviews = cast("list[dict[str, JsonValue]]", output.pop("reviews"))
    assert output == {
        "happy": 4,
        "unhappy": 4,
        "products": ["chair", "desk", "lamp", "shelf"],
        "look_at": [],
    }
    assert [f"{each['product']} {each['mood']}" for each in reviews] == [
        *("desk happy", "lamp unhappy", "chair unhappy", "shelf happy"),
        *("lamp happy", "shelf unhappy", "chair happy", "desk unhappy"),
    ]


def test_a_review_whose_product_was_guessed_is_to_be_looked_at() -> None:
    guess: Answer = {"product": "desk", "mood": "happy"}
    result = minions.run(
        recipe("read_reviews"), {"reviews": ["Very nice!"]}, model=ScriptedModel([guess])
    )
    assert cast("dict[str, JsonValue]", result.unwrap())["look_at"] == ["Very nice!"]


# --- repository_triage -----------------------------------------------------------------------


def test_issues_are_ranked_with_the_files_they_are_about(cli: Cli) -> None:
    done = cli("run", recipe("repository_triage"), *offline("repository_triage"), "--json")
    assert done.code == 0, done.err
    assert done.json["output"] == {
        "ranking": [
            {
                "number": 12,
                "title": "Card charged twice after a timeout",
                "kind": "bug",
                "severity": "high",
                "files": ["shop/checkout.py"],
                "reason": "shop/checkout.py has to do with: basket, card, charged, payment.",
                "score": 33,
            },
            {
                "number": 21,
                "title": "Shipping is charged for exactly 100 EUR",
                "kind": "bug",
                "severity": "high",
                "files": ["shop/cart.py"],
                "reason": "shop/cart.py has to do with: basket, free, shipping.",
                "score": 33,
            },
            {
                "number": 15,
                "title": "Search finds nothing when I type 'lamp'",
                "kind": "bug",
                "severity": "medium",
                "files": ["shop/search.py"],
                "reason": "shop/search.py has to do with: products.",
                "score": 23,
            },
            {
                "number": 22,
                "title": "How long is a basket kept?",
                "kind": "question",
                "severity": "low",
                "files": ["docs/running.md"],
                "reason": "docs/running.md has to do with: basket, kept.",
                "score": 12,
            },
            {
                "number": 27,
                "title": "Typo in the README",
                "kind": "documentation",
                "severity": "low",
                "files": ["README.md"],
                "reason": "README.md has to do with: basket, cart.",
                "score": 11,
            },
            {
                "number": 19,
                "title": "Please let me pay by invoice",
                "kind": "feature",
                "severity": "low",
                "files": ["shop/checkout.py"],
                "reason": "shop/checkout.py has to do with: card, payment.",
                "score": 10,
            },
        ],
        "bugs": 3,
        "files": [
            "README.md",
            "docs/running.md",
            "shop/cart.py",
            "shop/checkout.py",
            "shop/search.py",
        ],
    }


def test_a_file_that_is_not_there_is_no_finding(here: Path, write: Write) -> None:
    write("issues.json", '[{"number": 1, "title": "It is slow", "body": "Very."}]')
    write("code/main.py", "print(1)\n")
    guess: Answer = {"kind": "bug", "severity": "low", "files": ["speed.py"], "reason": "A guess."}
    result = minions.run(
        recipe("repository_triage"),
        {"repository": "code", "folder": "."},
        model=ScriptedModel([guess]),
    )
    assert result.status.value == "failed"
    assert result.step("real_files").reason is not None
    assert "Not in the repository: speed.py." in str(result.step("real_files").reason)


# --- questions_over_documents ----------------------------------------------------------------


def test_answers_come_with_the_lines_that_say_it(cli: Cli) -> None:
    name = "questions_over_documents"
    done = cli("run", recipe(name), *offline(name), "--json")
    assert done.code == 0, done.err
    leave = "Everyone has 28 days of paid leave in a calendar year."
    hotel = "A night may cost up to 140 EUR, in capitals up to 190 EUR, breakfast included."
    loss = "Report a lost or stolen device within 24 hours to the service desk, also at weekends."
    assert done.json["output"] == {
        "answers": [
            {
                "question": "How many days of paid leave do I have?",
                "answer": leave,
                "citations": [{"file": "leave.md", "line": 3, "quote": leave}],
            },
            {
                "question": "How much may a hotel cost in a capital?",
                "answer": hotel,
                "citations": [{"file": "travel.md", "line": 8, "quote": hotel}],
            },
            {
                "question": "When do I have to report a stolen device?",
                "answer": loss,
                "citations": [{"file": "equipment.md", "line": 12, "quote": loss}],
            },
            {
                "question": "May I bring my dog?",
                "answer": "The documents do not say.",
                "citations": [],
            },
        ],
        "answered": 3,
        "open": 1,
    }


@pytest.mark.parametrize(
    ("citations", "step", "refusal"),
    [
        (
            [{"file": "leave.md", "line": 4, "quote": "Everyone has 28 days"}],
            "quotes_are_true",
            'leave.md:4 does not say "Everyone has 28 days"',
        ),
        ([{"file": "pay.md", "line": 1, "quote": "Everyone is rich."}], "cited_lines", "pay.md"),
        ([], "answers_are_cited", "Without a citation: 28 days."),
    ],
    ids=["another line", "another file", "none"],
)
def test_a_citation_that_is_not_true_fails_the_run(
    here: Path, citations: list[dict[str, str | int]], step: str, refusal: str
) -> None:
    said: Answer = {"is_answered": True, "answer": "28 days.", "citations": [*citations]}
    result = minions.run(
        recipe("questions_over_documents"), {"questions": ["Leave?"]}, model=ScriptedModel([said])
    )
    assert result.status.value == "failed"
    assert refusal in str(result.step(step).reason)


def test_documents_are_searched_before_the_answer(here: Path, write: Write) -> None:
    write("notes/cat.txt", "The cat sleeps until noon.\n")
    quote = "The cat sleeps until noon."

    def model(prompt: Prompt) -> Answer:
        if prompt.messages[-1].role != "tool":
            return tool_request("documents__search", {"query": "cat"})
        assert quote in str(prompt.messages[-1].content)
        citation: JsonValue = {"file": "cat.txt", "line": 1, "quote": quote}
        return {"is_answered": True, "answer": "Until noon.", "citations": [citation]}

    result = minions.run(
        recipe("questions_over_documents"),
        {"folder": "notes", "questions": ["How long does the cat sleep?"]},
        model=ScriptedModel(model),
    )
    assert result.unwrap() == {
        "answers": [
            {
                "question": "How long does the cat sleep?",
                "answer": "Until noon.",
                "citations": [{"file": "cat.txt", "line": 1, "quote": quote}],
            }
        ],
        "answered": 1,
        "open": 0,
    }


# --- classify_tickets ------------------------------------------------------------------------

CLASSES: Final = {
    "account": "002 003 009 017 022 029 038 042 047 049 053 057 061 062 064 074 079 096",
    "billing": "004 006 007 010 013 016 019 028 033 034 037 051 054 055 068 070 072 078 089 "
    "091 097",
    "bug": "001 012 020 036 039 041 043 044 045 048 052 056 059 060 063 067 069 071 081 084 085 "
    "087 093 100",
    "feature": "011 027 030 031 032 046 050 073 076 077 080 082 083 088 090",
    "shipping": "005 008 014 015 018 021 023 024 025 026 035 040 058 065 066 075 086 092 094 095 "
    "098 099",
}
"""As a person sorted them."""


def test_a_hundred_tickets_have_each_their_class(cli: Cli) -> None:
    done = cli("run", recipe("classify_tickets"), *offline("classify_tickets"), "--json")
    assert done.code == 0, done.err
    by_id = {f"T{number}": name for name, ids in CLASSES.items() for number in ids.split()}
    assert done.json["output"] == {
        "total": 100,
        "counts": [
            {"class": "bug", "tickets": 24},
            {"class": "shipping", "tickets": 22},
            {"class": "billing", "tickets": 21},
            {"class": "account", "tickets": 18},
            {"class": "feature", "tickets": 15},
        ],
        "tickets": [{"id": each, "class": by_id[each]} for each in sorted(by_id)],
    }


def test_each_question_holds_one_ticket_and_no_other(here: Path, write: Write) -> None:
    write("few.csv", "id,text\na,Refund me.\nb,No parcel.\nc,It crashes.\n")
    model = ScriptedModel(lambda _: {"class": "bug"})
    result = minions.run(
        recipe("classify_tickets"), {"folder": ".", "file": "few.csv"}, model=model
    )
    assert result.unwrap() == {
        "total": 3,
        "counts": [
            {"class": "bug", "tickets": 3},
            *({"class": name, "tickets": 0} for name in ("account", "billing", "feature")),
            {"class": "shipping", "tickets": 0},
        ],
        "tickets": [{"id": each, "class": "bug"} for each in "abc"],
    }
    prompts = ["\n".join(str(m.content) for m in prompt.messages) for prompt in model.prompts]
    texts = ("Refund me.", "No parcel.", "It crashes.")
    assert sorted([text for text in texts if text in prompt] for prompt in prompts) == [
        ["It crashes."],
        ["No parcel."],
        ["Refund me."],
    ]


def test_two_tickets_of_one_id_are_refused_before_anything_is_asked(
    here: Path, write: Write
) -> None:
    write("few.csv", "id,text\na,Refund me.\na,No parcel.\n")
    model = ScriptedModel([])
    result = minions.run(
        recipe("classify_tickets"), {"folder": ".", "file": "few.csv"}, model=model
    )
    assert result.status.value == "failed"
    assert result.step("distinct").reason == (
        "few.csv is too large, or two of its tickets have the same id."
    )
    assert model.prompts == []


# --- label_ticket ----------------------------------------------------------------------------


def test_every_row_of_a_table_gets_a_result_line(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RECIPES.parent)
    out, database = str(here / "labels.jsonl"), str(here / "j.sqlite")
    items = str(RECIPES / "data" / "tickets.csv")
    done = cli("batch", "label_ticket", items, "-o", out, "--db", database)
    assert done.code == 0, done.err
    assert "100 lines: 100 completed" in done.err
    lines = [json.loads(line) for line in Path(out).read_text("utf-8").splitlines()]
    assert [line["output"]["id"] for line in lines] == [f"T{n:03}" for n in range(1, 101)]
    assert lines[3]["output"] == {"id": "T004", "class": "billing"}


# --- refund ----------------------------------------------------------------------------------


def test_a_refund_waits_for_two_persons_unless_it_is_small_or_far_too_large(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-169."""
    monkeypatch.setenv("LOGNAME", "clerk")
    own = ("--extensions", str(RECIPES / "refund_model.py"), "--db", "j.sqlite")
    run = ("run", recipe("refund"), *own, "-m", "scripted/refund")
    small = cli(*run, "--json")
    assert small.json["output"] == {
        "receipt": "refund of 4711",
        "letter": "We are sorry for the trouble, and have paid you back.",
    }
    large = cli(*run, "-p", "amount=5000")
    assert large.code == 1
    assert "the reviewer 'refund_limits' says: 5000 euros; 1000 are the most" in large.err
    waits = cli(*run, "-p", "amount=300", "--json")
    assert waits.code == 3
    (item,) = json.loads(cli("inbox", "--json", "--db", "j.sqlite").out)["items"]
    assert item["deciders"] == ["ann", "bob", "role:finance"]
    name = str(waits.json["run_id"])
    assert cli("approve", name, *own).code == 2  # whoever started it
    assert cli("approve", name, "--as", "ann", *own).code == 3
    done = cli("approve", name, "--as", "cfo", "--role", "finance", "--json", *own)
    assert cast("dict[str, JsonValue]", done.json["output"])["receipt"] == "refund of 4711"


# --- build_package ---------------------------------------------------------------------------


def test_build_package_is_planned_written_tested_and_repaired(cli: Cli, here: Path) -> None:
    name = "build_package"
    done = cli("run", recipe(name), *offline(name), "--json", "-p", "workspace=made")
    assert done.code == 0, done.err
    output = cast("dict[str, JsonValue]", done.json["output"])
    steps = cast("list[dict[str, JsonValue]]", output["steps"])
    assert [(each["id"], each["status"]) for each in steps] == [
        (name, "completed") for name in ("convert", "command", "tests", "check", "readme")
    ]
    assert "below absolute zero" in (here / "made" / "temperature" / "convert.py").read_text()
    assert (here / "made" / "README.md").exists()


# --- write_function --------------------------------------------------------------------------


def test_write_function_is_written_tested_and_mended(cli: Cli, here: Path) -> None:
    name = "write_function"
    done = cli("run", recipe(name), *offline(name), "--json", "-p", "workspace=made")
    assert done.code == 0, done.err
    assert done.json["output"] == {
        "function": "is_leap_year",
        "edges": ["1900", "2000"],
        "workspace": str(here / "made"),
    }
    assert "year % 400" in (here / "made" / "function.py").read_text("utf-8")


def test_without_a_sandbox_a_coding_recipe_is_refused_with_every_probe(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (BubblewrapSandbox, LandlockSandbox):
        probe = SandboxProbe(name="a socket", ok=False, detail="was possible")
        monkeypatch.setattr(kind, "probe", lambda _, probe=probe: (probe,))
    name = "write_function"
    done = cli("run", recipe(name), *offline(name), "-p", "workspace=made")
    assert done.code == 4
    assert "error[no-sandbox]" in done.err
    for each in ("bubblewrap", "landlock"):
        assert f"{each}: a socket NOT OK (was possible)" in " ".join(done.err.split())
    assert not (here / "made").exists()
