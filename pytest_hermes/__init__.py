"""pytest-hermes."""
