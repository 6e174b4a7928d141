"""One run of a command: its options, its store and its output."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from vstate.errors import DetachedHead, InvalidInput, NotFound, VStateError
from vstate.objects.commit import Commit
from vstate.readers.shown import Shown
from vstate.repo.names.refs import HEAD, HEADS, REMOTES, TAGS
from vstate.repo.names.revisions import NAMES_LISTED, REV_AND_KEY
from vstate.repo.repository import Repository
from vstate.similar import similar
from vstate.values.entry import Entry
from vstate_cli import commits
from vstate_cli.output import Line, Output, safe
from vstate_cli.store import open_repository
from vstate_cli.suggestions import KEY, KEYS_FOLLOW

_MOST_COMPARED = 1000  # keys among which a similar name is searched

STORE_HELP = "The store, as a path or URL. Default: the store here or in a parent, as .vstate."


class Session:
    """The store and the output of one run of a command."""

    def __init__(self, store: str | None, *, json: bool, paged: bool = False, is_shown: bool = False) -> None:
        self.store = store
        """The path or URL that the line names, before the store is opened."""
        self.creates = False
        """Whether to make the store when it is opened, if there is none."""
        self._is_shown = is_shown
        self.json = json
        self.out = Output(paged=paged)

    @functools.cached_property
    def repo(self) -> Repository:
        """The repository of the store, opened at the first use; readers show it to a command that reads."""
        repo = open_repository(self.store, create=self.creates)
        if self.creates and self.store is None:
            self.out.note(f"the store is {repo.store.location}")
        return Shown(repo) if self._is_shown else repo

    @functools.cached_property
    def shown(self) -> Shown:
        """The repository as its readers show it, for a command that also writes."""
        return self.repo if isinstance(self.repo, Shown) else Shown(self.repo)

    def answer(self, document: Any, lines: Iterable[Line]) -> None:
        """Print the result of the command: the lines, or with --json the document, an iterator by item."""
        if not self.json:
            self.out.lines(lines)
        elif isinstance(document, Iterator):
            self.out.json_array(document)
        else:
            self.out.json(document)

    def tell(self, report: Any) -> None:
        """Print a report: a dataclass with `lines`."""
        self.answer(dataclasses.asdict(report), ([safe(line)] for line in report.lines()))

    def summary(self, commit: Commit) -> Line:
        """The abbreviated id of a commit, and its subject as its reader gives it."""
        return commits.summary(self.shown.resolve(commit.oid))

    def is_at(self, branch: str, commit: Commit) -> Line:
        """The commit that a branch has moved to."""
        return [(safe(branch), "bold green"), " is at ", *self.summary(commit)]

    def close(self) -> None:
        """Close the store if it is open, and then wait for the pager."""
        try:
            if "repo" in self.__dict__:
                if isinstance(self.repo, Shown):
                    for name, reason in self.repo.unread.items():
                        self.out.note(f"the reader {safe(name)!r} could not read a commit: {safe(reason)}")
                self.repo.store.close()
        finally:
            self.out.close()

    def resolve_or_head(self, rev: str) -> tuple[Commit, VStateError | None]:
        """The commit that `rev` names; else HEAD's commit, and the error that says why `rev` names none."""
        repo = self.repo  # if there is no store, this raises
        try:
            return repo.resolve(rev), None
        except (NotFound, InvalidInput) as error:
            reason = error
        try:
            return repo.resolve(HEAD), reason
        except NotFound as unborn:
            raise NotFound(f"{reason}; {unborn}", name=rev) if _is_unknown(rev, reason) else reason from None

    def place(
        self, words: Sequence[str], rev: str = HEAD, *, is_key: bool = False
    ) -> tuple[Commit, str | None, str | None]:
        """The commit, the key and the path that the words `[REV] [KEY] [PATH]` name; `rev` is without REV.

        REV:KEY means the same as REV KEY. A first word that is no revision is a key. If one `is_key`, the
        first word is a revision only if it is no key.
        """
        if not words:
            return self.repo.resolve(rev), None, None
        first, rest = words[0], [*words[1:]]
        match = REV_AND_KEY.fullmatch(first)
        if self.resolves(first) and not (is_key and self.has(rev, first)):
            commit = self.repo.resolve(first)
        elif self.has(rev, first) or (is_key and match is None):
            commit, rest = self.repo.resolve(rev), [*words]
        elif match is not None:
            commit, rest = self.repo.resolve(match[1] or HEAD), [match[2], *rest]
        else:
            commit, error = self.resolve_or_head(first)
            assert error is not None
            raise self.unknown(first, commit, error)
        if len(rest) > 2:
            raise InvalidInput(f"expected [REV] [KEY] [PATH], and found {shlex.join(words)}")
        key, path, *_ = [*rest, None, None]
        return commit, key, path

    def in_order(self, command: str, words: Sequence[str]) -> str | None:
        """The command with its words in order, if a revision stands behind a key; else None."""
        for number, word in enumerate(words[1:], 1):
            if self.resolves(word) and not self.resolves(words[0]) and self.has(word, words[0]):
                return f"vstate {command} {shlex.join([word, *words[:number], *words[number + 1 :]])}"
        return None

    def resolves(self, word: str) -> bool:
        """Whether the word is a revision."""
        try:
            self.repo.resolve(word)
        except (NotFound, InvalidInput):
            return False
        return True

    def has(self, rev: str, key: str) -> bool:
        """Whether there is the key, or a key below it, at the revision."""
        try:
            commit = self.repo.resolve(rev)
        except NotFound:
            return False
        return self.repo.entry(commit.root, key) is not None or bool(self.keys_below(commit, key, 1))

    def unknown(self, word: str, commit: Commit, error: VStateError) -> VStateError:
        """The error for a word that could be a revision, or a key of the commit, and is neither.

        `error` says why the word is no revision.
        """
        if not isinstance(error, NotFound) or not _is_unknown(word, error):
            return error
        keys = [f"{name} (key)" for name in self.similar_keys(commit, word)]
        refs = [f"{name} (revision)" for name in error.candidates]
        message = f"{word!r} is neither a revision nor a key of HEAD"
        if not (keys or refs):
            message += "; `vstate branch`, `vstate tag` and `vstate ls` list the names"
        return NotFound(message, name=word, candidates=[*keys, *refs])

    def is_read(self, commit: Commit) -> bool:
        """Whether the keys of the commit are those that a reader gives."""
        return isinstance(self.repo, Shown) and self.repo.is_read(commit)

    def branch(self) -> str:
        """HEAD's branch; DetachedHead if HEAD is on none."""
        head = self.repo.refs.head()
        if head.branch is None:
            raise DetachedHead(str(head.commit) if head.commit else None)
        return head.branch

    def refs(self) -> dict[str, list[str]]:
        """The refs on each commit, by its id: `heads/main`, `tags/v1`, `remotes/origin/main`."""
        found: dict[str, list[str]] = {}
        for prefix in (HEADS, TAGS, REMOTES):
            for name, oid in self.repo.refs.list(prefix).items():
                found.setdefault(str(oid), []).append(prefix + name)
        return found

    def keys_below(self, commit: Commit, name: str, most: int) -> list[tuple[str, Entry]]:
        """The first keys below a name with their entries: those that begin with the name and a slash."""
        return [*islice(self.repo.entries(commit.root, f"{name.rstrip('/')}/"), most)] if name else []

    def similar_keys(self, commit: Commit, name: str) -> list[str]:
        """A few keys of the commit that begin with `name` or look like it."""
        entries = chain(self.repo.entries(commit.root, name), self.repo.entries(commit.root))
        return similar(name, [key for key, _ in islice(entries, _MOST_COMPARED)])


