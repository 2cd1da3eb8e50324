"""HTTP handlers, one module for each group of routes: parse, call the keeper, render."""
