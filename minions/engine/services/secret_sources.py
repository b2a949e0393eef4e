"""The secrets of a run: found among its inputs, read from the environment or from files."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from minions.contracts.secrets import SecretRef, Secrets, SecretSource
from minions.contracts.tools import Tool
from minions.data.bounded_files import read_regular
from minions.data.codec import encode
from minions.data.errors import EnvironmentRefusedError, MinionsError, UsageError, words_of
from minions.data.json_values import JsonValue, as_text
from minions.recipe.model import AgentRecipe

_LARGEST_FILE: Final = 65_536
NO_SECRETS: Final = Secrets()
"""Stands for the secrets of a run that has none."""


def declared_secrets(
    recipe: AgentRecipe, inputs: Mapping[str, JsonValue], source: SecretSource
) -> Secrets:
    """The values of the recipe's secret inputs, resolved now.

    Args:
        inputs: Checked inputs; that of a secret is the text of its reference.
    Raises:
        EnvironmentRefusedError: `missing-secret` or `short-secret`.
    """
    if not any(spec.is_secret for spec in recipe.inputs.values()):
        return NO_SECRETS
    names = [name for name, spec in recipe.inputs.items() if spec.is_secret and name in inputs]
    return Secrets.resolve([SecretRef.parse(as_text(inputs[name])) for name in names], source)


def environment_and_files(ref: SecretRef) -> str:
    """The default source of secrets: `env:NAME` or `file:/absolute/path`.

    Raises:
        EnvironmentRefusedError: `missing-secret`.
    """
    return _variable(ref) if ref.kind == "env" else _file(ref)


def _variable(ref: SecretRef) -> str:
    value = os.environ.get(ref.name)
    if not value:
        state = "not set" if value is None else "empty"
        raise _missing(ref, f"The environment variable {ref.name} is {state}", "Set it")
    return value


def _file(ref: SecretRef) -> str:
    path = Path(ref.name)
    try:
        data = read_regular(path, _LARGEST_FILE)
        text = data.decode()
    except OSError as error:
        what = f"The file {path} cannot be read ({error.strerror})"
        raise _missing(ref, what, "Check its path and permissions") from error
    except UnicodeDecodeError:
        # Not chained: the error holds the bytes.
        raise _missing(ref, f"The file {path} is no UTF-8 text", "Store text there") from None
    if len(data) > _LARGEST_FILE:
        what = f"The file {path} is longer than {_LARGEST_FILE:,} bytes"
        raise _missing(ref, what, "Name the file that holds the secret alone")
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise _missing(ref, f"The file {path} is empty", "Put the secret into it")
    return value


def _missing(ref: SecretRef, what: str, remedy: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"{what}; a secret input of this run refers to it. {remedy}, or refer to another place "
        "with env:NAME or file:/absolute/path.",
        code="missing-secret",
        where=ref.source,
    )


@contextmanager
def hidden_errors(secrets: Secrets, what: str) -> Iterator[None]:
    """Remove secrets from errors of code that was given them."""
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))
        if secrets.clean_text(shown) == shown:
            raise
        code = error.error_code if isinstance(error, MinionsError) else "secret-in-error"
        text = error.message if isinstance(error, MinionsError) else words_of(error)
        # Not chained: the error's own text and those it came from hold a secret.
        raise EnvironmentRefusedError(
            f"{what} failed: {secrets.clean_text(text)}", code=code
        ) from None


def refuse_shown_secrets(tool: Tool, secrets: Secrets) -> None:
    """Refuse a tool whose name, description or parameters contain a secret: models read these.

    Raises:
        UsageError: `secret-shown`.
    """
    if secrets.are_shown_in(encode(tool.spec)):
        raise UsageError(
            f"The tool '{secrets.clean_text(tool.spec.name)}' shows a secret in its name, "
            "description or parameters, which models read. Change the tool, or give the secret "
            "to it in another way.",
            code="secret-shown",
        )
