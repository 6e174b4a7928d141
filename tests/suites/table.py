"""The suites of other projects: where each comes from, and which of its tests pass on vstate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRIVATE = "it reads a private name"
NEEDS_TABLESTORE = "it needs the client of a cloud service; it fails on AgentScope alone too"

PYTEST = ("pytest==9.2.0", "pytest-asyncio==1.5.0")
OWN = (*PYTEST, "hypothesis", "numpy", "pytest-timeout", "pytest-xdist")
"""What vstate's own tests need."""


def listed(name: str) -> dict[str, str]:
    """The tests of `failing/NAME.txt`, each with its reason: the line above it that ends with a colon."""
    reasons: dict[str, str] = {}
    reason = ""
    for line in (Path(__file__).parent / "failing" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.endswith(":"):
            reason = line[:-1]
        elif line:
            reasons[line] = reason
    return reasons


def modules(folder: str, *names: str) -> tuple[str, ...]:
    """The modules `test_NAME.py` of a folder."""
    return tuple(f"{folder}/test_{name}.py" for name in names)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The tests of another project, and their outcome: the same on each of the stores."""

    name: str
    title: str
    """For the table of `docs/integrations.md`: which tests, of which version."""
    source: str
    """`NAME==VERSION` of an sdist, with its hash in `sha256`; or `git+URL@COMMIT`."""
    sha256: str = ""
    tests: tuple[str, ...]
    """Paths in the sources."""
    imports: tuple[str, ...] = (".",)
    """The directories of the sources from which the tests import."""
    packages: tuple[str, ...]
    plugin: str
    """A module in `plugins/`, which puts vstate's classes under the names that the tests import."""
    options: tuple[str, ...] = ()
    """For pytest. It reads no settings of the project."""
    stores: tuple[str, ...] = ("memory", "disk")
    """The suite runs once on each: `memory`, `disk`, `redis`, `postgres` or `s3`."""
    passed: int | None
    """How many tests pass; None if any number may."""
    skipped: int | None = 0
    failing: dict[str, str] = field(default_factory=dict)
    """Tests that fail, each with its reason."""
    own: tuple[str, ...] = ()
    """`agno` if `tests/integrations/test_agno.py` needs a framework that the extra `dev` leaves out."""
    own_passed: int = 0
    is_quick: bool = False
    """Does `make test` run the suite too, on the first of its stores? It takes seconds then."""


LANGGRAPH = (
    "langgraph==1.2.22",
    "langgraph-checkpoint==4.3.2",
    "langgraph-checkpoint-conformance==0.0.2",
    "langgraph-checkpoint-sqlite==3.1.2",
    "numpy",
    "pytest-mock",
    "pytest-retry==1.7.0",
    *PYTEST,
)

LANGGRAPH_TESTS = (
    "httpx",
    "langgraph-checkpoint-postgres",
    "psycopg[binary,pool]",
    "pycryptodome",
    "redis",
    "syrupy",
)

OPENAI_AGENTS = (
    "openai-agents==0.24.0",
    "aiosqlite",
    "cryptography",
    "greenlet",
    "inline-snapshot",
    "pytest-mock",
    "rich",
    "sqlalchemy",
    *PYTEST,
)

# The package on the registry has no tests, so the sources are those of its tag v1.0.21.
AGENTSCOPE: dict[str, Any] = {
    "source": "git+https://github.com/agentscope-ai/agentscope@278696c38c7d1e36d031a4ba1dbe04e707218fb8",
    "tests": tuple(f"tests/{name}_test.py" for name in ("session", "memory", "plan", "tablestore_session")),
    # Newer releases of mcp and pydantic lack names that this AgentScope imports.
    "packages": (
        "agentscope==1.0.21",
        "mcp<2",
        "pydantic<2.13",
        "greenlet",
        "tqdm",
        "fakeredis",
        "aiosqlite",
        *OWN,
    ),
    "passed": 33,
    "failing": dict.fromkeys(
        [
            "test_empty_user_id_defaults_to_default",
            "test_save_and_load_with_memory_module",
            "test_save_session_state",
            "test_save_session_state_existing_session",
        ],
        NEEDS_TABLESTORE,
    ),
}

CREWAI: dict[str, Any] = {
    "source": "crewai==1.15.30",
    "sha256": "17de4b7cc3f2c207033e9f82be4f7d749e540b0e415a3885a8d97bb43a90a318",
    "packages": ("crewai==1.15.30", *OWN),
    "plugin": "crewai_stores",
}

DEEPAGENTS: dict[str, Any] = {
    "source": "git+https://github.com/langchain-ai/deepagents@23b83ad50f63d241d0069a3dc426d43b211adf2e"
    "#subdirectory=libs/deepagents",
    "packages": ("deepagents==0.7.32", "langchain-tests", "pytest-mock", "pytest-timeout", *OWN),
    "plugin": "deepagents_backends",
    "imports": (),
}

NONTAINER: dict[str, Any] = {
    "packages": ("agex==0.13.0", "nontainer==0.11.8", "numpy", "pandas", "pyarrow", *PYTEST),
    "plugin": "nontainer_provider",
    "stores": ("memory", "disk", "postgres"),
}

ALL = [
    # The package on the registry has no tests, so the sources are those of a commit before its release.
    Suite(
        name="agent framework",
        title="checkpoints of Agent Framework, with agent-framework-core 1.23.0",
        source="git+https://github.com/microsoft/agent-framework@5eb3eb745e16324ac7bffb1dbe006d8f13c8d993",
        tests=("python/packages/core/tests/workflow/test_checkpoint.py",),
        packages=("agent-framework-core==1.23.0", "opentelemetry-sdk", *PYTEST),
        plugin="agent_framework_checkpoints",
        passed=41,
        failing={
            f"test_file_checkpoint_storage_{test}": "it reads the files of another storage"
            for test in ("save_and_load", "delete", "directory_creation", "json_serialization")
        },
    ),
    Suite(
        name="agentscope",
        title="sessions, memory and plans of AgentScope 1.0.21, with vstate's StateModule and JSONSession",
        plugin="peers",
        stores=("disk",),
        **AGENTSCOPE,
    ),
    Suite(
        name="agentscope sessions",
        title="the same, with AgentScope's own modules and VstateSession",
        plugin="agentscope_session",
        own=("agentscope",),
        own_passed=4,
        **AGENTSCOPE,
    ),
    # The package on the registry has no tests of storages. The sources are those of a commit before it.
    Suite(
        name="agentscope 2",
        title="storages on SQL and Redis of AgentScope 2.0.6, with AgentScope 2.0.11",
        source="git+https://github.com/agentscope-ai/agentscope@da00849f2c3db60b16edaf2371ae1d863f341ae2",
        tests=("tests/storage_sql_test.py", "tests/storage_redis_test.py"),
        packages=(
            "agentscope==2.0.11",
            *("aiosqlite", "apscheduler", "croniter", "fakeredis", "fastapi", "greenlet"),
            *("python-multipart", "redis", "sqlalchemy", "uvicorn"),
            *OWN,
        ),
        plugin="agentscope2_storage",
        stores=("memory", "disk", "postgres"),
        passed=89,
        failing=listed("agentscope2"),
        own=("agentscope2", "agentscope2_app"),
        own_passed=18,
    ),
    # The last version with tests of its state services, v1.0.5.post1.
    Suite(
        name="agentscope-runtime",
        title="state services of agentscope-runtime 1.0.5",
        source="git+https://github.com/agentscope-ai/agentscope-runtime"
        "@593555d9f39e40de3491448609559a3fb1afa80a",
        tests=("tests/unit/test_redis_state_service.py", "tests/unit/test_state_service_factory.py"),
        packages=PYTEST,
        plugin="peers",
        stores=("redis",),
        passed=16,
        failing=dict.fromkeys(
            [
                "test_ttl_expiration",
                "test_ttl_refresh_on_write",
                "test_ttl_refresh_on_read",
                "test_ttl_disabled",
                "test_load_env_kwargs",
                "test_load_env_kwargs_empty",
            ],
            PRIVATE,
        ),
    ),
    # The last version with tests of a state of its own, v0.1.2.
    Suite(
        name="agex",
        title="states and stores of agex 0.1.2",
        source="git+https://github.com/ashenfad/agex@0e68bb57d1da8076d4194001d742d35530a7c4f4",
        tests=("tests/agex/state",),
        packages=("tiktoken", "xxhash", "diskcache", "pydantic", "pygments", "numpy", *PYTEST),
        plugin="peers",
        stores=("memory",),
        passed=50,
        failing={
            "test_cache_hit_vs_miss": "it reads the dict inside a Cache",
            "test_cache_get_with_default": "it reads the dict inside a Cache",
            "test_cache_eviction_basic": "it reads the dict inside a Cache",
            "test_disk_type_validation": "vstate's message for a value that is no bytes has other words",
            "test_versioned_snapshot": "it reads the keys of agex' own layout in the store",
            "test_snapshot_creates_diff_keys": "it reads a key of agex' own layout in the state",
        },
    ),
    # One test cancels after 0.2 seconds. On a busy machine it fails, with kvgit too: its fork is not open.
    Suite(
        name="agex on nontainer",
        title="tasks, sessions and delegates of agex 0.13.0, in a Store of nontainer on vstate",
        source="agex==0.13.0",
        sha256="224ac795b197115d41d3eda520fa566e05ed55e5f8918aa769eddf7b6408b3c2",
        tests=modules(
            "tests",
            "agent_tasks",
            "compaction",
            "conformance",
            "delegation",
            "endings",
            "record",
            "session",
            "task_resume",
            "task_rungs",
            "tasks",
            "tools",
        ),
        passed=222,
        skipped=19,
        **NONTAINER,
    ),
    Suite(
        name="agno",
        title="the SQLite db of agno 2.9.0, with agno 3.1.10: sessions, memories and their owners",
        # The package on the registry has no tests.
        source="git+https://github.com/agno-agi/agno@9644f22982ae017eaa4ad85c561d927d9ac03119"
        "#subdirectory=libs/agno",
        tests=modules("tests/integration/db/sqlite", "session", "memory", "session_isolation"),
        packages=("agno==3.1.10", "sqlalchemy", "greenlet", "aiosqlite", *OWN),
        plugin="agno_db",
        # The sources are an older agno with its tests, which the installed one passes too.
        imports=(),
        stores=("memory", "disk", "postgres"),
        passed=48,
        failing={"test_upsert_sessions_performance": "it wants many rows at once in half the time"},
        own=("agno",),
        own_passed=8,
    ),
    Suite(
        name="claude agent",
        title="session stores of claude-agent-sdk 0.2.189, with its conformance suite, on asyncio",
        source="claude-agent-sdk==0.2.189",
        sha256="1d859a142ee6cd97aef972215ed7ab5c09f623018194a6577c7dafbbfa481216",
        tests=modules(
            "tests",
            "session_helpers_store",
            "session_import",
            "session_resume",
            "session_store_anyio",
            "session_store_conformance",
            "session_summary",
            "transcript_mirror",
        ),
        packages=("anyio", "jsonschema", "mcp<3", "sniffio", *OWN),
        plugin="claude_stores",
        # The Python part of the SDK. Its wheel has a program of 170 MB too, which no test here runs.
        imports=("src",),
        # vstate is for asyncio. The four others expect an answer within some turns of the event loop.
        options=(
            "-k",
            "not trio and not concurrency_is_bounded and not bounded_concurrency and not "
            "eager_flush_mode_appends and not cancelled_after_mkdtemp",
        ),
        stores=("memory", "disk", "postgres", "redis", "s3"),
        passed=206,
        failing=dict.fromkeys(
            [
                "test_continue_picks_most_recent[asyncio]",
                "test_continue_skips_sidechain_sessions[asyncio]",
                "test_continue_tie_break_is_deterministic[asyncio]",
            ],
            PRIVATE,
        ),
        own=("claude_agent",),
        own_passed=6,
    ),
    Suite(
        name="crewai checkpoints",
        title="checkpoints of CrewAI 1.15.30",
        tests=("tests/test_checkpoint.py",),
        passed=51,
        failing=listed("crewai_checkpoints"),
        **CREWAI,
    ),
    Suite(
        name="crewai flows",
        title="persistence, pauses and resumption of flows of CrewAI 1.15.30",
        tests=modules(
            "tests",
            "flow_persistence",
            "flow_persistence_factory",
            "flow_resumability_regression",
            "async_human_feedback",
        ),
        passed=82,
        failing=listed("crewai_flows"),
        own=("crewai",),
        own_passed=21,
        **CREWAI,
    ),
    # The package on the registry has no tests. The sources are those of a commit before its release.
    Suite(
        name="deepagents",
        title="backends on LangGraph stores of deepagents 0.7.8, with deepagents 0.7.32",
        tests=modules(
            "tests/unit_tests/backends",
            "store_backend",
            "store_backend_async",
            "composite_backend",
            "composite_backend_async",
            "file_format",
            "glob_semantics",
        ),
        passed=349,
        skipped=3,
        failing={
            "test_matches_filesystem_backend[*]": "it runs a program that lists the Workspace's index too"
        },
        own=("deepagents",),
        own_passed=8,
        **DEEPAGENTS,
    ),
    Suite(
        name="deepagents files",
        title="backends on directories, of the same",
        tests=modules("tests/unit_tests/backends", "filesystem_backend", "filesystem_backend_async"),
        passed=159,
        skipped=5,
        failing=dict.fromkeys(
            [
                "test_grep_python_fallback_survives_mid_iteration_failure[False]",
                "test_grep_python_fallback_survives_mid_iteration_failure[True]",
                "test_grep_python_fallback_survives_runtime_error_mid_walk",
                "test_grep_virtual_mode_sanitizes_oserror_path",
                "test_grep_virtual_mode_sanitizes_runtime_error_details",
            ],
            "its walk ends after one entry, which is the directory of the Workspace's index",
        ),
        **DEEPAGENTS,
    ),
    # The package on the registry has no tests. The sources are those of a commit after the tag v1.4.2.
    Suite(
        name="google adk",
        title="session services of ADK 1.4.2, with ADK 2.13.0",
        source="git+https://github.com/google/adk-python@7c670f638bc17374ceb08740bdd057e55c9c2e12",
        tests=("tests/unittests/sessions/test_session_service.py",),
        packages=("google-adk==2.13.0", *OWN),
        plugin="adk_sessions",
        passed=24,
        failing={
            f"{test}[{api}-SessionServiceType.{service}]": "it expects no temporary state; ADK 2 keeps it"
            for test in ("test_session_state", "test_create_new_session_will_merge_states")
            for api in ("GOOGLE_AI", "VERTEX")
            for service in ("IN_MEMORY", "DATABASE")
        },
        own=("google_adk",),
        own_passed=8,
    ),
    # The package on the registry has no tests, so the sources are those of a commit after its version 0.4.4.
    Suite(
        name="key value",
        title="the memory store of py-key-value-aio 0.5.0, alone and under each of its wrappers",
        source="git+https://github.com/strawgate/py-key-value@279e1ee26234577c4104c7e40cc83d8e1b27c554",
        tests=("tests/stores/memory", "tests/stores/wrappers"),
        packages=(
            "py-key-value-aio[disk,memory]==0.5.0",
            "cryptography",
            "dirty-equals",
            "inline-snapshot",
            "pydantic",
            *PYTEST,
        ),
        plugin="key_value_store",
        # Their own stores without a limit skip the test that an old item has gone after a thousand others.
        options=("-k", "not test_not_unbounded"),
        stores=("memory", "disk", "redis", "postgres", "s3"),
        passed=1168,
        skipped=12,
    ),
    # The package has the tests as functions, and no file that pytest collects.
    Suite(
        name="langgraph conformance",
        title="checkpointers, of langgraph-checkpoint-conformance 0.0.2",
        source="langgraph-checkpoint-conformance==0.0.2",
        sha256="6718e00937bf2f04cdfd2cdfabea23e1dabb79a534ff4c127f305f6b40dad4e0",
        tests=(str(Path(__file__).with_name("conformance_langgraph.py")),),
        packages=LANGGRAPH,
        plugin="places",
        options=("--noconftest",),  # that of vstate's own tests
        stores=("memory", "disk", "postgres"),
        is_quick=True,
        passed=81,
    ),
    Suite(
        name="langgraph",
        title="LangGraph 1.2.22: those that take a checkpointer, plain and encrypted",
        source="langgraph==1.2.22",
        sha256="32700dc34b5cf9ebb397258c2e56392f017d4dbc51c9591339225c3c1b7b5126",
        tests=("tests",),
        packages=(*LANGGRAPH, *LANGGRAPH_TESTS),
        plugin="langgraph_saver",
        stores=("memory", "disk", "postgres"),
        passed=1034,
        skipped=1,
    ),
    Suite(
        name="langgraph savers",
        title="checkpointers, of langgraph-checkpoint-sqlite 3.1.2",
        source="langgraph-checkpoint-sqlite==3.1.2",
        sha256="4e3f376fa6f192d6ad2a1a4643b039986f1593552ef870e9e45281575de6fbf2",
        tests=modules(
            "tests",
            "sqlite",
            "aiosqlite",
            "delta_channel_migration",
            "delta_parent_walk",
            "get_delta_channel_history",
        ),
        packages=(*LANGGRAPH, *LANGGRAPH_TESTS),
        plugin="langgraph_saver",
        stores=("memory", "disk", "postgres"),
        passed=28,
        failing={
            "test_informative_async_errors": "the async methods of a VstateSaver work",
            "test_checkpoint_search_sql_injection_prevention": (
                "it expects that a field's name with quotes is refused; here any text is a name"
            ),
            "test_walk_step_looks_up_the_parent_by_primary_key": "it reads the tables of SQLite",
        },
    ),
    Suite(
        name="langgraph store",
        title="stores, of langgraph-checkpoint-sqlite 3.1.2",
        source="langgraph-checkpoint-sqlite==3.1.2",
        sha256="4e3f376fa6f192d6ad2a1a4643b039986f1593552ef870e9e45281575de6fbf2",
        tests=("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        packages=LANGGRAPH,
        plugin="langgraph_store",
        is_quick=True,
        # These tests call functions that make SQL, so they say nothing of another store.
        options=(
            "-k",
            "not nonnull_migrations and not glob_literal and not match_pattern and not indexable_condition",
        ),
        stores=("memory", "disk", "postgres"),
        passed=144,
        failing={
            "test_vector_store_initialization": "it reads the tables of SQLite",
            **dict.fromkeys(
                [f"test_sql_injection_vulnerability[{kind}]" for kind in ("memory", "file")],
                "it expects that a field's name with quotes is refused; here any text is a name",
            ),
            **dict.fromkeys(
                [f"test_no_running_loop[{kind}]" for kind in ("memory", "file")],
                "the methods without await work beside a running loop too",
            ),
        },
    ),
    # The package on the registry has no tests, and their repository is too large to fetch for a few of them.
    Suite(
        name="llama index",
        title="none of LlamaIndex; vstate's own, with llama-index-core 0.14.25",
        source="",
        tests=(),
        packages=("llama-index-core==0.14.25", "llama-index-workflows==2.26.1", *OWN),
        plugin="places",
        stores=(),
        passed=0,
        own=("llama_index",),
        own_passed=14,
    ),
    Suite(
        name="nontainer",
        title="the provider, the store and ws-git of nontainer 0.11.8",
        source="nontainer==0.11.8",
        sha256="b5aeeaf4b7da331eb9da9ad1ea8cf02e3b309dc226d37583a9dc937f4743344a",
        tests=modules(
            "tests",
            "file_tools",
            "fs_protocol",
            "kvgit_provider",
            "protocol",
            "provider_apply",
            "provider_merge",
            "put_get",
            "revert_cherry_pick",
            "staged",
            "store",
            "tags",
            "terminal",
            "workspace_surface",
            "wsgit",
        ),
        passed=488,
        skipped=4,
        failing={
            "test_a_store_tag_is_a_ref_for_the_verbs_that_read": "it expects 40 digits in the id of a commit",
            "test_clean_sweeps_what_a_deletion_left_behind": "it counts what kvgit's gc removes",
            "test_delete_purges_legacy_void_anchor": "it makes a branch in the files of kvgit",
            "test_going_back_leaves_nothing_to_sweep": "it counts what kvgit's gc removes",
            "test_show_reads_another_sessions_commit": "it expects 40 digits in the id of a commit",
            "test_store_tags_list_info_opens_the_backend_once": "it counts how often kvgit opens a directory",
            "test_teardown_leaves_the_anchor": "it counts what kvgit's gc removes",
        },
        **NONTAINER,
    ),
    Suite(
        name="openai sessions",
        title="sessions of openai-agents 0.24.0",
        source="openai-agents==0.24.0",
        sha256="4b4b285f4fed81fdf1b4ac426a9101658d9cd29b4fb1aaeee18f639b77e704e3",
        tests=(
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_context_wrapper.py",
            "tests/extensions/memory/test_advanced_sqlite_session.py",
            "tests/extensions/memory/test_async_sqlite_session.py",
            "tests/extensions/memory/test_encrypt_session.py",
        ),
        packages=OPENAI_AGENTS,
        plugin="openai_sessions",
        stores=("memory", "disk", "postgres"),
        passed=228,
        skipped=1,
        failing=listed("openai_sessions"),
    ),
    Suite(
        name="pydantic ai harness",
        title="the step store of pydantic-ai-persistence 0.1.0, with pydantic-ai-harness 0.62.0",
        source="pydantic-ai-persistence==0.1.0",
        sha256="bd7dba206d1e58bd4c1c8ebbbb87dd8068511d323e8ab632fe7166818c5f388f",
        tests=("tests/test_steps.py",),
        packages=("pydantic-ai-harness==0.62.0", *OWN),
        plugin="harness_steps",
        imports=("src",),
        stores=("memory", "disk", "postgres", "redis", "s3"),
        passed=9,
        own=("pydantic_ai_harness",),
        own_passed=15,
    ),
    Suite(
        name="strands",
        title="storages and session managers of strands-agents 1.62.0",
        source="strands-agents==1.62.0",
        sha256="8732c87f9c1ceb6ef4c5c4bd6d96b4cdf1bbfde095f1537ec2ac6fddb8d5a066",
        tests=(
            "tests/strands/agent/test_agent_storage.py",
            "tests/strands/session/test_file_session_manager.py",
            "tests/strands/session/test_repository_session_manager.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/storage/test_local_file_storage.py",
            "tests/strands/storage/test_storage.py",
        ),
        packages=("strands-agents==1.62.0", "boto3", "moto", *PYTEST),
        plugin="strands_stores",
        passed=280,
        failing=listed("strands"),
    ),
]

SUITES = {suite.name: suite for suite in ALL}
