"""The dashboard's part of the server: its files, who is signed in, and the numbers that it shows live."""
