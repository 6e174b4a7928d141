"""Directories of every shape, byte for byte: by commit and checkout, and by push from store to store."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from folders import found_in, put
from servers import url_of
from soak import sized

from vstate import Disk, File, Versioned, Workspace, open_store

MANY = sized(1_000, 10_000)


def empty(place: Path) -> None:
    (place / "nothing" / "here").mkdir(parents=True)


def many(place: Path) -> None:
    rng = random.Random(5)
    put(place, {f"d{n % 50}/f{n}.txt": rng.randbytes(rng.choice((0, 1, 100, 4096))) for n in range(MANY)})


def of_every_kind(place: Path) -> None:
    put(place, {os.fsdecode(bytes([byte, 0x21])): bytes([byte]) for byte in range(1, 256) if byte != 0x2F})
    put(place, {"run": File(b"#!/bin/sh\n", "executable"), "out": File(b"/nowhere", "link")})
    put(place, {"into": File(b"d", "link"), "d/x": b"", "d/" * 50 + "deep": b"deep"})


def with_repositories(place: Path) -> None:
    put(place, {".git/HEAD": b"ref", "sub/.git": b"gitdir: ../.git/modules/sub", "sub/x": b"x", "a": b"a"})


def large(place: Path) -> None:
    piece = random.Random(5).randbytes(sized(2_000_000, 210_000_000))
    put(place, {"large": b"".join(bytes([number]) + piece for number in range(10))})


def kept_in(place: Path) -> dict[str, File]:
    """The files, without those that belong to repositories."""
    return {path: file for path, file in found_in(place).items() if not path.startswith((".git/", "sub/"))}


SHAPES = {each.__name__: each for each in (empty, many, of_every_kind, with_repositories, large)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_survives_a_round_trip(shape: str, tmp_path: Path) -> None:
    """What was committed is written elsewhere byte for byte, and comes back after everything was deleted."""
    SHAPES[shape](tmp_path / "one")
    kept = kept_in(tmp_path / "one")
    with Versioned(tmp_path / "store") as state:
        Workspace(state, tmp_path / "one")
        state["shape"] = shape
        state.commit("all")
        with state.fork("other") as other:
            files = Workspace(other, tmp_path / "two")
            assert found_in(tmp_path / "two") == kept
            put(tmp_path / "two", dict.fromkeys(kept))
            assert files.status().deleted == sorted(kept)
            del other["shape"]
            other.commit("nothing left")
            other.undo()
            assert found_in(tmp_path / "two") == kept
            assert not files.status()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_survives_pushes(shape: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """From a directory on Disk to PostgreSQL, from there to S3, and into a directory again."""
    SHAPES[shape](tmp_path / "one")
    urls = [url_of("postgres", request), url_of("s3", request)]
    with Versioned(Disk(tmp_path / "store")) as state:
        Workspace(state, tmp_path / "one")
        state["shape"] = shape
        state.commit("all")
        with open_store(urls[0]) as postgres, open_store(urls[1]) as s3:
            state.push(postgres)
            Versioned(postgres).push(s3)
            Workspace(Versioned(s3), tmp_path / "two")
            assert found_in(tmp_path / "two") == kept_in(tmp_path / "one")
            put(tmp_path / "two", {"new": b"new"})
            there = Versioned(s3)
            Workspace(there, tmp_path / "two")
            there.commit("more")
            state.pull(s3)
    assert found_in(tmp_path / "two") == kept_in(tmp_path / "one")


def test_one_byte_of_a_large_file_costs_a_chunk(tmp_path: Path) -> None:
    """The second version of a file adds less than a hundredth of it to the store."""
    size = sized(20_000_000, 100_000_000)
    data = bytearray(random.Random(5).randbytes(size))
    with Versioned(tmp_path / "store") as state:
        Workspace(state, tmp_path / "one")
        put(tmp_path / "one", {"large": bytes(data)})
        state.commit("one")
        before = _bytes_of(state)
        data[size // 2] ^= 1
        put(tmp_path / "one", {"large": bytes(data)})
        state.commit("two")
        assert _bytes_of(state) - before < size / 100


def _bytes_of(state: Versioned) -> int:
    return sum(len(value) for _, value in state.store.items("o/"))
