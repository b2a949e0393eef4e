"""Deployments: under which version of a recipe new runs of a name begin.

A deployment is configuration beside the journal, as schedules are, with the texts of its versions
and the history of what was decided. Each change replaces what was read, so that two processes that
decide at once make one decision. What came of it is in the journal: a run notes the deployment and
the number of the version that it got.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.app.runs.recipe_upgrade import recipe_digest
from minions.app.runs.schedule_store import recipe_of_texts
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.start_note import QUEUE_NAME
from minions.contracts.runtime import BlockingCalls
from minions.data.codec import decode, encode
from minions.data.errors import JournalError, MinionsError, NotFoundError, UsageError, did_you_mean
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import bundle_of

DEPLOYMENT: Final = "deployment"
"""The key of a note that says of which deployment a run is, and which version it got."""
LIVE: Final = "live"
"""In place of a number: the version that the deployment gives to a new run."""
_DEPLOYMENTS: Final = f"{RESERVED}deployment:"
_NAME: Final = re.compile(QUEUE_NAME)
_NAMED: Final = re.compile(r"([a-z0-9][a-z0-9_.-]{0,62})@([1-9][0-9]{0,8}|live)\Z")
_MOST_TRIES: Final = 20
_MOST_VERSIONS: Final = 50
"""Versions that are kept, the newest, beside the live one."""
_FACTS_OF_RUNS: Final = 20
"""Facts in which the newest beginning of a run is looked for."""
_MOST_EVENTS: Final = 200
"""Events that are kept, the newest."""


@frozen(kw_only=True)
class DeployedVersion:
    """One version of a deployment's recipe."""

    number: int
    """From 1; the name of a version is `NAME@NUMBER`."""
    digest: str
    """The fingerprint that its runs bear."""
    version: str | None = None
    """What the recipe states as its `version`."""
    document: Mapping[str, JsonValue] = field(repr=False)
    bundle: Mapping[str, JsonValue] = field(repr=False)
    """The recipes that its steps are."""
    directory: str | None = None
    """Where relative paths of the recipe start."""


@frozen(kw_only=True)
class Canary:
    """A version that gets a share of the new runs until it is decided about."""

    number: int
    share: float
    """Of new runs, above 0 and at most 1."""
    runs: int | None = None
    """How many of its runs have to end before it is promoted; None: a person decides."""
    bars: tuple[str, ...] = ()
    """Conditions over what is measured of its runs, all of which have to hold then; none: a person
    decides."""
    since: datetime


@frozen(kw_only=True)
class DeploymentEvent:
    """Something that was decided."""

    at: datetime
    what: str
    """`deployed`, `canary`, `promoted` or `withdrawn`."""
    number: int
    """The number of the version."""
    by: str | None = None
    """Who decided; None: the bars did."""
    reason: str = ""
    figures: Mapping[str, JsonValue] = field(factory=dict)
    """What was measured of the version's runs when it was decided."""


