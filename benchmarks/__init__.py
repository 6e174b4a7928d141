"""vstate, kvgit and the floor on the same work: `python -m benchmarks`, or `make bench`.

- Every workload runs on one side after the other, in turn, so that what else the machine does hits all alike.
- A side's figure is the median of the rounds after a warm-up; where a round times many commits, its sample is
  their median.
- All sides are given the same values: 1 KB of random bytes from a seeded generator, unless the workload says so.
- The floor is what no store could do without: one SQLite transaction, WAL and synchronous=FULL, that writes as many
  bytes in as many rows as vstate's commit did; for hashing, BLAKE3 over the same bytes.
- kvgit runs with its defaults (`codec="pickle"`), its Disk included, which does not wait for the disk.
"""
