"""JavaScript through Node: every form in which a value is shown, and every way in which code fails."""

from hutch import Hutch
from hutch.model.results import Cause

DISPLAYS = {
    "text/plain": ("'said'", "said"),
    "application/json": ("({ a: [1, 2] })", '{"a":[1,2]}'),
    "text/html": ("({ toHtml: () => '<b>bold</b>' })", "<b>bold</b>"),
    "image/svg+xml": ("({ toSvg: () => '<svg/>' })", "<svg/>"),
    "text/markdown": ("({ toMarkdown: () => '# head' })", "# head"),
    "image/png": ("Buffer.from('89504e47', 'hex')", "iVBORw=="),
    "image/jpeg": ("Buffer.from('ffd8ffe0', 'hex')", "/9j/4A=="),
    "application/pdf": ("Buffer.from('%PDF-1.4')", "JVBERi0xLjQ="),
    "text/latex": ("display('$x$', 'text/latex')", "$x$"),
}
ERRORS = {
    "null.missing": ("TypeError", "Cannot read properties of null (reading 'missing')"),
    "throw new RangeError('far')": ("RangeError", "far"),
    "throw 'a text'": ("Error", "'a text'"),
    "await Promise.reject(new Error('late'))": ("Error", "late"),
    "require('no-such-module')": ("Error", "Cannot find module 'no-such-module'"),
}


async def test_every_kind_of_display_and_error_arrives() -> None:
    """Text, JSON, HTML, SVG, Markdown, PNG, JPEG, PDF and what code names itself; errors with name and trace (S5)."""
    async with Hutch() as hutch, hutch.box(memory_mb=512) as box:
        for mime, (code, wanted) in DISPLAYS.items():
            shown = await box.code("javascript", code)
            assert shown.ok and [display.data.get(mime) for display in shown.displays] == [wanted], (mime, shown)
        several = await box.code("javascript", "display({ a: 1 }); display('second'); 3")
        assert [(each.text, each.main) for each in several.displays] == [
            ("{ a: 1 }", False), ("second", False), ("3", True)
        ]  # fmt: skip
        for code, (name, value) in ERRORS.items():
            failed = await box.code("javascript", code)
            assert failed.error is not None and failed.verdict.cause is Cause.EXIT, failed
            assert failed.error.name == name and failed.error.value.splitlines()[0] == value, failed.error
            assert "hutch" not in failed.error.traceback and "node:" not in failed.error.traceback, failed.error
        wrong = await box.code("javascript", "const = 3")
        assert wrong.error is not None and wrong.error.name == "SyntaxError"
        flood = await box.code("javascript", "for (let n = 0; n < 10000; n++) display(n)")
        assert len(flood.displays) == 256 and flood.displays_dropped == 10_000 - 256
        nul = await box.code("javascript", "'a\0b'.length")
        assert nul.text == "3"
