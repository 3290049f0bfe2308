"""File storage: atomic writes, digests, buckets, the cache folder."""
