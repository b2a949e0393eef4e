"""Which recorded calls count and why others do not, loops and pages, and traces side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.capture.alignment import Cursor, Group, align, choose_calls, group_calls
from minions.capture.traces import Trace, TracedCall, TracedText
from minions.contracts.tools import Effect, ToolSpec
from minions.data.json_values import JsonValue

SPECS = {
    "find": ToolSpec(name="find", effect=Effect.PURE),
    "read": ToolSpec(name="read", effect=Effect.PURE),
    "put": ToolSpec(name="put", effect=Effect.IDEMPOTENT),
    "keep": ToolSpec(name="keep", effect=Effect.IDEMPOTENT),
    "send": ToolSpec(name="send", effect=Effect.ONCE),
    **{name: ToolSpec(name=name, effect=Effect.PURE) for name in "abcdefg"},
}
"""`put` and `keep` may be made again, `send` may not, and the others change nothing."""


def call(tool: str, result: JsonValue = "Done.", **arguments: JsonValue) -> TracedCall:
    """A recorded call, which no other was asked for with."""
    return TracedCall(
        tool=tool, arguments=arguments, result=result, place="run_1 work", key="", answer=0
    )


def failed(tool: str, **arguments: JsonValue) -> TracedCall:
    """A recorded call that failed."""
    return evolve(call(tool, None, **arguments), error="tool_failed: no")


def trace(*calls: TracedCall | str) -> Trace:
    """Calls in their order; a text is what the person said between them, a task before all."""
    made: list[TracedCall] = []
    said = [TracedText(text="Do it", before=0, place="message 1")]
    for each in calls:
        if isinstance(each, str):
            said.append(TracedText(text=each, before=len(made), place="message 2"))
        else:
            number = len(made) + 1
            made.append(evolve(each, key=str(number), answer=each.answer or number))
    return Trace(runs=("run_1",), task=tuple(said), inputs={}, goal="", calls=tuple(made))


def reasons(*calls: TracedCall | str) -> list[str | None]:
    """For each call why it is left out; None: it counts."""
    own = trace(*calls)
    kept, left = choose_calls(own, SPECS)
    counting = [each for group in kept for each in (*group.polls, *group.calls)]
    assert [each for each in own.calls if each in counting] == counting
    by_key = {each.call.key: each.reason for each in left}
    assert len(counting) + len(left) == len(own.calls)
    return [by_key.get(each.key) for each in own.calls]


def groups_of(*calls: TracedCall) -> list[Group]:
    """The groups of the calls that count."""
    return choose_calls(trace(*calls), SPECS)[0]


def loops(*calls: TracedCall) -> list[tuple[str, int]]:
    """The groups after loops were found: tool and number of calls."""
    return [(each.tool, len(each.calls)) for each in group_calls(groups_of(*calls), SPECS)]


# --- which calls count ---------------------------------------------------------------------------


def test_a_call_that_failed_and_was_made_again_is_one_with_more_attempts() -> None:
    assert reasons(failed("read", path="a"), call("read", path="a")) == [
        "it failed, and was made again: tool_failed: no",
        None,
    ]
    (group,) = groups_of(failed("read", path="a"), failed("read", path="a"), call("read", path="a"))
    assert group.attempts == 3


def test_attempts_are_those_of_the_same_call_that_failed() -> None:
    calls = [failed("read", path="b"), call("read", "x", path="a")]
    assert [each.attempts for each in groups_of(*calls)] == [1]
    same = [call("read", "x", path="a")] * 2
    assert [each.attempts for each in groups_of(*same, call("send", to="a"), same[0])] == [1, 1, 1]
    pages = [call("find", {"rows": [each]}, page=each) for each in (1, 2)]
    assert [each.attempts for each in groups_of(failed("find", page=1), *pages)] == [2]
    loop = groups_of(failed("send", to="a"), *(call("send", to=each) for each in "ab"))
    assert [each.attempts for each in group_calls(loop, SPECS)] == [2]


def test_a_call_that_failed_each_time_was_not_made_again() -> None:
    why = "it failed: tool_failed: no"
    assert reasons(failed("read", path="a"), failed("read", path="a")) == [why, why]
    again = "it failed, and was made again: tool_failed: no"
    calls = [failed("read", path="a"), failed("read", path="a"), call("read", path="a")]
    assert reasons(*calls) == [again, again, None]


def test_a_call_that_failed_for_good_is_left_out() -> None:
    assert reasons(failed("send", to="a"), call("send", to="b")) == [
        "it failed: tool_failed: no",
        None,
    ]


def test_a_call_that_was_not_allowed_is_left_out() -> None:
    refused = evolve(failed("send", to="a"), is_rejected=True)
    assert reasons(refused, call("send", to="a")) == ["it was not allowed", None]


def test_a_question_with_the_same_answer_counts_once() -> None:
    same = "it was asked before, with the same result"
    assert reasons(call("read", "x", path="a"), call("read", "x", path="a")) == [None, same]
    assert reasons(call("read", "x", path="a"), call("find", "y"), call("read", "x", path="a")) == [
        None,
        None,
        same,
    ]


def test_a_question_counts_again_after_an_effect() -> None:
    again = [call("read", "x", path="a"), call("send", to="a"), call("read", "x", path="a")]
    assert reasons(*again) == [None, None, None]


def test_a_question_that_failed_before_counts() -> None:
    assert reasons(failed("read", path="a"), call("read", None, path="a"))[1] is None


@pytest.mark.parametrize("result", [None, "", [], {}, {"hits": [], "total": 0}])
def test_a_search_that_found_nothing_before_another_is_left_out(result: JsonValue) -> None:
    reason = "it found nothing, and was asked again in another way"
    assert reasons(call("find", result, name="a"), call("find", "x", name="b")) == [reason, None]


@pytest.mark.parametrize(
    "result", [0, False, "x", [0], {"hits": ["x"]}, {"hits": [], "more": ["x"]}, {"total": 0}]
)
def test_a_search_that_found_something_counts(result: JsonValue) -> None:
    assert reasons(call("find", result, name="a"), call("find", "x", name="b")) == [None, None]


def test_a_search_that_found_nothing_counts_where_no_other_follows() -> None:
    assert reasons(call("find", [], name="a"), call("read", "x")) == [None, None]
    assert reasons(call("find", [], name="a")) == [None]
    refused = evolve(failed("find", name="b"), is_rejected=True)
    assert reasons(call("find", [], name="a"), refused)[0] is None


def test_searches_of_one_answer_were_not_made_for_what_the_other_found() -> None:
    both = [evolve(call("find", [], name=each), answer=7) for each in ("a", "b")]
    assert reasons(*both) == [None, None]


CORRECTED = "a person corrected it, and it was written again"


def test_a_write_that_a_person_corrected_is_left_out() -> None:
    first, second = call("put", key="lamps", value="twelve"), call("put", key="lamps", value=12)
    assert reasons(first, "Only the number", second) == [CORRECTED, None]


def test_a_write_that_nobody_corrected_counts() -> None:
    first, second = call("put", key="lamps", value="twelve"), call("put", key="lamps", value=12)
    assert reasons(first, second) == [None, None]
    assert reasons(first, second, "Only the number") == [None, None]
    assert reasons("Only the number", first, second) == [None, None]


def test_a_correction_concerns_what_it_writes_alone() -> None:
    first, second = call("put", key="lamps", value=12), call("put", key="chairs", value=12)
    assert reasons(first, "And the chairs", second) == [None, None]
    assert reasons(first, "And again", call("put", key="lamps")) == [None, None]
    numbered = [call("put", key=12, value=each) for each in "ab"]
    assert reasons(numbered[0], "Again", numbered[1]) == [None, None]
    other = call("keep", key="lamps", value=12)
    assert reasons(call("put", key="lamps", value=12), "Keep it", other) == [None, None]
    for same in (call("put", key="lamps", value=12), call("put", key=12), call("put")):
        assert reasons(same, "Again", same) == [CORRECTED, None]


def test_an_effect_that_cannot_be_repeated_counts_though_it_was_corrected() -> None:
    first, second = call("send", to="a", text="x"), call("send", to="a", text="y")
    assert reasons(first, "No, y", second) == [None, None]
    unknown = [call("other", key="a", value=each) for each in (1, 2)]
    assert reasons(unknown[0], "No, 2", unknown[1]) == [None, None]


def test_a_correction_that_failed_corrects_nothing() -> None:
    first = call("put", key="lamps", value="twelve")
    assert reasons(first, "No", failed("put", key="lamps", value=12))[0] is None
    refused = evolve(failed("put", key="lamps", value=12), error=None, is_rejected=True)
    assert reasons(first, "No", refused)[0] is None


def test_asking_until_a_state_is_reached_is_one_group() -> None:
    states = [call("read", {"status": each}, job="a") for each in ("queued", "runs", "done")]
    (group,) = groups_of(*states)
    assert [each.result for each in group.polls] == [{"status": "queued"}, {"status": "runs"}]
    assert [each.result for each in group.calls] == [{"status": "done"}]


def test_equal_calls_of_one_answer_or_with_an_effect_are_no_polling() -> None:
    both = [evolve(call("read", each, job="a"), answer=7) for each in ("queued", "done")]
    assert [len(each.calls) for each in groups_of(*both)] == [1, 1]
    sent = [call("send", each, to="a") for each in ("queued", "done")]
    assert [len(each.calls) for each in groups_of(*sent)] == [1, 1]


def test_pages_are_one_group_by_what_each_says_of_the_next() -> None:
    pages = [
        call("find", {"rows": [1], "next": "p2"}),
        call("find", {"rows": [2], "next": "p3"}, page="p2"),
        call("find", {"rows": [3], "next": None}, page="p3"),
    ]
    (group,) = groups_of(*pages)
    assert (len(group.calls), group.cursor) == (3, Cursor(parameter="page", path=("next",)))


def test_pages_are_one_group_by_their_numbers() -> None:
    pages = [call("find", {"rows": [each]}, page=each) for each in (4, 5, 6)]
    (group,) = groups_of(*pages)
    assert (len(group.calls), group.cursor) == (3, Cursor(parameter="page", path=None))
    first = [call("find", {"rows": [1]}), call("find", {"rows": [2]}, page=2)]
    assert len(groups_of(*first)) == 1
    sized = [call("find", {"rows": [each]}, size=10, page=each) for each in (1, 2)]
    assert [each.cursor for each in groups_of(*sized)] == [Cursor(parameter="page", path=None)]


@pytest.mark.parametrize(
    "second",
    [
        call("find", {"rows": [2]}, page=3),
        call("find", {"rows": [2]}, page=2, size=10),
        call("read", {"rows": [2]}, page=2),
        call("find", {"rows": [2]}, page=True),
        evolve(call("find", {"rows": [2]}, page=2), answer=1),
    ],
)
def test_other_calls_are_no_pages(second: TracedCall) -> None:
    groups = groups_of(call("find", {"rows": [1]}, page=1), second)
    assert [each.cursor for each in groups] == [None, None]


def test_results_without_a_list_and_effects_are_no_pages() -> None:
    for tool, result in (("find", {"row": 1}), ("find", [1]), ("put", {"rows": [1]})):
        groups = groups_of(call(tool, result, page=1), call(tool, result, page=2))
        assert [each.cursor for each in groups] == [None, None]


def test_no_page_is_named_by_null_or_a_truth_value() -> None:
    back = [call("find", {"rows": [1], "next": None}, page="p2"), call("find", {"rows": [2]})]
    assert [each.cursor for each in groups_of(*back)] == [None, None]
    more = [call("find", {"rows": [1], "more": True}), call("find", {"rows": [2]}, more=True)]
    assert [each.cursor for each in groups_of(*more)] == [None, None]


def test_after_polling_there_is_no_next_page() -> None:
    calls = [call("find", {"rows": each}, page=1) for each in ([0], [1])]
    groups = groups_of(*calls, call("find", {"rows": [2]}, page=2))
    assert [(len(each.polls), len(each.calls)) for each in groups] == [(1, 1), (0, 1)]


def test_pages_that_follow_each_other_in_another_way_are_others() -> None:
    numbers = [
        call("find", {"rows": [1], "next": 5}, page=1),
        call("find", {"rows": [2]}, page=5),
        call("find", {"rows": [3]}, page=6),
    ]
    assert [len(each.calls) for each in groups_of(*numbers)] == [2, 1]
    calls = [
        call("find", {"rows": [1], "next": "p2"}),
        call("find", {"rows": [2], "next": "p3", "other": "p9"}, page="p2"),
        call("find", {"rows": [3]}, page="p9"),
    ]
    assert [len(each.calls) for each in groups_of(*calls)] == [2, 1]


# --- loops ---------------------------------------------------------------------------------------


def test_calls_of_one_tool_in_a_row_are_a_loop() -> None:
    assert loops(*(call("send", to=each) for each in "abc")) == [("send", 3)]


def test_tools_that_take_turns_are_a_loop_each() -> None:
    turns = [
        call(tool, item, item=item) for item in ("a", "b", "c") for tool in ("read", "find", "put")
    ]
    assert loops(*turns) == [("read", 3), ("find", 3), ("put", 3)]


def test_up_to_six_tools_take_turns() -> None:
    six, seven = (
        [call(each, item, item=item) for item in "xy" for each in row]
        for row in ("abcdef", "abcdefg")
    )
    assert loops(*six) == [(each, 2) for each in "abcdef"]
    assert loops(*seven) == [(each, 1) for each in "abcdefgabcdefg"]


def test_a_tool_that_is_called_twice_in_a_turn_is_no_loop_of_two() -> None:
    calls = [call(each, at, item=at) for at, each in enumerate("abaaba")]
    assert loops(*calls) == [("a", 1), ("b", 1), ("a", 2), ("b", 1), ("a", 1)]


def test_pages_that_are_read_twice_are_no_loop() -> None:
    pages = [
        call("find", {"rows": [each]}, name=name, page=each) for name in "ab" for each in (1, 2)
    ]
    calls = [pages[0], pages[1], call("read", "x"), pages[2], pages[3], call("read", "y", at=1)]
    assert loops(*calls) == [("find", 2), ("read", 1), ("find", 2), ("read", 1)]


def test_two_effects_that_take_turns_stay_in_their_order() -> None:
    turns = [call(tool, to=item) for item in "ab" for tool in ("put", "send")]
    assert loops(*turns) == [("put", 1), ("send", 1), ("put", 1), ("send", 1)]


def test_a_round_that_is_not_whole_is_no_part_of_the_loop() -> None:
    turns = [call(tool, item, item=item) for item in "ab" for tool in ("read", "put")]
    assert loops(*turns, call("read", "c", item="c")) == [("read", 2), ("put", 2), ("read", 1)]


def test_what_comes_before_and_after_a_loop_is_no_part_of_it() -> None:
    row = [call("read", item, item=item) for item in "ab"]
    assert loops(call("find", ["a", "b"]), *row, call("send", to="a")) == [
        ("find", 1),
        ("read", 2),
        ("send", 1),
    ]


def test_polling_and_pages_are_no_items_of_a_loop() -> None:
    states = [call("read", each, job=job) for job in "ab" for each in ("runs", "done")]
    assert loops(*states) == [("read", 1), ("read", 1)]


# --- traces side by side -------------------------------------------------------------------------


def side_by_side(*traces: Sequence[TracedCall]) -> list[tuple[str, list[int]]]:
    """The columns: their tool, and the traces that made it."""
    columns = align([groups_of(*each) for each in traces])
    return [(each.tool, sorted(each.present)) for each in columns]


def test_a_call_that_one_trace_did_not_make_is_a_column_of_the_others() -> None:
    every = [call("read", "x"), call("find", "y"), call("send", to="a")]
    assert side_by_side(every, [every[0], every[2]], every) == [
        ("read", [0, 1, 2]),
        ("find", [0, 2]),
        ("send", [0, 1, 2]),
    ]


def test_a_call_that_only_a_later_trace_made_stands_where_it_was_made() -> None:
    short = [call("read", "x"), call("send", to="a")]
    assert side_by_side(short, [short[0], call("put", key="a"), short[1]]) == [
        ("read", [0, 1]),
        ("put", [1]),
        ("send", [0, 1]),
    ]


def test_as_many_calls_as_possible_stand_beside_each_other() -> None:
    first = [call(each, "x") for each in "abc"]
    assert side_by_side(first, [call(each, "x") for each in "bca"]) == [
        ("a", [0]),
        ("b", [0, 1]),
        ("c", [0, 1]),
        ("a", [1]),
    ]
    assert side_by_side(first, [call(each, "x") for each in "cdab"]) == [
        ("c", [1]),
        ("d", [1]),
        ("a", [0, 1]),
        ("b", [0, 1]),
        ("c", [0]),
    ]


def test_of_calls_that_are_not_the_same_those_of_the_first_trace_stand_first() -> None:
    found = side_by_side([call("b", "x")], [call("a", "x")])
    assert found == [("b", [0]), ("a", [1])]


CALLS = st.lists(
    st.builds(
        call,
        st.sampled_from(["find", "read", "put", "send", "other"]),
        st.sampled_from(["x", "y", [], {"rows": [1], "next": 2}]),
        item=st.sampled_from([1, 2, "a", "b"]),
    ),
    max_size=12,
)


@given(calls=CALLS)
def test_every_call_either_counts_or_has_a_reason_and_effects_that_were_made_count(
    calls: list[TracedCall],
) -> None:
    for each, reason in zip(calls, reasons(*calls), strict=True):
        if each.tool in ("send", "put", "other"):
            assert reason is None


def test_a_page_that_is_asked_for_again_loses_none_of_the_pages_before_it() -> None:
    page: JsonValue = {"rows": [1], "next": 2}
    calls = [call("read", page, item=1), call("read", page, item=2), call("read", "x", item=2)]
    assert reasons(*calls) == [None, None, None]
    assert [len(each.calls) for each in groups_of(*calls)] == [2, 1]


@given(calls=CALLS)
def test_loops_lose_no_call_and_keep_the_order_of_effects(calls: list[TracedCall]) -> None:
    groups = groups_of(*calls)
    grouped = group_calls(groups, SPECS)
    before = [each for group in groups for each in group.calls]
    after = [each for group in grouped for each in group.calls]
    assert sorted(each.answer for each in after) == sorted(each.answer for each in before)
    effects = [each.answer for each in after if each.tool in ("send", "put", "other")]
    assert effects == sorted(effects)


@given(traces=st.lists(CALLS, min_size=1, max_size=4))
def test_columns_keep_the_order_of_each_trace(traces: list[list[TracedCall]]) -> None:
    grouped = [group_calls(groups_of(*each), SPECS) for each in traces]
    columns = align(grouped)
    for number, groups in enumerate(grouped):
        held = [each.groups[number] for each in columns]
        assert [each for each in held if each is not None] == groups
    for column in columns:
        assert all(each is None or each.tool == column.tool for each in column.groups)
        assert len(column.groups) == len(traces)


@given(calls=CALLS, times=st.integers(2, 4))
def test_a_trace_beside_itself_leaves_nothing_unaligned(
    calls: list[TracedCall], times: int
) -> None:
    groups = group_calls(groups_of(*calls), SPECS)
    columns = align([groups] * times)
    assert [each.groups for each in columns] == [(each,) * times for each in groups]
