"""`code:` — Python for a sandbox; refused when the run begins, until there is one."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Python for a sandbox; refused when the run begins, until there is one."""

    kind: ClassVar[str] = "code"
    needs_sandbox: ClassVar[bool] = True

    code: str
    given: Mapping[str, JsonValue] = field(factory=dict)
    """YAML key `with`: the only names it sees; templates."""

    @property
    def content(self) -> str:
        """The code."""
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
            mapping_key("with", "The only names that it sees; templates are filled in."),
        ),
    )
    templates = ("with",)
    look = Look(light="#15803d", dark="#4ade80", outline="#16a34a", brackets=("[[", "]]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Warn: such a recipe can be checked, and not run."""
        reader.report(
            step.section.place_of("code").fault(
                "no-sandbox",
                "this code will be refused until there is a sandbox",
                help="register a tool or a Step that does the same",
                is_warning=True,
            )
        )

    def build(self, step: StepDraft, common: CommonKeys) -> CodeSpec:
        """As written."""
        section = step.section
        return CodeSpec(
            **common, code=section.text("code") or "", given=given_mapping(section, "with")
        )


CODE = _Code()
