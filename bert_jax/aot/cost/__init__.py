"""What a compiled step costs: cycles, memory, communication."""