@frozen(kw_only=True)
class Deployment:
    """A name under which a recipe is run, its versions, and which of them new runs get."""

    name: str
    recipe: str
    """The recipe's id, the same in all versions."""
    versions: tuple[DeployedVersion, ...] = ()
    live: int
    """The number of the promoted version."""
    canary: Canary | None = None
    history: tuple[DeploymentEvent, ...] = ()

    def version(self, number: int) -> DeployedVersion:
        """The version of that number.

        Raises:
            NotFoundError: There is none.
        """
        for each in self.versions:
            if each.number == number:
                return each
        numbers = ", ".join(str(each.number) for each in self.versions)
        raise NotFoundError(
            f"The deployment '{self.name}' has no version {number}. It has {numbers}.",
            code="unknown-version",
        )

    def number_for(self, key: str) -> int:
        """The number of the version that a new run gets.

        Args:
            key: Names the run: each process comes to the same number, and nothing is counted.
        """
        if self.canary is None:
            return self.live
        digest = hashlib.sha256(f"{self.name}@{self.canary.number} {key}".encode()).digest()
        is_canary = int.from_bytes(digest[:8]) < self.canary.share * 2**64
        return self.canary.number if is_canary else self.live

    def with_version(self, recipe: AgentRecipe) -> tuple[Deployment, DeployedVersion]:
        """With that text of the recipe as a further version, unless one has it, in the same folder;
        the version.

        Raises:
            UsageError: `recipe-needed`: the recipe was made by code. `other-deployment`: its id
                is another one.
        """
        made = _version_of(recipe, number=max((each.number for each in self.versions), default=0))
        if recipe.id != self.recipe:
            raise UsageError(
                f"The deployment '{self.name}' is of the recipe '{self.recipe}', and this one is "
                f"'{recipe.id}'. Deploy it as another name.",
                code="other-deployment",
            )
        for each in self.versions:
            if (each.digest, each.directory) == (made.digest, made.directory):
                return self, each
        kept = list(self.versions[1 - _MOST_VERSIONS :])
        if all(each.number != self.live for each in kept):
            kept.insert(0, self.version(self.live))
        return evolve(self, versions=(*kept, made)), made

    def with_canary(self, canary: Canary, event: DeploymentEvent) -> Deployment:
        """With that canary in place of another one."""
        return evolve(self, canary=canary, history=self._with(event))

    def promoted(self, number: int, event: DeploymentEvent) -> Deployment:
        """With that version for all new runs.

        Raises:
            NotFoundError: There is none.
        """
        self.version(number)
        return evolve(self, live=number, canary=None, history=self._with(event))

    def withdrawn(self, event: DeploymentEvent) -> Deployment:
        """Without its canary."""
        return evolve(self, canary=None, history=self._with(event))

    def _with(self, event: DeploymentEvent) -> tuple[DeploymentEvent, ...]:
        return (*self.history, event)[-_MOST_EVENTS:]

    def to_json(self) -> dict[str, JsonValue]:
        """The deployment as `--json` shows it: without the texts."""
        canary = None if self.canary is None else encode(self.canary)
        return {
            "name": self.name,
            "recipe": self.recipe,
            "live": self.live,
            "canary": canary,
            "versions": [
                {"number": each.number, "version": each.version, "digest": each.digest}
                for each in self.versions
            ],
            "history": [encode(each) for each in self.history],
        }


def _version_of(recipe: AgentRecipe, number: int) -> DeployedVersion:
    if recipe.document is None:
        raise UsageError(
            f"The recipe '{recipe.id}' was made by code, which cannot be stored. Deploy a recipe "
            "of a file.",
            code="recipe-needed",
        )
    bundle = bundle_of(recipe)
    stated = recipe.document.get("version")
    return DeployedVersion(
        number=number + 1,
        digest=recipe_digest(recipe.document, bundle),
        version=None if stated is None else str(stated),
        document=recipe.document,
        bundle=bundle,
        directory=recipe.directory,
    )


def first_deployment(
    name: str, recipe: AgentRecipe, at: datetime, by: str | None
) -> tuple[Deployment, DeployedVersion]:
    """The deployment of a recipe that has none of that name: its only version is the live one.

    Raises:
        UsageError: `bad-name`; or as `Deployment.with_version`.
    """
    if not _NAME.match(name):
        raise UsageError(
            f"--as {name:.100}: a deployment's name has 1 to 63 lower-case letters, digits, '_', "
            "'.' and '-', and begins with a letter or digit. A number may follow: triage@2.",
            code="bad-name",
        )
    made = _version_of(recipe, number=0)
    event = DeploymentEvent(at=at, what="deployed", number=1, by=by)
    deployment = Deployment(name=name, recipe=recipe.id, versions=(made,), live=1, history=(event,))
    return deployment, made


def split_name(text: str) -> tuple[str, int | None] | None:
    """The deployment and the number that `NAME@NUMBER` or `NAME@live` means.

    None as number: the one that a new run gets. None: it is no such name.
    """
    named = _NAMED.match(text)
    if named is None:
        return None
    return named[1], None if named[2] == LIVE else int(named[2])


def deployment_noted(note: Mapping[str, object]) -> tuple[str, int] | None:
    """The deployment and the number of the version of the run with that note; None: it has none."""
    said = note.get(DEPLOYMENT)
    if not isinstance(said, Mapping):
        return None
    name, number = said.get("name"), said.get("number")
    if not isinstance(name, str) or not isinstance(number, int):
        return None
    return name, number


def version_noted(note: Mapping[str, object]) -> int | None:
    """The number of the version that the note names; None: it names no deployment."""
    noted = deployment_noted(note)
    return None if noted is None else noted[1]


