"""Files: atomic writes, digests, buckets, the cache folder."""
