"""Skills of owners, and how boxes come to show them."""
