"""Rules for commits: merge policies, leases, signing and trust."""
