"""Status, reports and views of a dataset."""
