"""The two questions of declarative steps, for programs that have no recipe: by name."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from minions.contracts.calls import ChatModel
from minions.contracts.steps import PythonStep, StepScope
from minions.data.json_values import JsonValue, as_object
from minions.data.schema import JsonSchema
from minions.engine.compile.extraction import extraction_question
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.kinds.analyze_kind import AnalyzeSpec
from minions.recipe.model import AgentRecipe, InputSpec
from minions.recipe.text.schemas import schema_of_example


async def extract_params(
    model: ChatModel,
    *,
    step_description: str,
    tool_name: str,
    tool_params: JsonSchema,
    context_data: Mapping[str, JsonValue],
    services: Services | None = None,
) -> dict[str, JsonValue]:
    """Parameters for ONE tool call out of data: `{"params": {name: value}}`.

    Args:
        tool_params: JSON Schema of the tool's arguments; what it requires must be found.
        context_data: What is known, by name.
    Raises:
        AgentExecutionError: The model gave no parameters that fit, also when asked to repair.
    """
    step = _Extraction(
        id="extract",
        step_description=step_description,
        tool_name=tool_name,
        tool_params=tool_params,
        context_data=context_data,
    )
    recipe = AgentRecipe(id="extract_params", steps=[step])
    result = await AgentExecutor(model, services=services).execute(recipe)
    return {**as_object(result.unwrap())}


async def analyze_data(
    model: ChatModel,
    *,
    task_description: str,
    input_data: JsonValue,
    output_format: Mapping[str, JsonValue],
    context: str | None = None,
    services: Services | None = None,
) -> dict[str, JsonValue]:
    """One question about data: an object of the form of the example `output_format`.

    Raises:
        AgentExecutionError: The model gave no such object, also when asked to repair.
    """
    spec = AnalyzeSpec(
        id="analyze",
        task="{{ inputs.task }}",
        context="{{ inputs.context }}" if context is not None else None,
        input="{{ inputs.data }}",
        has_input=True,
        output=schema_of_example(output_format),
    )
    inputs = {"task": task_description, "context": context, "data": input_data}
    anything = {name: InputSpec(schema={}) for name in inputs}
    recipe = AgentRecipe(id="analyze_data", steps=[spec], inputs=anything)
    result = await AgentExecutor(model, services=services).execute(recipe, inputs)
    return {**as_object(result.unwrap())}


@frozen(kw_only=True)
class _Extraction(PythonStep[JsonValue]):
    """One question, outside of a recipe."""

    id: str
    step_description: str
    tool_name: str
    tool_params: JsonSchema
    context_data: Mapping[str, JsonValue]

    async def run(self, scope: StepScope) -> JsonValue:
        messages, output = extraction_question(
            step_description=self.step_description,
            tool_name=self.tool_name,
            tool_params=self.tool_params,
            context_data=self.context_data,
        )
        return await scope.ask_model(messages, output)
