"""Files such as people have, made for tests: a PDF by hand, a DOCX by python-docx, a notebook, an image, an archive."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path


def pdf(pages: list[str]) -> bytes:
    """A PDF with a line of text per page, written by hand: objects, a cross-reference table, a trailer."""
    kids = " ".join(f"{3 + 2 * n} 0 R" for n in range(len(pages)))
    font = 3 + 2 * len(pages)
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * number} 0 R "
            f"/Resources << /Font << /F1 {font} 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = (
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(out)}\n"
    )
    return out + f"{end}%%EOF\n".encode()


def encrypted_pdf(pages: list[str]) -> bytes:
    """The same, with a password."""
    import pypdf

    writer, out = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(pages))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def docx() -> bytes:
    """Headings, paragraphs and a table, by python-docx."""
    import docx as library

    document, out = library.Document(), io.BytesIO()
    document.core_properties.title = ""
    document.add_paragraph("Before all headings.")
    document.add_heading("Returns", 1)
    document.add_paragraph("Parcels go back to Leipzig.")
    document.add_heading("Fees", 2)
    table = document.add_table(rows=0, cols=2)
    for name, price in (("letter", "2 euros"), ("parcel", "5 euros")):
        cells = table.add_row().cells
        cells[0].text, cells[1].text = name, price
    document.save(out)
    return out.getvalue()


def notebook() -> str:
    cells = [
        {"cell_type": "markdown", "source": ["# Churn\n", "We measure churn."]},
        {"cell_type": "code", "source": "# not a heading\nprint(rate)", "outputs": [{"text": "0.1"}]},
        {"cell_type": "markdown", "source": "## Result\nA tenth leaves."},
    ]
    return json.dumps({"cells": cells, "nbformat": 4})


def archive(size: int = 10) -> bytes:
    """A zip file with one part of so many bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("word/document.xml", b"0" * size)
    return out.getvalue()


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


def own_folder(root: Path) -> Path:
    """A folder of files of many kinds, of which some are skipped."""
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "refunds.md").write_text("# Refunds\nRefunds take five days.\n\n## Abroad\nAbroad it takes ten.\n")
    (root / "docs" / "page.html").write_text("<title>Opening hours</title><p>We open at nine on weekdays.")
    (root / "alt.txt").write_bytes("Die Rücksendung größerer Möbel kostet zwanzig Euro.".encode("latin-1"))
    (root / "churn.ipynb").write_text(notebook())
    (root / "manual.pdf").write_bytes(pdf(["The boiler is on the first page.", "Descale the kettle every month."]))
    (root / "logo.png").write_bytes(PNG)
    (root / "old.zip").write_bytes(archive())
    return root
