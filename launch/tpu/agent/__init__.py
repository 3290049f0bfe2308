"""The program on every host of a TPU slice: it runs the job's processes and reports to the bucket.

It starts on the Python of the machine's image (3.10, nothing installed), so this package and what
it imports use the standard library only.
"""
