"""Commands that move and list refs: `checkout`, `switch`, `branch`, `tag`, `rollback`, `undo`, `reflog`."""

import pytest

SESSIONS = {
    "checkout goes to a branch, or to a new one at a revision": """
        checkout what-if -> Switched to branch what-if at <id> another goal
        >>> assert Versioned(store).branch == "what-if"
        checkout what-if -> Already on what-if at <id> another goal
        checkout main ? branch -> "main"
        checkout -b new -> Switched to the new branch new at <id> more
        checkout v1 -b newer -> Switched to the new branch newer at <id> start
        branch -> main <id> more / new <id> more / * newer <id> start / what-if <id> another goal
    """,
    "checkout of a commit detaches HEAD, and says how to make a branch": """
        checkout v1 -> HEAD is detached at <id> start
            / To commit from here, create a branch: vstate checkout -b NAME
        log -n 1 -> <id> (HEAD, tag: v1) start / <time> · model=small / +messages +old +plan +text
        branch -> * (HEAD detached at <id>) / main <id> more / what-if <id> another goal
        branch --show-current -> -
        branch --show-current ? @ -> null
        status -> ... branch none: HEAD is detached ...
        watch -n 1 -> [1] vstate: HEAD is detached...; name one with --branch BRANCH
        watch -n 1 --branch main --since main~1 -> <id> more + notes/b dict, <size>
        undo -> [1] vstate: HEAD is detached at <id>...
        rollback HEAD -> [1] vstate: HEAD is detached...`vstate checkout <id> -b NAME` or ...create=True...
    """,
    "branch lists, creates, renames and deletes, and marks HEAD's branch": """
        branch --show-current -> main
        branch ? [*].[name, head, idle] -> [["main", true, null], ["what-if", false, null]]
        branch first ? keys(@) -> ["name", "commit", "head"]
        branch new v1 -> Created branch new at <id> start
        branch -m new newer -> Renamed branch new to newer, at <id> start
        branch -m trunk -> Renamed branch main to trunk, at <id> more
        branch -d newer -> Deleted branch newer, which was at <id> start
        branch -D first -> Deleted branch first, which was at <id> more
        branch -> * trunk <id> more / what-if <id> another goal
        branch -d what-if --forget -> Forgot branch what-if, which was at <id> another goal
        reflog what-if -> [1] vstate: no branch 'what-if'; there is 1 branch, which `vstate branch` lists
        reflog what-if --json -> [1] vstate: no branch 'what-if'...
    """,
    "branches are chosen by the beginning of their name, by label and by page": """
        branch chat/1
        branch chat/2
        branch chat/3
        branch --prefix chat/ -n2 -> chat/1 <id> more / chat/2 <id> more
        branch --prefix chat/ --reverse --after chat/3 ? [*].name -> ["chat/2", "chat/1"]
        checkout HEAD~1
        branch --prefix none -> -
        >>> labels = {"user": "ann", "turns": [1, 2]}
        >>> with Disk(store) as disk: Repository(disk).commit("chat/2", labels=labels)
        branch --label user=ann --label turns=2 -> chat/2 <id>
        branch --label 'turns="2"' -> -
    """,
    "tag lists, creates, renames and deletes": """
        tag -> v1 <id> start
        tag v2 -> Created tag v2 at <id> more
        tag -m v2 v3 -> Renamed tag v2 to v3, at <id> more
        tag ? [*].name -> ["v1", "v3"]
        tag -d v3 -> Deleted tag v3, which was at <id> more
        tag -d v1 ? name -> "v1"
        tag -> -
    """,
    "rollback makes a commit of an older state, further back each time, and undo takes it back": """
        rollback v1 -m back -> main is at <id> back / The keys are as they were at <id>: +1 ~3 -2
        ls -> messages / old / plan / text
        rollback HEAD~1 ? [changes.added, refs] -> [["notes/a", "notes/b"], ["heads/main"]]
        reset main@{2}
        rollback -> main is at <id> Rollback to <id> tidy up / The keys are as they were at <id>: -1
        rollback -> main is at <id> Rollback to <id> read / The keys are as they were at <id>: +1 ~2
        undo
        undo
        rollback --steps 2 -> main is at <id> Rollback to <id> read
            / The keys are as they were at <id>: +1 ~2 -1
    """,
    "switch goes to a branch, and `-` is where HEAD was before, by today's name": """
        switch what-if -> Switched to branch what-if at <id> another goal
        switch what-if -> Already on what-if at <id> another goal
        switch - ? branch -> "main"
        checkout - ? branch -> "what-if"
        branch -m main trunk
        checkout - ? branch -> "trunk"
        checkout v1
        switch - ? branch -> "trunk"
        checkout - ? [branch, length(commit)] -> [null, 64]
        switch -c new v1 -> Switched to the new branch new at <id> start
    """,
    "reset moves the branch, undo and redo take it back and forth, by one move or several": """
        reset v1 -> main is at <id> start / It was at <id>. To take that back: vstate undo
        show messages -> ['hello']
        undo -> main is at <id> more / undo: reset: to <id> / To take that back: vstate redo
        redo -> main is at <id> start / redo: reset: to <id>
        reset --hard main@{1} ? keys(@) -> ["branch", "old", "commit"]
        undo -n 2 ? [branch, action] -> ["main", "undo 2 moves: reset: to <id>"]
        undo --redo -> main is at <id> more / redo: reset: to <id>
        undo --redo -> [1] vstate: nothing to redo on branch 'main'...
        checkout what-if
        undo
        undo -> [1] vstate: branch 'what-if' began with 'branch: created from ...vstate branch -d what-if
    """,
    "checkout REV -- KEY commits the values of REV for these keys alone, and HEAD stays": """
        checkout v1 -- plan messages -> main is at <id> Take plan, messages from <id> ~2
        show messages -> ['hello']
        show plan -> stores.Plan(goal='win', steps=['look'])
        show notes/b -> {'lines': 5}
        checkout v1 -- plan -> Nothing to take: main has these values already.
        checkout v1 --key old ? changes -> {"added": ["old"], "modified": [], "removed": []}
    """,
    "reflog shows each move, newest first, with a revision for it, also of a branch that is gone": """
        reflog -> main@{0} <id> <time> commit: more / main@{1} <id> <time> commit: tidy up
            / main@{2} <id> <time> commit: read / main@{3} <id> <time> commit: start
        reflog -n 1 -> main@{0} <id> <time> commit: more
        reflog ? [3].[name, old, action] -> ["main@{3}", null, "commit: start"]
        reflog ? [[0].old == [1].new, keys([0])] -> [true, ["name", "old", "new", "time", "action"]]
        branch -d what-if
        reflog what-if -> what-if@{0} (deleted) <time> branch: deleted
            / what-if@{1} <id> <time> commit: another goal
            / what-if@{2} <id> <time> branch: created from HEAD~1
        branch what-if what-if@{1} -> Created branch what-if at <id> another goal
        checkout v1
        reflog -> HEAD@{0} <id> <time> checkout: to <id>...
        >>> with Disk(store) as disk: disk.delete_many(list(disk.keys("reflog/")))
        reflog main -> vstate: no move of main is on record
    """,
    "every command takes revisions of the reflog, also with spaces and colons in the braces": """
        log main@{1} -n 1 --oneline -> <id> tidy up ~2 -1
        show main@{3} messages -> ['hello']
        show main@{3}:messages -> ['hello']
        show '@{2099-01-01 10:00:00}:messages' -> ['hello', 'bye']
        diff @{1}..@{0} --stat -> + notes/b dict, <size> / +1 added
        >>> commit(store, **{"HEAD~99": "tilde", "a@{b": "brace", "a@{b}:c": "both"})
        show HEAD~99 -> 'tilde'
        show a@{b -> 'brace'
        show a@{b}:c -> 'both'
        show HEAD:a@{b}:c -> 'both'
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, session):
    """Each session has the output that is written here."""
    rows(SESSIONS[session])
