"""Compare values and trees without unpickling: diff, details inside values, paths, fingerprints."""
