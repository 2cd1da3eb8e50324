from flask import Flask, jsonify, render_template

app = Flask(__name__)


@app.get("/")
def index() -> str:
    return render_template("index.html")


@app.get("/api/hello")
def hello():
    return jsonify(message="Hello from Flask")
