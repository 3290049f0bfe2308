"""Distributed jobs: rendezvous of the processes, heartbeats, preemption and shutdown."""
