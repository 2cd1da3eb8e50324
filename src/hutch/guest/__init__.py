"""What runs inside a box. Standard library only; imports nothing else of hutch."""
