"""Fine-tuning on a task: its batches, evaluation, predictions and results."""
