"""What answers in runs teach of a server: several are needed, and it ends to count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions import ScriptedModel
from minions.adapters.models.profile_files import ProfileFiles
from minions.contracts.calls import ChatModel
from minions.contracts.model_profiles import Feature, Lesson, ModelProfile, Support

NOW = datetime(2026, 1, 1, tzinfo=UTC)
URL = "http://127.0.0.1:1/v1"


def after(answers: str, at: datetime = NOW) -> Lesson:
    """The lesson of these answers: `+` it was held to, `-` it was not."""
    lesson = Lesson(support=Support.IGNORES)
    for each in answers:
        lesson = lesson.after(None if each == "+" else Support.IGNORES, at)
    return lesson


@pytest.mark.parametrize(
    ("answers", "counts"),
    [
        ("", False),
        ("-", False),
        ("--", False),
        ("---", True),
        ("+---", False),
        ("+------", True),
        ("-+-+-+", False),
        ("+" * 14 + "-" + "+" * 14 + "-" + "+" * 14 + "-", False),  # three of forty-five
        ("+" * 40 + "-" * 12, False),
        ("+" * 40 + "-" * 15, True),  # it has changed: fifteen of the last twenty
        ("---+++", False),
    ],
)
def test_a_lesson_counts_where_most_answers_are_against_the_feature(
    answers: str, counts: bool
) -> None:
    """A-158."""
    assert after(answers).counts(NOW) is counts


@given(st.text("+-", max_size=60))
def test_no_lesson_counts_against_half_of_the_last_answers(answers: str) -> None:
    lesson = after(answers)
    last = answers[-20:]
    assert lesson.seen == last
    if lesson.counts(NOW):
        assert last.count("-") >= 3
        assert last.count("-") > last.count("+")


def test_a_lesson_ends_to_count_and_is_learned_anew() -> None:
    """A-158."""
    lesson = after("---")
    later = NOW + timedelta(days=7)
    assert lesson.counts(later - timedelta(seconds=1))
    assert not lesson.counts(later)
    again = lesson.after(Support.REFUSES, later)
    assert (again.seen, again.support, again.counts(later)) == ("-", Support.REFUSES, False)
    assert lesson.after(None, later).seen == "+"


class Served(ScriptedModel):
    base_url = URL


MODEL: ChatModel = Served([], name="lab/m")


def learned(book: ProfileFiles, answers: str, *, told: list[bool] | None = None) -> None:
    for each in answers:
        known = book.find(MODEL) or ModelProfile(
            base_url=URL, model="lab/m", measured_at=NOW, is_learned=True
        )
        support = None if each == "+" else Support.REFUSES
        profile = known.with_answer(Feature.JSON_SCHEMA, support, NOW)
        book.learn(profile, Feature.JSON_SCHEMA, is_told=False)


def support_in(folder: Path, project: str) -> Support | None:
    profile = ProfileFiles(folder, project=project).find(MODEL)
    return profile.at(NOW).support(Feature.JSON_SCHEMA) if profile is not None else None


def test_a_lesson_counts_in_its_project_alone(tmp_path: Path) -> None:
    """A-158."""
    learned(ProfileFiles(tmp_path, project="/a"), "---")
    assert support_in(tmp_path, "/a") is Support.REFUSES
    assert support_in(tmp_path, "/b") is None


def test_what_was_measured_counts_everywhere_and_ends_the_lessons(tmp_path: Path) -> None:
    """A-158."""
    book = ProfileFiles(tmp_path, project="/a")
    learned(book, "---")
    features = {Feature.JSON_SCHEMA: Support.BINDS}
    book.keep(ModelProfile(base_url=URL, model="lab/m", measured_at=NOW, features=features))
    assert support_in(tmp_path, "/a") is Support.BINDS
    assert support_in(tmp_path, "/b") is Support.BINDS
    learned(ProfileFiles(tmp_path, project="/a"), "---")
    assert support_in(tmp_path, "/a") is Support.REFUSES
    assert support_in(tmp_path, "/b") is Support.BINDS


def test_single_answers_that_an_older_program_kept_count_no_more(tmp_path: Path) -> None:
    features = {Feature.JSON_SCHEMA: Support.REFUSES}
    old = ModelProfile(
        base_url=URL, model="lab/m", measured_at=NOW, features=features, is_learned=True
    )
    book = ProfileFiles(tmp_path)
    book.keep(old)
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text("utf-8").replace('"is_learned": false', '"is_learned": true'))
    assert ProfileFiles(tmp_path).find(MODEL) is None


def test_answers_that_are_held_to_are_not_a_file_each(tmp_path: Path) -> None:
    book = ProfileFiles(tmp_path, project="/a")
    learned(book, "+")
    (file,) = (tmp_path / "learned").rglob("*.json")
    before = file.stat().st_mtime_ns, file.read_text("utf-8")
    learned(book, "+++")
    assert (file.stat().st_mtime_ns, file.read_text("utf-8")) == before
