"""Devices: the mesh, how arrays are partitioned over it, collectives."""
