"""The HTTP server over a keeper: parse a request, call the keeper, render the answer; no decisions about boxes."""
