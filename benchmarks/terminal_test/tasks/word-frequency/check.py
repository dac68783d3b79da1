import collections
import re

from prelude import HOME, part, same


@part
def top_words():
    words = re.findall("[a-z]+", (HOME / "tale.txt").read_text().lower())
    ranked = sorted(collections.Counter(words).items(), key=lambda item: (-item[1], item[0]))[:10]
    same((HOME / "top.txt").read_text().split("\n"), [f"{count} {word}" for word, count in ranked] + [""])
