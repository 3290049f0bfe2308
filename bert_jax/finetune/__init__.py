"""Fine-tuning on a task: its files, examples, metrics and predictions."""
