"""A store in a bucket of S3, Google Cloud Storage, Azure, or a server that speaks S3.

`store` is the store; `bucket` sends requests over obstore, repeats those that may be repeated, and translates
its errors; `address` reads the URL and the options; `driver` loads obstore; `forms` says how keys and values
are stored.
"""

from vstate.kv.s3.store import S3

__all__ = ["S3"]

# Errors and pickles name the class by the place it is imported from.
S3.__module__ = __name__
