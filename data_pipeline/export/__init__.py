"""Examples as files that other trainers read, one file a format."""
