"""The folder of a run: what lies in it, who may write to it, which run it is."""
