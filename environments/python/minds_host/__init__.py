"""The host that runs one Python environment in a process of its own. Started by minds-actors, not by hand."""
