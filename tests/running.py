"""What the fixture `run_python` gives: a function that runs a script in another process, and returns what it prints."""

from collections.abc import Callable

RunPython = Callable[..., str]
