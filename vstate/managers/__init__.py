"""Managers of agents' state: agents, workflows, teams, knowledge, tools, speech. All methods are coroutines.

- Each keeps pydantic records in a versioned state, so all of it can be logged, diffed, rolled back and branched.
- Every method that changes something is one commit, exact beside other processes that do the same.
"""
