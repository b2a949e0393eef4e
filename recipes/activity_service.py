"""A fitness service in memory and a model that knows the rules, so that the recipe runs offline.

With a real service these four functions would call it; the recipe stays as it is.
"""

from __future__ import annotations

import json
from typing import TypedDict

from attrs import Factory, define, frozen

from minions import Extensions, Prompt, ScriptedModel, Tool, tool
from minions.guide import Toolbox
from minions.testing import Answer


@frozen(kw_only=True)
class Activity:
    """One workout."""

    id: int
    type: str
    km: float
    visibility: str
    kudos: tuple[str, ...] = ()


class Listed(TypedDict):
    """One workout in a list."""

    id: int
    type: str
    km: float
    visibility: str


class Found(TypedDict):
    """Workouts since a time."""

    list: list[Listed]
    since: int


SAMPLE = (
    Activity(id=1, type="Run", km=8, visibility="only_me", kudos=("Ada", "Bo")),
    Activity(id=2, type="Walk", km=3, visibility="only_me", kudos=("Bo",)),
    Activity(id=3, type="Ride", km=5, visibility="only_me"),
    Activity(id=4, type="Ride", km=20, visibility="only_me", kudos=("Cy", "Ada")),
    Activity(id=5, type="Run", km=10, visibility="everyone", kudos=("Dee",)),
)


@define
class Service:
    """What it holds, and what was changed."""

    activities: tuple[Activity, ...] = SAMPLE
    updates: list[dict[str, object]] = Factory(list)
    asked_for_kudos: list[int] = Factory(list)

    def tools(self) -> tuple[Tool, ...]:
        """The functions that the recipe calls."""

        @tool(name="getMyActivities", effect="pure")
        def get_my_activities(after_unix: int) -> Found:
            """Activities since that time."""
            found: list[Listed] = [
                {"id": each.id, "type": each.type, "km": each.km, "visibility": each.visibility}
                for each in self.activities
            ]
            return {"list": found, "since": after_unix}

        @tool(name="updateActivity", effect="idempotent")
        def update_activity(
            activity_id: int, visibility: str | None = None, hide_heart_rate: bool | None = None
        ) -> dict[str, object]:
            """Change an activity; what is not given stays."""
            self.updates.append(
                {"id": activity_id, "visibility": visibility, "hide_heart_rate": hide_heart_rate}
            )
            return {"success": True}

        @tool(name="getActivityKudos", effect="pure")
        def get_activity_kudos(activity_id: int) -> list[str]:
            """Who gave kudos for it."""
            self.asked_for_kudos.append(activity_id)
            return [
                name for each in self.activities if each.id == activity_id for name in each.kudos
            ]

        return get_my_activities, update_activity, get_activity_kudos


def judge(prompt: Prompt) -> Answer:
    """What a language model would say: it reads the input out of the question."""
    question = prompt.messages[-1].content or ""
    given = json.loads(question.splitlines()[-2])
    chosen = [
        each["id"]
        for each in given
        if each["visibility"] == "only_me"
        and each["type"] != "Walk"
        and not (each["type"] == "Ride" and each["km"] < 10)
    ]
    return {"activities_to_update": chosen, "reasoning": f"{len(chosen)} of {len(given)} qualify"}


EXTENSIONS = Extensions(
    tools=Toolbox(Service().tools()),
    models={"scripted/activity_monitor": ScriptedModel(judge, name="scripted/activity_monitor")},
)
