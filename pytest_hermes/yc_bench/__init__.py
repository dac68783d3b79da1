"""YC-Bench: a business simulation that the agent plays by a command line program (`docs/yc-bench.md`)."""
