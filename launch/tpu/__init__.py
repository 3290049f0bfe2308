"""The backend of `launch tpu`: TPU slices of Google Cloud, as queued resources."""
