"""From a model's raw output to tool calls: one parser per format, found by name. See docs/tool-call-parsers.md.

parser = get_parser("hermes")
content, tool_calls = parser.parse(text, tools=schemas)
"""

from pytest_hermes.tool_call_parsers.auto import parser_of_template
from pytest_hermes.tool_call_parsers.parser import Call, Findings, ParseError, ParseOutcome, ToolCallParser
from pytest_hermes.tool_call_parsers.registry import (
    Parser,
    UnknownParser,
    findings_of,
    get_parser,
    list_parsers,
    register_parser,
)

__all__ = [
    "Call",
    "Findings",
    "ParseError",
    "ParseOutcome",
    "Parser",
    "ToolCallParser",
    "UnknownParser",
    "findings_of",
    "get_parser",
    "list_parsers",
    "parser_of_template",
    "register_parser",
]
