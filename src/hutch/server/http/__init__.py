"""HTTP below the application: everything that depends on uvicorn's internals, and the headers that Hutch defines."""
