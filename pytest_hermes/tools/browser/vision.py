"""The model that looks at a screenshot for `browser_vision`: one question, one picture, one answer in words."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

from pytest_hermes.models.conversation import Transcript
from pytest_hermes.models.protocol import ChatModel

TIMEOUT_S = 120.0


def describer(model: ChatModel) -> Callable[[bytes, str], Awaitable[str]]:
    """`ToolSettings.describe_image` by a vision model, which gets a PNG as an `image_url` part.

    Raises what the model's client raises (`ModelError`, `ContextOverflow`).
    """

    async def describe(image: bytes, question: str) -> str:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        parts = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
        answer = await model.complete(Transcript([{"role": "user", "content": parts}]), timeout_s=TIMEOUT_S)
        return _text(answer.message.get("content")) or "The vision model gave no answer."

    return describe


def _text(content: Any) -> str:
    """The words of an answer, whose content is a string or, from some endpoints, a list of parts."""
    if not isinstance(content, list):
        return str(content or "")
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))
