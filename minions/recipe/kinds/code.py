"""`code:` — Python for a sandbox. There is no sandbox yet: such
a recipe is refused when it is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.recipe.drafts import StepDraft
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import Table, mapping_key, text_key

__all__ = ["CODE", "CodeSpec"]


@frozen(kw_only=True)
class CodeSpec(StepSpec):
    """Python for a sandbox; there is no sandbox yet, so that the run is refused."""

    kind: ClassVar[str] = "code"
    needs_sandbox: ClassVar[bool] = True

    code: str
    given: Mapping[str, JsonValue] = field(factory=dict)
    """The names that the code sees, with templates of their values (YAML key `with`)."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.given,)

    @property
    def content(self) -> str:
        return self.code


class _Code(StepKind):
    name = "code"
    spec = CodeSpec
    table = Table(
        "a code step",
        (
            text_key(
                "code",
                "Python for a sandbox. There is none yet: such a recipe is checked, and refused "
                "with exit code 4 when it is run.",
                is_required=True,
            ),
            mapping_key("with", "The only names that it sees; templates are rendered."),
        ),
    )
    templates = ("with",)
    look = Look(light="#15803d", dark="#4ade80", outline="#16a34a", brackets=("[[", "]]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Warns that such a recipe can be checked, but not run."""
        reader.report(
            step.section.place_of("code").fault(
                "no-sandbox",
                "this code will be refused until there is a sandbox",
                help="register a tool or a Step that does the same",
                is_warning=True,
            )
        )

    def build(self, step: StepDraft, common: CommonKeys) -> CodeSpec:
        section = step.section
        return CodeSpec(
            **common, code=section.text("code") or "", given=given_mapping(section, "with")
        )


CODE = _Code()
