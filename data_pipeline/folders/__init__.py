"""What folders of other programs have: tables of files and keys, and the check against them."""
