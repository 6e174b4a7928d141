"""Compare values and trees without unpickling: diff, paths inside values, alignment."""
