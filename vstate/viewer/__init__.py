"""The viewer: a history in a browser, and the same as a JSON API.

- No value is unpickled, and nothing in a store runs: values are read by `vstate.values.inert` alone.
- The store is opened for reading only, unless somebody asks for changes.
- Work and answers are bounded for hostile stores: pages, sizes, depth and time.
- `display` decides what a value looks like; the page only draws the description.
"""

from vstate.viewer.app import app

__all__ = ["app"]
