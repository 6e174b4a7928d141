"""What an operation costs when a store holds a thousand threads, and when it holds a million.

`python -m benchmarks.scale` fills a store for each size, and measures each operation on threads that nothing
has touched since, in a process of its own. Times are processor times: they say what the store does, whatever
the disk and the other programs do.
"""
