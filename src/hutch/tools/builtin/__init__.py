"""The tools that Hutch itself offers to a model, one file for each group, and how they render what boxes answer."""
