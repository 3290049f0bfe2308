"""The process: terminal, streams, devices of the CPU, compilation cache, versions."""
