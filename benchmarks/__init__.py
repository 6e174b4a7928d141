"""vstate, other stores and the floor on the same work: `python -m benchmarks`, or `make bench`.

- The sides take turns in every workload, so other work on the machine slows all of them alike.
- A side's figure is the median of the rounds after a warm-up. If a round times many commits, its sample is
  the median of these commits.
- All sides store the same values: 1 KB of random bytes from a seeded generator, unless the
  workload says otherwise.
- The floor is the least work that any store has to do. For a commit it is one SQLite transaction, with
  WAL and synchronous=FULL, that writes as many bytes in as many rows as vstate's commit. For hashing
  it is BLAKE3.
- kvgit runs with its defaults: `codec="pickle"`, and a Disk that does not wait for the disk.
- doltlite and prollytree run in processes of their own. docs/benchmarks.md says how they sync and verify.
"""
