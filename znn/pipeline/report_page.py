"""The page of an evaluation, whole in one file: style and pictures are inside it."""
import base64
import html
import json
import string

PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Boundary scores</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #ddd; }
td:nth-child(-n+4) { font-variant-numeric: tabular-nums; white-space: nowrap; }
td:nth-child(5) { color: #555; font-size: .85em; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; }
figcaption, pre { color: #555; font-size: .85em; }
</style>
</head>
<body>
<h1>Boundary scores</h1>
<table>
<thead><tr><th>score</th><th>value</th><th>threshold</th><th>defined</th><th>convention</th></tr></thead>
<tbody>
$rows
</tbody>
</table>
$figures
<h2>What was compared</h2>
<pre>$about</pre>
</body>
</html>
""")


def format_html(rows, about, pictures):
    """One page without references to anything outside it.

    Parameters
    ----------
    rows : list of tuple of str
        The table of scores, see `report.table_rows`.
    about : dict
        What was compared; shown as JSON.
    pictures : dict of str to bytes
        PNG by caption.
    """
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    figures = (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for caption, png in pictures.items()
    )
    return PAGE.substitute(
        rows="\n".join(f"<tr>{row}</tr>" for row in cells),
        figures="\n".join(figures),
        about=html.escape(json.dumps(about, indent=2)),
    )
