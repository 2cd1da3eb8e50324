from fastapi import FastAPI
from fastapi.responses import HTMLResponse

app = FastAPI(title="FastAPI app")


@app.get("/", response_class=HTMLResponse)
def index() -> str:
    return '<!doctype html><title>FastAPI app</title><h1>It works</h1><p>See <a href="docs">the API</a>.</p>'


@app.get("/api/hello")
def hello() -> dict[str, str]:
    return {"message": "Hello from FastAPI"}
