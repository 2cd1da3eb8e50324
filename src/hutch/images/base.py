"""The images of E2B's own templates, by the names under which `hutch image base` keeps them."""

BASE = "e2b-base"
INTERPRETER = "e2b-code-interpreter"