_COUNT = re.compile(r"-[0-9]+")


class Command(click.Command):
    """As in git, `-2` means `-n 2`, and words behind `--` are keys if the command takes several of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name: param for param in self.params for name in param.opts}
        end = args.index("--") if "--" in args else len(args)
        words = args[:end]
        if "-n" in options:
            taken = {name for name, param in options.items() if not getattr(param, "is_flag", True)}
            words = [
                f"-n{word[1:]}" if _COUNT.fullmatch(word) and before not in taken else word
                for before, word in zip(["", *words], words, strict=False)
            ]
        if "--key" in options and options["--key"].multiple:
            if "--" in args:
                ctx.meta[KEYS_FOLLOW] = True
            words += [f"--key={key}" for key in args[end + 1 :]]
            end = len(args)
        return super().parse_args(ctx, [*words, *args[end:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if KEYS_FOLLOW in ctx.meta:
            return KEY.shell_complete(ctx, self.params[0], incomplete)
        return super().shell_complete(ctx, incomplete)


def command(
    name: str,
    *,
    examples: Sequence[str],
    json: str,
    paged: bool = False,
    reads: bool = False,
    moves: bool = False,
    dated: bool = False,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command from a function of a Session. `json` describes the document that `--json` prints.

    A terminal shows the output of a `paged` command through the pager. The repository of one that `reads`
    shows each branch as its reader does, unless `--raw` is given. One that `moves` HEAD or its branch takes
    the files of workspaces here along. A `dated` one shows times.
    """
    shown = "\n".join(f"  $ {line}" for line in examples)
    epilog = f"\b\nExamples:\n{shown}\n\nWith --json: {json}"

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, store: str | None, raw: bool = False, **params: Any) -> None:
            context = click.get_current_context()
            shared = context.find_root().params  # the options before the name of the command
            session = Session(
                store or shared["store"],
                json=as_json,
                paged=paged and not (shared["no_pager"] or as_json),
                is_shown=reads and not raw,
            )
            date = params.pop("date", None)
            if date is not None:
                session.out.short_times = date == "short"
            try:
                with _moving_files(session, name) if moves else nullcontext():
                    function(session, **params)
                if session.out.damage is not None:
                    raise session.out.damage
            except (NotFound, InvalidInput) as error:
                words = _words(context)
                if reads and (ordered := session.in_order(name, words)):
                    problem = error.message.partition("; did you mean")[0]
                    raise type(error)(problem, candidates=[ordered]) from None
                is_bare = not (words or as_json) and isinstance(error, NotFound) and error.name == HEAD
                lines = [*commits.overview(session.repo, session.out, name)] if is_bare else []
                if not lines:
                    raise
                session.out.aside(lines)
            finally:
                session.close()

        made = click.command(name, cls=Command, epilog=epilog)(run)
        if reads:
            help = "Show the stored keys and messages, without a reader."
            made.params.append(click.Option(["--raw"], is_flag=True, help=help))
        if dated:
            help = "Times as 05:42:10, or in full, with the date and zone. Default: short on a terminal."
            made.params.append(click.Option(["--date"], type=click.Choice(["short", "iso"]), help=help))
        made.params += [
            click.Option(["as_json", "--json"], is_flag=True, help="Print JSON, for programs."),
            click.Option(["-s", "--store"], metavar="PATH|URL", help=STORE_HELP),
        ]
        return made

    return decorate


def _is_unknown(word: str, error: VStateError) -> bool:
    """Whether the error says no more than that the word is no revision.

    Another message explains why a well-formed revision names no commit.
    """
    reason = error.message.removesuffix(NAMES_LISTED).partition("; did you mean")[0]
    return reason == f"no revision {word!r}"


def _moving_files(session: Session, name: str) -> AbstractContextManager[None]:
    from vstate_cli.workspaces import moving_files  # late: most commands only look

    return moving_files(session.repo, session.out, name)


def _words(context: click.Context) -> list[str]:
    """The arguments of the line, one by one."""
    words: list[str] = []
    for param in context.command.params:
        if isinstance(param, click.Argument):
            value = context.params[param.name or ""]
            words += [value] if isinstance(value, str) else value or ()
    return words
