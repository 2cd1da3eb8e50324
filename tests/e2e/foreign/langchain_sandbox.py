"""Hutch as a sandbox of deepagents, and LangChain's integration tests for sandboxes, run against it."""

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests.sandboxes import SandboxIntegrationTests

from hutch.errors import HutchError
from hutch.sync import Hutch

CODES = {"file_not_found": "file_not_found", "file_denied": "permission_denied", "is_directory": "is_directory"}


class HutchSandbox(BaseSandbox):
    def __init__(self, box):
        self._box = box

    @property
    def id(self):
        return self._box.id

    def execute(self, command, *, timeout=None):
        result = self._box.exec(command, timeout=timeout)
        truncated = result.stdout_truncated or result.stderr_truncated
        return ExecuteResponse(result.stdout + result.stderr, result.exit_code, truncated)

    def upload_files(self, files):
        return [FileUploadResponse(path, error=self._failure(path, content)) for path, content in files]

    def download_files(self, paths):
        return [self._download(path) for path in paths]

    def _failure(self, path, content):
        try:
            if not path.startswith("/"):
                return "invalid_path"
            self._box.files.write(path, content)
        except HutchError as error:
            return CODES.get(error.code, error.message)

    def _download(self, path):
        try:
            if not path.startswith("/"):
                return FileDownloadResponse(path, error="invalid_path")
            return FileDownloadResponse(path, content=self._box.files.read(path))
        except HutchError as error:
            return FileDownloadResponse(path, error=CODES.get(error.code, error.message))


class TestHutchSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Hutch() as hutch, hutch.box() as box:
            yield HutchSandbox(box)
