"""What is counted and timed while recipes run; an implementation decides what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence


class Metrics:
    """Is told of everything that ends. Each method returns at once and raises nothing.

    This one counts nothing, and costs a call: it is the default. Override what you need. Names of
    models, tools and codes come from recipes and servers: who keeps them bounds their number.
    """

    def run_began(self) -> None:
        """An execution of a run began."""

    def run_ended(self, status: str, seconds: float) -> None:
        """An execution of a run ended, with a status of `RunStatus`."""

    def recipe_run_ended(self, recipe: str, version: str, status: str) -> None:
        """The same execution, by its recipe and the version that this states."""

    def step_ended(self, status: str, code: str | None, seconds: float) -> None:
        """A step, or one item of a loop, was executed.

        Args:
            status: As of `StepStatus`.
            code: The code of its failure; None: it has none.
        """

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        """A request to a model ended, or was refused before it was sent.

        Args:
            model: `provider/name`, as it was configured.
            code: That of the failure, as spans have it; None: there was an answer.
            seconds: From the request to the end, without the time for which it waited for its turn.
        """

    def model_call_waited(self, model: str, seconds: float) -> None:
        """A request waited that long for its turn at the server."""

    def model_tokens(
        self, model: str, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        """Tokens of a model call were counted, or estimated.

        Args:
            cost_usd: What they cost; None: it is not known.
        """

    def model_cache(self, model: str, kind: str, tokens: int) -> None:
        """Input tokens had to do with the server's cache of prompts.

        Args:
            kind: `read` and `written` as the server counted them; `expected` to be read, since an
                earlier prompt began so; `lost`: equal to what an earlier prompt had, but behind
                the first difference, and so paid again.
        """

    def output_checked(
        self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
    ) -> None:
        """An answer was checked against the output that its step declares.

        Args:
            rung: How it was asked for: `constrained`, `json`, `repair` and so on.
            cost_usd: What the call cost; None: it is not known.
        """

    def tool_call_ended(self, tool: str, code: str | None, seconds: float) -> None:
        """A tool call ended, with all its attempts.

        Args:
            code: The code of its failure; None: there was a result.
        """

    def retried(self, what: str) -> None:
        """An attempt at a call was made that is not its first one.

        Args:
            what: `model` or `tool`.
        """

    def budget_refused(self, limit: str) -> None:
        """Something did not begin because that limit of its run was reached."""


class JointMetrics(Metrics):
    """Tells several of everything, in their order."""

    def __init__(self, all_metrics: Sequence[Metrics]) -> None:
        """Nothing is told yet."""
        self.all = tuple(all_metrics)

    def run_began(self) -> None:
        for each in self.all:
            each.run_began()

    def run_ended(self, status: str, seconds: float) -> None:
        for each in self.all:
            each.run_ended(status, seconds)

    def recipe_run_ended(self, recipe: str, version: str, status: str) -> None:
        for each in self.all:
            each.recipe_run_ended(recipe, version, status)

    def step_ended(self, status: str, code: str | None, seconds: float) -> None:
        for each in self.all:
            each.step_ended(status, code, seconds)

    def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
        for each in self.all:
            each.model_attempt_ended(model, code, seconds)

    def model_call_waited(self, model: str, seconds: float) -> None:
        for each in self.all:
            each.model_call_waited(model, seconds)

    def model_tokens(
        self, model: str, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        for each in self.all:
            each.model_tokens(model, input_tokens, output_tokens, cost_usd)

    def model_cache(self, model: str, kind: str, tokens: int) -> None:
        for each in self.all:
            each.model_cache(model, kind, tokens)

    def output_checked(
        self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
    ) -> None:
        for each in self.all:
            each.output_checked(model, rung, cost_usd, is_valid=is_valid)

    def tool_call_ended(self, tool: str, code: str | None, seconds: float) -> None:
        for each in self.all:
            each.tool_call_ended(tool, code, seconds)

    def retried(self, what: str) -> None:
        for each in self.all:
            each.retried(what)

    def budget_refused(self, limit: str) -> None:
        for each in self.all:
            each.budget_refused(limit)
