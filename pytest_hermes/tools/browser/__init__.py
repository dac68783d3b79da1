"""A real headless Chromium for agents: one process per event loop, one isolated context per rollout (extra `browser`).

`tools` has the twelve tools; Playwright is imported when the first of them is used.
"""
