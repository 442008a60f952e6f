"""docs/openapi.json is the description that the server gives of itself.

After a change of the API: `python tests/server/test_openapi.py` writes it anew.
"""

import json
import sys
import tempfile
from pathlib import Path

import callslip
from callslip.server.app import create_app
from callslip.server.keys import Keys
from callslip.server.serving import serve_all

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def described():
    """The description by a server of a small index."""
    with tempfile.TemporaryDirectory() as folder:
        callslip.fit([callslip.Document("1", "a")], "bm25", f"{folder}/index").close()
        app = create_app(serve_all([Path(folder) / "index"]), Keys({}, anonymous=frozenset({"search"})))
        try:
            return app.fastapi.openapi()
        finally:
            app.server.stop()
            for served in app.server.served.values():
                served.retriever.close()


def test_the_file_is_current():
    assert json.loads(FILE.read_text(encoding="utf-8")) == described(), f"run: python {Path(__file__).name}"


def test_it_lists_every_route_of_the_guard():
    from callslip.server.routes import RULES

    listed = {
        (method.upper(), path) for path, methods in json.loads(FILE.read_text())["paths"].items() for method in methods
    }
    wanted = {(m, p.replace(":path", "")) for m, p in RULES if p.startswith("/v1/") and p != "/v1/openapi.json"}
    assert wanted <= listed


if __name__ == "__main__":
    FILE.write_text(json.dumps(described(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.exit(0)
