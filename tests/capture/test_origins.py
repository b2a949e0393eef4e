"""Where a value came from: each kind of expression, and what is no origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import frozen
from hypothesis import assume, given
from hypothesis import strategies as st

from minions.capture.known_values import (
    MOST_TEXT,
    KnownThen,
    KnownValues,
    Sight,
    Values,
    is_alike,
    is_telling,
    leaves,
)
from minions.capture.origins import Kind, Origin, origins_of
from minions.capture.template_writing import (
    as_expression,
    literal,
    literal_template,
    literal_templates,
    member,
    quoted,
    template_parts,
)
from minions.data.json_values import JsonValue


def sight(value: JsonValue, **results: JsonValue) -> Sight:
    """The value, made where these steps had given these results; `said` are words of the task."""
    known = KnownValues()
    scope: dict[str, JsonValue] = {"inputs": {}}
    for name, result in results.items():
        if name == "said":
            assert isinstance(result, Mapping)
            scope["inputs"] = result
            for key, part in result.items():
                known.add(leaves(f"inputs.{key}", part, "said", label=key))
        else:
            scope[name] = result
            known.add(leaves(name, result, name))
    return Sight(value=value, scope=scope, known=KnownThen(known))


def found(*sights: Sight, name: str = "value") -> list[tuple[Kind, str]]:
    """The origins of the value, with their templates, the best first."""
    return [(each.kind, each.template) for each in origins_of(sights, name, Values())]


def best(*sights: Sight, name: str = "value") -> tuple[Kind, str] | None:
    """The best origin of the value."""
    return next(iter(found(*sights, name=name)), None)


ORDERS: JsonValue = [
    {"id": "A-17", "amount": 21.25, "city": "Bern"},
    {"id": "B-31", "amount": 38.75, "city": "Basel"},
    {"id": "C-44", "amount": 12.5, "city": "Zug"},
]


@pytest.mark.parametrize(
    ("kind", "template", "value", "result"),
    [
        (Kind.PATH, "{{ get.order.id }}", "A-17", {"order": {"id": "A-17"}}),
        (Kind.PATH, "{{ get['e-mail'] }}", "a@b.example", {"e-mail": "a@b.example"}),
        (Kind.PATH, "{{ get.rows }}", [12, 13], {"rows": [12, 13]}),
        (Kind.PATH, "{{ get[0].id }}", "A-17", [{"id": "A-17"}]),
        (Kind.FILTER, "{{ get.name | trim }}", "Eva Ost", {"name": " Eva Ost\n"}),
        (Kind.FILTER, "{{ get.name | lower }}", "eva ost", {"name": "Eva Ost"}),
        (Kind.FILTER, "{{ get.name | upper }}", "EVA OST", {"name": "Eva Ost"}),
        (Kind.FILTER, "{{ get.name | title }}", "Eva Ost", {"name": "eva OST"}),
        (Kind.FILTER, "{{ get.name | capitalize }}", "Eva ost", {"name": "eva OST"}),
        (Kind.FILTER, "{{ get.total | string }}", "21.25", {"total": 21.25}),
        (Kind.FILTER, "{{ get.total | float }}", 21.25, {"total": "21.25"}),
        (Kind.FILTER, "{{ get.count | int }}", 214, {"count": " 214 "}),
        (Kind.FILTER, "{{ get.at[:10] }}", "2026-05-03", {"at": "2026-05-03T10:00:00Z"}),
        (Kind.FILTER, "{{ get.at[11:16] }}", "10:30", {"at": "2026-05-03T10:30:00Z"}),
        (Kind.FILTER, "{{ get.at[11:] }}", "10:30", {"at": "2026-05-03T10:30"}),
        (Kind.FILTER, "{{ (get.mail | split('@'))[1] }}", "b.example", {"mail": "a@b.example"}),
        (Kind.FILTER, "{{ (get.path | split('/'))[-1] }}", "a.txt", {"path": "in/old/a.txt"}),
        (Kind.FILTER, "{{ (get.text | split('\\n'))[0] }}", "Bern", {"text": "Bern\nBasel"}),
        (Kind.FILTER, "{{ get.names | join(', ') }}", "Eva, Jon", {"names": ["Eva", "Jon"]}),
        (
            Kind.FILTER,
            "{{ get.orders | map(attribute='id') | join('\\n') }}",
            "A-17\nB-31\nC-44",
            {"orders": ORDERS},
        ),
        (Kind.FILTER, "{{ get.share | round(1) }}", 0.7, {"share": 0.6667}),
        (Kind.FILTER, "{{ get.share | round(2) }}", 66.67, {"share": 66.6667}),
        (
            Kind.FILTER,
            "{{ get.orders | map(attribute='id') | list }}",
            ["A-17", "B-31", "C-44"],
            {"orders": ORDERS},
        ),
        (Kind.FILTER, "{{ get.names | sort }}", ["Eva", "Jon"], {"names": ["Jon", "Eva"]}),
        (Kind.FILTER, "{{ get.rows | reverse }}", [13, 14, 12], {"rows": [12, 14, 13]}),
        (Kind.COMPUTED, "{{ get.rows | length }}", 2, {"rows": [{"a": "b"}, {"a": "c"}]}),
        (
            Kind.COMPUTED,
            "{{ get.orders | map(attribute='amount') | sum }}",
            72.5,
            {"orders": ORDERS},
        ),
        (Kind.COMPUTED, "{{ get.parts | sum | round(2) }}", 0.6, {"parts": [0.1, 0.2, 0.3]}),
        (Kind.COMPUTED, "{{ get.rows | max }}", 40, {"rows": [12, 40, 31]}),
        (Kind.COMPUTED, "{{ get.rows | min }}", 12, {"rows": [31, 40, 12]}),
        (Kind.COMPUTED, "{{ get.net + get.tax }}", 113, {"net": 100, "tax": 13}),
        (Kind.COMPUTED, "{{ get.all - get.sold }}", 87, {"all": 100, "sold": 13}),
        (Kind.COMPUTED, "{{ get.all - get.sold }}", 87, {"sold": 13, "all": 100}),
        (Kind.COMPUTED, "{{ get.price * get.count }}", 36, {"price": 12, "count": 3}),
        (Kind.COMPUTED, "{{ get.sum / get.count }}", 2.5, {"sum": 10, "count": 4}),
        (Kind.COMPUTED, "{{ get.count / get.sum }}", 0.4, {"sum": 10, "count": 4}),
        (Kind.COMPUTED, "{{ (get.sum / get.count) | round(2) }}", 3.33, {"sum": 10, "count": 3}),
        (Kind.COMPUTED, "{{ get.net * get.rate / 100 }}", 16.2, {"net": 200, "rate": 8.1}),
        (Kind.TEXT, "Dear {{ get.name }}!", "Dear Eva!", {"name": "Eva"}),
        (Kind.TEXT, "{{ get.name ~ '\\n' }}", "Eva\n", {"name": "Eva"}),
        (Kind.TEXT, "{{ get.rows | length }} are open", "2 are open", {"rows": [{}, {}]}),
    ],
)
def test_a_value_that_one_result_explains_has_that_origin(
    kind: Kind, template: str, value: JsonValue, result: JsonValue
) -> None:
    one = sight(value, get=result)
    assert (kind, template) in found(one)
    assert all(each[0] is kind for each in found(one))


def test_a_field_of_the_one_item_with_a_known_value_is_looked_up() -> None:
    one = sight("Basel", find={"orders": ORDERS}, said={"order": "B-31"})
    template = "{{ (find.orders | selectattr('id', 'eq', inputs.order) | first).city }}"
    assert found(one) == [(Kind.LOOKUP, template)]


def test_an_item_is_looked_up_by_no_field_that_several_have() -> None:
    orders: JsonValue = [
        {"id": "A-17", "city": "Bern", "tax": "T-1"},
        {"id": "B-31", "city": "Bern", "tax": "T-2"},
    ]
    assert found(sight("T-2", find=orders, said={"city": "Bern"})) == []


def test_an_item_is_looked_up_by_no_value_of_the_list_itself() -> None:
    orders: JsonValue = {"rows": ORDERS, "newest": "B-31"}
    assert found(sight("Basel", find=orders)) == []


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ get.price * inputs.percent / 100 }}", 30.0),
        ("{{ get.price - get.price * inputs.percent / 100 }}", 170.0),
        ("{{ get.price + get.price * inputs.percent / 100 }}", 230.0),
    ],
)
def test_a_percentage_of_the_task_is_a_share_or_taken_off_or_added(
    template: str, value: float
) -> None:
    one = sight(value, get={"price": 200}, said={"percent": 15})
    assert found(one) == [(Kind.COMPUTED, template)]


def test_a_percentage_of_the_task_is_no_plain_number() -> None:
    assert found(sight(215, get={"price": 200}, said={"percent": 15})) == []


def test_what_stands_among_several_items_is_no_origin() -> None:
    assert found(sight("Basel", find={"orders": ORDERS})) == []
    assert found(sight("Order of Basel", find={"orders": ORDERS})) == []
    assert found(sight("BASEL", find={"orders": ORDERS})) == []
    assert found(sight("38.75", find={"orders": ORDERS})) == []
    assert found(sight(39, find={"orders": ORDERS})) == []


@pytest.mark.parametrize("value", [3, 0.0, "no", True, None])
def test_a_value_that_occurs_by_chance_is_found_only_under_its_name(value: JsonValue) -> None:
    held: JsonValue = {"other": value}
    assert found(sight(value, get=held), name="wanted") == []
    wanted = [(Kind.PATH, "{{ get.other }}")]
    assert found(sight(value, get=held), name="other") == wanted
    assert found(sight(value, get={"others": value}), name="other")[0][0] is Kind.PATH


def test_small_numbers_are_computed_of_no_two_others() -> None:
    assert found(sight(5, get={"a": 2, "b": 3})) == []
    assert found(sight(9, get={"a": 4, "b": 5})) == []
    assert found(sight(14, get={"a": 14, "b": 1})) == [(Kind.PATH, "{{ get.a }}")]


def test_zero_and_one_are_no_parts_of_a_computed_number() -> None:
    assert found(sight(15, get={"a": 14, "b": 1})) == []


def test_a_place_in_a_sentence_is_no_part() -> None:
    text = "We have sent it from Basel to you on the second of May"
    assert found(sight("Basel", get={"text": text})) == []


def test_a_part_that_occurs_twice_is_no_part() -> None:
    assert found(sight("old", get={"path": "old/a/old"})) == []


def test_a_state_is_no_word_of_a_text() -> None:
    assert found(sight("It was paid back", get={"status": "paid"})) == []
    assert best(sight("It was paid back", get={"how": "paid"})) is not None


def test_a_value_within_a_word_is_no_part_of_a_text() -> None:
    assert found(sight("The Bernese", get={"city": "Bern"})) == []


def test_a_truth_value_is_no_number() -> None:
    assert found(sight(1, get={"value": True})) == []
    assert found(sight(True, get={"value": 1})) == []


def test_only_what_gives_the_value_wherever_it_was_seen_is_an_origin() -> None:
    first = sight("A-17", get={"id": "A-17", "newest": "A-17"})
    second = sight("B-31", get={"id": "B-31", "newest": "C-44"})
    assert found(first) == [(Kind.PATH, "{{ get.id }}"), (Kind.PATH, "{{ get.newest }}")]
    assert found(first, second) == [(Kind.PATH, "{{ get.id }}")]


def test_a_kind_that_does_not_hold_everywhere_gives_way_to_the_next() -> None:
    first = sight("eva", get={"id": "eva", "name": "Eva"})
    second = sight("jon", get={"id": "J-1", "name": "Jon"})
    assert best(first, second) == (Kind.FILTER, "{{ get.name | lower }}")


def test_an_exact_quotient_does_not_hide_that_others_are_rounded() -> None:
    exact = sight(12.0, get={"sum": 120, "count": 10})
    rounded = sight(3.33, get={"sum": 10, "count": 3})
    assert best(exact) == (Kind.COMPUTED, "{{ get.sum / get.count }}")
    assert best(exact, rounded) == (Kind.COMPUTED, "{{ (get.sum / get.count) | round(2) }}")


def test_a_list_that_was_empty_once_hides_no_origin() -> None:
    empty = sight(0, get={"rows": []})
    full = sight(3, get={"rows": ["Eva", "Jon", "Ute"]})
    assert found(empty, full) == [(Kind.COMPUTED, "{{ get.rows | length }}")]


def test_a_result_that_came_later_is_no_origin() -> None:
    one = sight("A-17", get={"id": "A-17"}, other={"id": "A-17"})
    late = Sight(value="A-17", scope=one.scope, known=KnownThen(one.known.values, {"get"}))
    assert found(late) == [(Kind.PATH, "{{ other.id }}")]


def test_what_has_the_name_of_the_parameter_comes_first() -> None:
    one = sight("A-17", get={"a": "A-17", "orderId": "A-17"})
    assert best(one, name="order_id") == (Kind.PATH, "{{ get.orderId }}")


# --- what a value can be told by -----------------------------------------------------------------


TELLING: Sequence[JsonValue] = (10, -10, 2.5, "abc", [1], {"a": 1})
COMMON: Sequence[JsonValue] = (9, -9, 0, 9.0, True, False, None, "ab", " a ", "", [], {})


def test_a_value_tells_something_if_it_is_unlikely_to_occur_twice() -> None:
    assert [each for each in (*TELLING, *COMMON) if is_telling(each)] == list(TELLING)


@pytest.mark.parametrize(
    ("label", "name", "alike"),
    [
        ("id", "id", True),
        ("orderId", "order_id", True),
        ("orders", "order", True),
        ("id", "order_id", True),
        ("order_id", "id", True),
        ("city", "id", False),
        ("order_city", "order_id", False),
        ("", "id", False),
        ("id", "", False),
    ],
)
def test_names_are_alike_if_one_has_the_words_of_the_other(
    label: str, name: str, alike: bool
) -> None:
    assert is_alike(label, name) is alike


def test_words_of_the_task_and_items_of_a_loop_may_be_small() -> None:
    assert found(sight("ab", said={"key": "ab"})) == [(Kind.PATH, "{{ inputs.key }}")]
    assert found(sight("ab", get={"key": "ab"})) == []
    item = KnownValues()
    item.add(leaves("loop.item", "ab", "loop"))
    scope: dict[str, JsonValue] = {"loop": {"item": "ab"}}
    one = Sight(value="ab", scope=scope, known=KnownThen(KnownValues(), (), item))
    assert found(one) == [(Kind.PATH, "{{ loop.item }}")]


def test_an_item_is_looked_up_by_a_telling_text_or_number_that_stands_elsewhere() -> None:
    def looked_up(by: JsonValue, known: JsonValue) -> bool:
        rows: JsonValue = [{"key": by, "city": "Bern"}, {"key": "other", "city": "Basel"}]
        return bool(found(sight("Bern", find=rows, get={"own": known})))

    assert looked_up("A-17", "A-17")
    assert looked_up(17, 17)
    assert not looked_up("A", "A")
    assert not looked_up(2.5, 2.5)
    assert not looked_up(["A-17"], ["A-17"])
    assert not looked_up("A-17", ["A-17", "B-31"])


def test_an_item_is_looked_up_in_the_list_that_has_it() -> None:
    rows: JsonValue = [{"id": "A-17", "city": "Bern"}, {"id": "B-31", "city": "Basel"}]
    nested: JsonValue = [{"rows": rows}, {"rows": []}]
    assert found(sight("Bern", find=nested, said={"id": "A-17"})) == []
    dotted: JsonValue = [{"a.b": "A-17", "city": "Bern"}, {"a.b": "B-31", "city": "Basel"}]
    assert found(sight("Bern", find=dotted, said={"id": "A-17"})) == []
    assert (
        found(sight("Be", find=[{"id": "A-17", "c": "Be"}, {"id": "B"}], said={"i": "A-17"})) == []
    )


def test_only_an_input_of_that_name_is_a_percentage() -> None:
    plain = sight(30.0, get={"price": 200}, said={"share": 15})
    assert found(plain) == [(Kind.COMPUTED, "{{ get.price * inputs.share / 100 }}")]
    added = sight(215, get={"price": 200}, said={"share": 15})
    assert found(added) == [(Kind.COMPUTED, "{{ get.price + inputs.share }}")]
    own = sight(215, get={"price": 200, "percent": 15})
    assert found(own) == [(Kind.COMPUTED, "{{ get.price + get.percent }}")]


@pytest.mark.parametrize(
    ("text", "known", "template"),
    [
        ("On: true", {"on": True}, None),
        ("It is null", {"at": None}, None),
        ("In 7 days", {"days": 7}, None),
        ("In 75 days", {"days": 75}, "In {{ get.days }} days"),
        ("From A1 on", {"key": "A1"}, None),
        ("From A-1 on", {"key": "A-1"}, "From {{ get.key }} on"),
    ],
)
def test_a_text_is_written_around_what_tells_something(
    text: str, known: JsonValue, template: str | None
) -> None:
    wanted = [] if template is None else [(Kind.TEXT, template)]
    assert found(sight(text, get=known)) == wanted


def test_words_of_the_task_may_be_of_two_letters_in_a_text() -> None:
    assert found(sight("At A1 and B", said={"one": "A1", "two": "B"})) == [
        (Kind.TEXT, "At {{ inputs.one }} and B")
    ]


def test_longer_values_stand_in_a_text_before_those_within_them() -> None:
    one = sight("In Bern West now", get={"city": "Bern", "place": "Bern West"})
    assert found(one) == [(Kind.TEXT, "In {{ get.place }} now")]


def test_a_length_in_a_text_is_that_of_a_list_of_several_which_is_no_item() -> None:
    assert found(sight("1 is open", get={"rows": [{}]})) == []
    assert found(sight("2 are open", get=[{"rows": [{}, {}]}, {}, {}])) == []


def test_a_text_that_is_too_long_has_no_parts() -> None:
    long = "x" * (MOST_TEXT - 5)
    assert found(sight(f"{long} Bern", get={"city": "Bern"})) != []
    assert found(sight(f"{long}x Bern", get={"city": "Bern"})) == []


def test_candidates_are_made_of_three_different_values_at_most() -> None:
    def quotients(*pairs: tuple[int, int]) -> list[tuple[Kind, str]]:
        return found(
            *(
                sight(round(one / other, 2), get={"sum": one, "count": other})
                for one, other in pairs
            )
        )

    rounded = (100, 33)
    assert quotients((120, 10), (120, 10), (130, 10), rounded) != []
    assert quotients((120, 10), (130, 10), (140, 10), rounded) == []


@pytest.mark.parametrize(
    ("empty", "full", "form"),
    [(0, 3, "length"), ("", "Jon, Ute, Eva", "join(', ')"), ([], ["Eva", "Jon", "Ute"], "sort")],
)
def test_an_empty_value_hides_no_other_one(empty: JsonValue, full: JsonValue, form: str) -> None:
    sights = [sight(empty, get={"rows": []})] * 3
    sights.append(sight(full, get={"rows": ["Jon", "Ute", "Eva"]}))
    assert [each for _, each in found(*sights)] == [f"{{{{ get.rows | {form} }}}}"]


# --- for any value -------------------------------------------------------------------------------

KEYS = st.one_of(
    st.sampled_from(
        ["id", "items", "if", "true", "2nd", "e-mail", "it's", "a b", "}}", "{{ x", ""]
    ),
    st.text(max_size=6),
)
PLAIN = st.one_of(
    st.text(min_size=3, max_size=12).filter(lambda text: len(text.strip()) >= 3),
    st.integers(min_value=10, max_value=10**9),
    st.floats(min_value=-1e9, max_value=1e9, allow_nan=False).filter(
        lambda number: number != int(number)
    ),
)
JSON = st.recursive(
    st.one_of(PLAIN, st.booleans(), st.none(), st.integers(-9, 9), st.text(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
WORD = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=8)


@frozen
class Case:
    """A value that an expression gives, with what is known where it was made."""

    value: JsonValue
    result: JsonValue


def holds_somewhere(cases: list[Case], name: str = "value") -> list[Origin]:
    """The origins of the values of these cases: each gives the value of each."""
    sights = [sight(each.value, get=each.result) for each in cases]
    values = Values()
    origins = origins_of(sights, name, values)
    assert all(values.holds(each.template, sights) for each in origins)
    return origins


@given(path=st.lists(KEYS, min_size=1, max_size=3), values=st.lists(PLAIN, min_size=1, max_size=3))
def test_what_stands_at_any_path_is_found_there(path: list[str], values: list[JsonValue]) -> None:
    cases = []
    for value in values:
        held: JsonValue = value
        for key in reversed(path):
            held = {key: held, f"{key} beside": 1}
        cases.append(Case(value, held))
    assert holds_somewhere(cases)[0].kind is Kind.PATH


@given(key=KEYS, held=JSON)
def test_whatever_is_found_gives_the_value_again(key: str, held: JsonValue) -> None:
    known = list(leaves("get", {key: held}, "get"))
    for each in known:
        holds_somewhere([Case(each.value, {key: held})])


@given(
    key=KEYS,
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=3),
    form=st.sampled_from([str.strip, str.lower, str.upper, str.title, str.capitalize]),
)
def test_any_other_case_of_a_text_is_found(key: str, texts: list[str], form: object) -> None:
    assert callable(form)
    cases = [Case(form(each), {key: each}) for each in texts]
    assume(all(len(str(each.value).strip()) >= 3 for each in cases))
    assert holds_somewhere(cases)


@given(
    separator=st.sampled_from([", ", ",", "; ", ";", ": ", ":", "/", "@", "|", "\n", "=", " "]),
    rows=st.integers(2, 6).flatmap(
        lambda size: st.lists(
            st.lists(WORD, min_size=size, max_size=size, unique=True), min_size=1, max_size=3
        )
    ),
    data=st.data(),
)
def test_any_part_of_a_text_is_found(
    separator: str, rows: list[list[str]], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rows[0]) - 1))
    assert holds_somewhere([Case(each[place], {"text": separator.join(each)}) for each in rows])


@given(
    key=KEYS.filter(lambda key: "." not in key),
    lists=st.lists(
        st.lists(st.one_of(WORD, st.integers(10, 99)), min_size=2, max_size=4),
        min_size=1,
        max_size=3,
    ),
    form=st.sampled_from(["list", "join"]),
)
def test_fields_of_any_list_are_found_as_a_list_and_joined(
    key: str, lists: list[list[JsonValue]], form: str
) -> None:
    cases = [
        Case(
            each if form == "list" else ", ".join(map(str, each)),
            {"rows": [{key: part, "other": at} for at, part in enumerate(each)]},
        )
        for each in lists
    ]
    assume(key != "other")
    assert holds_somewhere(cases)


@given(
    key=KEYS.filter(lambda key: "." not in key),
    rows=st.lists(st.tuples(WORD, PLAIN), min_size=2, max_size=4, unique_by=lambda row: row[0]),
    data=st.data(),
)
def test_a_field_of_any_item_is_looked_up_by_a_known_value_of_another(
    key: str, rows: list[tuple[str, JsonValue]], data: st.DataObject
) -> None:
    assume(key not in ("ids", "inputs"))
    listed: JsonValue = [{"ids": own, key: part} for own, part in rows]
    sights = []
    for _ in range(2):
        own, part = data.draw(st.sampled_from(rows))
        sights.append(sight(part, get=listed, said={"wanted": own}))
    assume(sum(each == sights[0].value for _, each in rows) == 1)
    assert best(*sights) is not None


@given(
    pairs=st.lists(
        st.tuples(st.integers(10, 10_000), st.integers(10, 10_000)), min_size=1, max_size=3
    ),
    form=st.sampled_from(["+", "-", "*", "/", "%"]),
)
def test_any_number_made_of_two_is_found(pairs: list[tuple[int, int]], form: str) -> None:
    makes = {
        "+": lambda one, other: one + other,
        "-": lambda one, other: one - other,
        "*": lambda one, other: one * other,
        "/": lambda one, other: round(one / other, 2),
        "%": lambda one, other: one * other / 100,
    }
    cases = [Case(makes[form](*each), {"left": each[0], "right": each[1]}) for each in pairs]
    assume(isinstance(cases[0].value, float) or abs(int(str(cases[0].value))) >= 10)
    assume(not isinstance(cases[0].value, float) or cases[0].value >= 10)
    assert holds_somewhere(cases)


@given(
    lists=st.lists(st.lists(st.integers(10, 999), min_size=2, max_size=5), min_size=1, max_size=3),
    form=st.sampled_from([sum, max, min, len]),
)
def test_any_number_made_of_a_list_is_found(lists: list[list[int]], form: object) -> None:
    assert callable(form)
    assert holds_somewhere([Case(form(each), {"rows": list(each)}) for each in lists])


SIGNS = st.text(" .,:;!?{}%#'\"\\\n()-", min_size=1, max_size=6)


@given(
    around=st.lists(SIGNS, min_size=3, max_size=3),
    pairs=st.lists(
        st.tuples(WORD, st.one_of(WORD, st.integers(10, 999), PLAIN)), min_size=1, max_size=3
    ),
)
def test_any_text_around_values_is_found(
    around: list[str], pairs: list[tuple[str, JsonValue]]
) -> None:
    cases = []
    for left, right in pairs:
        shown = right if isinstance(right, str) else literal(right)
        assume(left not in shown and shown not in left)
        assume(not any(shown in part or left in part for part in around))
        text = f"{around[0]}{left}{around[1]}{shown}{around[2]}"
        assume(text.count(shown) == 1 and text.count(left) == 1)
        assume(not (shown[0].isalnum() is False and around[1][-1] == shown[0]))
        cases.append(Case(text, {"left": left, "right": right}))
    assert holds_somewhere(cases)


TEXTS = st.text("ab {}%#'\"\\\n", max_size=6)
PIECES = st.lists(st.tuples(TEXTS, st.sampled_from(["a", "b", "c"])), max_size=3)


@given(pieces=PIECES, end=TEXTS, held=st.tuples(JSON, PLAIN, PLAIN))
def test_a_template_as_an_expression_gives_what_the_template_gives(
    pieces: list[tuple[str, str]], end: str, held: tuple[JsonValue, JsonValue, JsonValue]
) -> None:
    before = [f"{literal_template(text)}{{{{ get.{name} }}}}" for text, name in pieces]
    template = f"{''.join(before)}{literal_template(end)}"
    scope: dict[str, JsonValue] = {"get": dict(zip("abc", held, strict=True))}
    values = Values()
    wanted = values.give(template, scope)
    assume(wanted is not None)  # a text with null in it has no value
    assert values.give(f"{{{{ {as_expression(template)} }}}}", scope) == wanted


@given(text=st.one_of(st.text(), st.text("a {}%#'\\\n")))
def test_the_template_of_a_text_gives_the_text(text: str) -> None:
    template = literal_template(text)
    assert Values().give(template, {}) == text
    assert list(template_parts(template)) == ([(text, False)] if text else [])


@given(value=st.one_of(JSON, st.text("a {}%#'\\\n")))
def test_any_constant_gives_itself(value: JsonValue) -> None:
    assert Values().give(literal_templates(value), {}) == value


@given(key=KEYS, value=PLAIN)
def test_any_key_can_be_read(key: str, value: JsonValue) -> None:
    template = f"{{{{ {member('get', key)} }}}}"
    assert Values().give(template, {"get": {key: value}}) == value


@given(text=st.text())
def test_a_quoted_text_is_that_text(text: str) -> None:
    assert Values().give(f"{{{{ {quoted(text)} }}}}", {}) == text
