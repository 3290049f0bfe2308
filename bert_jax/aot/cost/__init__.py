"""Cost of a compiled step: cycles, memory, communication."""
