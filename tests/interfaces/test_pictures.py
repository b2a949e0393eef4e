"""Pictures of steps: layout, SVG, text; for graphs of any shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from minions.analysis.pictures.picture import (
    MOST_IN_A_ROW,
    Edge,
    Node,
    Picture,
    cut,
    laid_out,
    picture_of,
    rows_of,
)
from minions.analysis.pictures.svg import svg
from minions.analysis.pictures.text_pictures import mermaid, outline
from minions.contracts.steps import PythonStep, StepScope
from minions.engine.compile.selection import DefaultStepGraph
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.model import AgentRecipe

SVG = "{http://www.w3.org/2000/svg}"


def picture(count: int, pairs: Sequence[tuple[int, int]], *, dashed: bool = False) -> Picture:
    return Picture(
        title="p",
        nodes=tuple(Node(id=f"s{at}", kind="set", label="x") for at in range(count)),
        edges=tuple(Edge(start=start, end=end, is_dashed=dashed) for start, end in pairs),
    )


@st.composite
def graphs(draw: st.DrawFn, count: int = 50) -> Picture:
    nodes = tuple(
        Node(
            id=f"step_{at}",
            kind=draw(st.sampled_from(tuple(KINDS))),
            label="x" * draw(st.integers(0, 60)),
            notes=("writes", "when it rains", "for each day")[: draw(st.integers(0, 3))],
        )
        for at in range(count)
    )
    waits = [
        draw(st.lists(st.integers(0, at - 1), max_size=3, unique=True)) if at else []
        for at in range(count)
    ]
    edges = [
        Edge(start=start, end=end, is_dashed=draw(st.booleans()))
        for end, starts in enumerate(waits)
        for start in starts
    ]
    back = [
        Edge(start=edge.end, end=edge.start, back="goto") for edge in edges if draw(st.booleans())
    ]
    again = [Edge(start=at, end=at, back="while") for at in range(count) if draw(st.booleans())]
    return Picture(title="any", nodes=nodes, edges=(*edges, *back, *again))


@frozen
class Rectangle:
    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: Rectangle) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def boxes(root: ET.Element) -> list[Rectangle]:
    found = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "box"]
    places = [[float(rect.get(key, "")) for key in ("x", "y", "width", "height")] for rect in found]
    return [Rectangle(x, y, x + width, y + height) for x, y, width, height in places]


@settings(max_examples=12, deadline=None)
@given(graphs())
def test_no_two_boxes_overlap_and_all_lie_in_the_picture(drawn: Picture) -> None:
    root = ET.fromstring(svg(drawn))
    found = boxes(root)
    page = Rectangle(0, 0, float(root.get("width", "")), float(root.get("height", "")))
    assert len(found) == len(drawn.nodes)
    assert not [pair for pair in itertools.combinations(found, 2) if pair[0].touches(pair[1])]
    assert all(box.left >= 0 and box.top >= 0 for box in found)
    assert all(box.right <= page.right and box.bottom <= page.bottom for box in found)


@settings(max_examples=12, deadline=None)
@given(graphs())
def test_what_waits_stands_below_what_it_waits_for(drawn: Picture) -> None:
    rows = rows_of(drawn)
    row_of = {step: at for at, row in enumerate(rows) for step in row}
    assert sorted(row_of) == list(range(len(drawn.nodes)))
    assert all(row_of[edge.start] < row_of[edge.end] for edge in drawn.edges if not edge.back)
    assert max(map(len, rows)) <= MOST_IN_A_ROW
    assert laid_out(drawn) == laid_out(drawn)
    assert svg(drawn) == svg(drawn)


@settings(max_examples=12, deadline=None)
@given(graphs())
def test_the_tree_has_every_step_once_in_less_than_a_hundred_columns(drawn: Picture) -> None:
    lines = outline(drawn).splitlines()
    assert max(map(len, lines)) < 100
    for number, node in enumerate(drawn.nodes, 1):
        assert sum(f"{number} {node.id}: " in f" {line}" for line in lines) == 1


def test_hostile_text_stays_text() -> None:
    label = """<script>alert("it's")</script> & \x00\x1b[31m]]>"""
    drawn = Picture(title="<b>&", nodes=(Node(id='a"]; click', kind="goal", label=label),))
    text = svg(drawn)
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    root = ET.fromstring(text)
    group = root.find(f"{SVG}g")
    assert group is not None
    assert group.findtext(f"{SVG}title") == (
        """1 a"]; click\ngoal: <script>alert("it's")</script> &   [31m]]>"""
    )
    assert [text.text for text in group.iter(f"{SVG}text")] == [
        '1 a"]; click',
        """<script>alert("it's")</script>…""",
    ]
    assert mermaid(drawn).splitlines()[1] == (
        '  n1("1 · a#34;]#59; click<br/>goal: #60;script#62;alert(#34;it#39;s#34;)'
        '#60;/script#62; #38; [31m]]#62;"):::goal'
    )


def test_steps_that_wait_for_nothing_fill_rows_in_their_order() -> None:
    assert rows_of(picture(8, [])) == ((0, 1, 2, 3, 4, 5), (6, 7))


def test_lines_are_uncrossed_where_that_is_possible() -> None:
    crossed = picture(4, [(0, 3), (1, 2)])
    assert rows_of(crossed) == ((0, 1), (3, 2))


def test_a_dashed_line_is_explained() -> None:
    assert "however that step ended" in svg(picture(2, [(0, 1)], dashed=True))
    assert "however that step ended" not in svg(picture(2, [(0, 1)]))


def test_a_long_chain_stays_at_the_left() -> None:
    count = 300
    chain = picture(count, list(itertools.pairwise(range(count))))
    assert max(map(len, outline(chain).splitlines())) < 20
    assert len({box.left for box in boxes(ET.fromstring(svg(chain)))}) == 1


def test_a_cut_text_is_on_one_line_and_says_that_it_was_cut() -> None:
    assert cut("a\n  b\tc", 9) == "a b c"
    assert cut("a longer text", 8) == "a longe…"
    assert cut("a longer text", 8, "...") == "a lon..."


@frozen
class Look(PythonStep[int]):
    id: str

    @property
    def description(self) -> str:
        return "Look once"

    async def run(self, scope: StepScope) -> int:
        return 1


def test_python_steps_are_joined_by_their_transitions_also_in_a_circle() -> None:
    steps = (Look("a"), Look("b"), Look("c"))
    nodes = tuple(Node(id=step.id, kind="code", label="Look once") for step in steps)
    edges = {"a": ["b", "c"], "b": ["a", "b"]}
    circle = Picture(
        title="r",
        nodes=nodes,
        edges=(
            Edge(start=1, end=0),
            Edge(start=0, end=1),
            Edge(start=1, end=1),
            Edge(start=0, end=2),
        ),
    )
    assert picture_of(AgentRecipe(id="r", steps=steps, graph=edges), {}) == circle
    graph = DefaultStepGraph(steps, edges)
    assert picture_of(AgentRecipe(id="r", steps=steps, graph=graph), {}) == circle
    assert len(boxes(ET.fromstring(svg(circle)))) == 3
    assert outline(circle) == (
        "1 a: code Look once; after 2\n"
        " |- 2 b: code Look once; also after 2\n"
        " `- 3 c: code Look once\n"
    )
    chain = picture_of(AgentRecipe(id="r", steps=steps), {})
    assert chain.edges == (Edge(start=0, end=1), Edge(start=1, end=2))
