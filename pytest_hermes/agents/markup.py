"""Calls that an endpoint left in the text of an answer: found by a tool-call parser, and what the model is told of
those that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_hermes.tool_call_parsers import Findings, Parser

NO_PARSER = "none"
MAX_REASONS = 3


class Markup:
    """Looks for calls in text. `parser` is one, or the name of one, which is loaded when there is a text to look at."""

    def __init__(self, parser: Parser | str | None) -> None:
        self._parser = None if parser == NO_PARSER else parser

    def find(self, content: Any, schemas: Sequence[Mapping[str, Any]]) -> Findings | None:
        """What is in the content of an answer without structured calls; None where nothing is to be looked for."""
        if self._parser is None or not schemas or not isinstance(content, str) or not content.strip():
            return None
        if isinstance(self._parser, str):
            from pytest_hermes.tool_call_parsers import get_parser

            self._parser = get_parser(self._parser)
        from pytest_hermes.tool_call_parsers import findings_of

        return findings_of(self._parser, content, schemas)


def check_parser_name(name: str) -> None:
    """Raises ConfigurationError for a name that no parser has."""
    from pytest_hermes.errors import ConfigurationError
    from pytest_hermes.tool_call_parsers import UnknownParser, get_parser

    if name == NO_PARSER:
        return
    try:
        get_parser(name)
    except UnknownParser as error:
        raise ConfigurationError(f"env.tool_call_parser: {error}") from error


def unread(findings: Findings) -> str:
    """What is wrong with the calls that could not be read, for the model."""
    reasons = list(dict.fromkeys(error.reason for error in findings.errors))[:MAX_REASONS]
    return "; ".join(reasons)


def told(findings: Findings, *, is_cut: bool) -> str:
    """The message to a model whose answer held nothing but calls that cannot be read."""
    if findings.truncated:
        where = "at the token limit" if is_cut else "in the middle"
        return (
            f"Your answer ends {where} of a tool call, so nothing was run. Make the call again, complete; put less "
            "into it if it was too long."
        )
    return (
        f"Your tool call could not be read, so nothing was run: {unread(findings)}. Make the call again in the right "
        "form, or say in words that you are done."
    )
