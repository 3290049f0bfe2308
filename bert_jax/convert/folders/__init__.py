"""The files and keys that folders of other libraries have: plain data, which the readers obey."""
