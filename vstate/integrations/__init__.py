"""Adapters: vstate under the frameworks that agents are written with, one module or package for each.

Invariants:

- An adapter imports its framework and vstate, and nothing else. `import vstate` loads no adapter.
- Each has an extra of its name: `pip install 'vstate[langgraph]'`.
- The dimension that the framework shares, such as a thread or a session, is a branch.
- Stored data loads without the program's classes, or by the framework's own rules.
"""
