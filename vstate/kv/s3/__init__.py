"""A store in a bucket of S3, Google Cloud Storage, Azure, or a server that speaks S3.

`store` is the store; `bucket` sends requests over obstore, and repeats those that may be repeated; `address`
reads the URL and the options; `failures` translates obstore's errors; `driver` loads obstore; `names` and
`values` say how keys and values are stored.
"""

from vstate.kv.s3.store import S3, _reopen

__all__ = ["S3"]

# Errors and pickles name these by the place they are imported from, as earlier versions did.
S3.__module__ = _reopen.__module__ = __name__
