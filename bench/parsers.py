"""Tool-call parsers: growth with the length of the text, and the cost of ordinary outputs; beside SGLang's and vLLM's
where they are installed.

    python bench/parsers.py [--sizes 65536 262144 1048576] [--format hermes ...] [--limit 10]

CPU seconds of one `parse` in this process. A row is stopped once a size takes longer than the limit. The last column is
the time of the last size over that of the size before, where linear is their ratio. Peers are timed on the same text in
the same run; they are given a tool of every name that is called.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_hermes.tool_call_parsers import findings_of, get_parser
from pytest_hermes.tool_call_parsers.conformance import failure, read_cases

DATA = Path(__file__).parent.parent / "tests" / "data" / "tool_calls"
SGLANG = {
    "hermes": "hermes_detector.HermesDetector",
    "qwen": "qwen25_detector.Qwen25Detector",
    "mistral": "mistral_detector.MistralDetector",
    "llama3_json": "llama32_detector.Llama32Detector",
    "qwen3_coder": "qwen3_coder_detector.Qwen3CoderDetector",
    "glm45": "glm4_moe_detector.Glm4MoeDetector",
    "glm47": "glm47_moe_detector.Glm47MoeDetector",
    "deepseek_v3": "deepseekv3_detector.DeepSeekV3Detector",
    "deepseek_v3_1": "deepseekv31_detector.DeepSeekV31Detector",
    "kimi_k2": "kimik2_detector.KimiK2Detector",
}
VLLM = {**{name: name for name in SGLANG}, "qwen": "hermes", "deepseek_v3_1": "deepseek_v31"}
Parse = Callable[[str], object]


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def ours(name: str, tools: Sequence[dict[str, Any]]) -> Parse:
    parser = get_parser(name)
    return lambda text: findings_of(parser, text, tools)


def sglang(name: str, tools: Sequence[dict[str, Any]]) -> Parse | None:
    """SGLang's detector, or None where it is not installed or has none of that name."""
    if name not in SGLANG:
        return None
    module, _, kind = SGLANG[name].partition(".")
    try:
        protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
        detector = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), kind)()
    except ImportError:
        return None
    offered = [protocol.Tool(**one) for one in tools]
    return lambda text: detector.detect_and_parse(text, offered)


def vllm(name: str, tools: Sequence[dict[str, Any]]) -> Parse | None:
    """vLLM's parser, or None where it is not installed, needs a tokenizer, or has none of that name."""
    try:
        manager = importlib.import_module("vllm.tool_parsers").ToolParserManager
        parser = manager.get_tool_parser(VLLM[name])(None)
    except (ImportError, KeyError, AttributeError, TypeError, ValueError, RuntimeError):
        return None
    request = argparse.Namespace(tools=tools, tool_choice="auto", skip_special_tokens=False)
    return lambda text: parser.extract_tool_calls(text, request)


PARSERS: dict[str, Callable[[str, Sequence[dict[str, Any]]], Parse | None]] = {
    "ours": ours, "sglang": sglang, "vllm": vllm
}  # fmt: skip


def cpu_s(parse: Parse, texts: Sequence[str]) -> float:
    began = time.process_time()
    try:
        for text in texts:
            parse(text)
    except Exception as error:  # noqa: BLE001 - a peer that raises is a result, too
        print(f"    raised {type(error).__name__}: {str(error)[:80]}")
    return time.process_time() - began


def recipes(chosen: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    for recipe in read_cases(DATA / "adversarial.jsonl"):
        if not chosen or recipe["format"] in chosen:
            yield recipe


def growth(options: argparse.Namespace) -> None:
    print(f"{'growth, CPU s':38s} {'':7s}" + "".join(f"{size:>10,}" for size in options.sizes) + "    ratio")
    for recipe in recipes(options.format):
        for who, make in PARSERS.items():
            parse = make(recipe["format"], [tool("w")])
            if parse is None:
                continue
            spent: list[float] = []
            for size in options.sizes:
                text = recipe["head"] + recipe["unit"] * (size // len(recipe["unit"])) + recipe["tail"]
                spent.append(cpu_s(parse, [text]))
                if spent[-1] > options.limit:
                    break
            ratio = f"{spent[-1] / spent[-2]:9.1f}" if len(spent) > 1 and spent[-2] > 0.001 else "        -"
            print(f"{recipe['id']:38s} {who:7s}" + "".join(f"{one:10.3f}" for one in spent) + ratio, flush=True)


def ordinary(options: argparse.Namespace) -> None:
    print(f"\n{'all cases of a format':38s} {'':7s} us per case   as expected")
    for path in sorted(DATA.glob("*.jsonl")):
        cases = [case for case in read_cases(path) if path.stem != "adversarial"]
        if not cases or (options.format and path.stem not in options.format):
            continue
        passed = f"{sum(failure(get_parser(path.stem), case) is None for case in cases)} of {len(cases)}"
        names = {call["name"] for case in cases for call in case["tool_calls"] or []}
        for who, make in PARSERS.items():
            parse = make(path.stem, [tool(name) for name in sorted(names)])
            if parse is None:
                continue
            texts = [case["text"] for case in cases]
            spent = min(cpu_s(parse, texts) for _ in range(5)) / len(cases) * 1e6
            print(f"{path.stem:38s} {who:7s} {spent:11.1f}   {passed if who == 'ours' else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[65_536, 262_144, 1_048_576])
    parser.add_argument("--format", nargs="+", help="only these")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds after which larger sizes are left out")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    growth(options)
    ordinary(options)


if __name__ == "__main__":
    main()
