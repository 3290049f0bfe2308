"""The name of a bundle, for the launcher and for a host, which has the standard library alone."""


def bundle_name(digest: str) -> str:
    """Returns the name of a bundle, in the bucket with ".tar" and unpacked without."""
    return f"bundle-{digest[:16]}"