class DeploymentStore:
    """The deployments of a database."""

    def __init__(self, state: StateStore) -> None:
        """Nothing is read yet."""
        self._state = state
        self._recipes: dict[tuple[str, str | None], AgentRecipe] = {}
        """Recipes by the digests of their texts and their folders: a text is read once."""

    async def names(self) -> Sequence[str]:
        """The names of all deployments, sorted."""
        start = len(_DEPLOYMENTS)
        return [key[start:] for key in await self._state.keys(_DEPLOYMENTS)]

    async def find(self, name: str) -> Deployment | None:
        """The deployment of that name; None: there is none.

        Raises:
            JournalError: `corrupt-entry`; it cannot be read.
        """
        return _read(name, await self._state.get(_DEPLOYMENTS + name))

    async def get(self, name: str) -> Deployment:
        """The deployment of that name.

        Raises:
            NotFoundError: There is none.
        """
        found = await self.find(name)
        if found is None:
            names = await self.names()
            hint = did_you_mean(name, names) or " `minions deploy RECIPE --as NAME` makes one."
            raise NotFoundError(
                f"There is no deployment '{name:.100}'.{hint}",
                code="unknown-deployment",
            )
        return found

    async def change(
        self, name: str, changed: Callable[[Deployment | None], Deployment | None]
    ) -> Deployment | None:
        """Replace the deployment by what `changed` makes of it, in one moment; None: it is left.

        Args:
            changed: Called again with what another process stored meanwhile.
        Raises:
            JournalError: The database cannot be used, or is changed without an end.
        """
        key = _DEPLOYMENTS + name
        for _ in range(_MOST_TRIES):
            text = await self._state.get(key)
            made = changed(_read(name, text))
            if made is None:
                return None
            if await self._state.replace(key, text, dumps(encode(made))):
                return made
        raise JournalError(
            f"The deployment '{name}' is changed by other processes all the time. Try again.",
            code="database-busy",
        )

    async def remove(self, name: str) -> None:
        """Remove it; runs that it began stay, with their recipe.

        Raises:
            NotFoundError: There is none of that name.
        """
        await self.get(name)
        await self._state.remove(_DEPLOYMENTS + name)

    def recipe(self, deployment: Deployment, number: int, catalog: Catalog) -> AgentRecipe:
        """The recipe of that version; no file is read.

        Raises:
            NotFoundError: There is no such version.
            RecipeError: What it names is not registered here.
        """
        version = deployment.version(number)
        place = version.digest, version.directory
        known = self._recipes.get(place)
        if known is None:
            known = self._recipes[place] = recipe_of_texts(
                version.document,
                version.bundle,
                version.directory,
                catalog,
                called=f"{deployment.name}@{number}",
            )
        return known

    async def recipe_for(
        self,
        deployment: Deployment,
        number: int | None,
        key: str,
        catalog: Catalog,
        *,
        journal: Journal,
        threads: BlockingCalls,
        session: str | None = None,
    ) -> tuple[AgentRecipe, dict[str, JsonValue]]:
        """The recipe of a new run of that deployment, and what the run notes of it.

        Args:
            number: The version that was asked for; None: the one that the deployment gives.
            key: Names the run, as in `Deployment.number_for`.
            session: The session that the run continues: it stays with its version as long as that
                is the live one or the canary. None: a new one.
        Raises:
            NotFoundError: There is no such version.
        """
        if number is None:
            number = deployment.number_for(key)
            if session is not None and deployment.canary is not None:
                before = await _newest_note(journal, session)
                noted = None if before is None else deployment_noted(before)
                given = (deployment.live, deployment.canary.number)
                if noted is not None and noted[0] == deployment.name and noted[1] in given:
                    number = noted[1]
        chosen = number
        # A text that was not read yet may be long.
        recipe = await threads.run(lambda: self.recipe(deployment, chosen, catalog))
        return recipe, {DEPLOYMENT: {"name": deployment.name, "number": number}}


async def _newest_note(journal: Journal, session_id: str) -> Mapping[str, JsonValue] | None:
    """The note of the newest run of a session; None: it has none."""
    rows = await journal.entries(
        session_id, kinds={"run"}, newest_first=True, limit=_FACTS_OF_RUNS, with_damaged=True
    )
    begun = (each.fact for each in rows if isinstance(each.fact, RunBeginning))
    return next((each.note for each in begun), None)


def _read(name: str, text: str | None) -> Deployment | None:
    if text is None:
        return None
    try:
        return decode(parse_json(text), Deployment)
    except (MinionsError, ValueError) as error:
        raise JournalError(
            f"The deployment '{name}' cannot be read: {error}. Remove it and deploy again: "
            f"minions deployments remove {name}",
            code="corrupt-entry",
        ) from error
