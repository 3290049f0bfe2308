"""The backend of `launch gke`: TPU slices of a GKE cluster."""
