"""The type of the fixture `run_python`: a function that runs a script in another process and returns its
output.
"""

from collections.abc import Callable

RunPython = Callable[..., str]
