"""Tables for people, and the plot of the front page."""

from xml.sax.saxutils import escape

UNITS = {"wall": "s", "cpu": "CPU s", "server_cpu": "server CPU s", "iops": "IOPS", "rate": "MiB/s"}


def text(result):
    rows = result["rows"]
    keys = [key for key in UNITS if any(key in row for row in rows)]
    width = max([len(row["name"]) for row in rows] + [10])
    lines = [f"\n{result['name']}: {result['about']}",
             "  " + " " * width + "".join(f"{UNITS[key]:>14} {'spread':>7}" for key in keys)]
    for row in rows:
        cells = "".join(f"{row[key]:14.3f} {row[key + '_spread']:6.0%} " if key in row
                        else " " * 22 for key in keys)
        lines.append(f"  {row['name']:{width}}{cells}")
    if result["missing"]:
        lines.append(f"  not installed: {', '.join(result['missing'])}")
    for goal in result["goals"]:
        lines.append(f"  {'MET    ' if goal['met'] else 'NOT MET'} {goal['text']}: "
                     f"{goal['value']:.3g} ({goal['kind']} {goal['goal']:g})")
    return "\n".join(lines)


def summary(results):
    goals = [goal for result in results for goal in result["goals"]]
    met = sum(goal["met"] for goal in goals)
    lines = ["", f"{met} of {len(goals)} goals met", "",
             f"{'goal':74} {'measured':>9} {'wanted':>12}"]
    for goal in goals:
        wanted = f"{'>=' if goal['kind'] == 'at least' else '<='} {goal['goal']:g}"
        lines.append(f"{goal['text']:74.74} {goal['value']:9.3g} {wanted:>12}  "
                     f"{'met' if goal['met'] else 'not met'}")
    return "\n".join(lines)


STYLE = ("text{font:13px system-ui,sans-serif;fill:#1c2430}.d{fill:#5c6675}.o{fill:#1f6feb}"
         ".p{fill:#aab4c3}@media(prefers-color-scheme:dark){text{fill:#e4e9f1}.d{fill:#98a3b3}"
         ".o{fill:#5b9cff}.p{fill:#4c586a}}")


def svg(results, about):
    """Bars of GiB/s: penstock and its peers in each case that moves the disk."""
    wanted = [r for r in results if r["name"] in ("qemu-img-read", "copy-null", "write-tmpfs",
                                                  "sum-file", "sum-nbd")]
    bars, y = [], 40
    best = max((1 / row["wall"] for r in wanted for row in r["rows"]), default=1)
    for r in wanted:
        bars.append(f'<text x="10" y="{y}" font-weight="600">{escape(r["about"])}</text>')
        y += 8
        for row in r["rows"]:
            width = 430 / row["wall"] / best
            ours = "o" if row["name"].startswith("penstock") else "p"
            bars.append(f'<text class="d" x="250" y="{y + 13}" text-anchor="end">'
                        f'{escape(row["name"])}</text><rect class="{ours}" x="258" y="{y + 2}" '
                        f'width="{width:.1f}" height="14" rx="2"/>'
                        f'<text class="d" x="{264 + width:.1f}" y="{y + 13}">'
                        f'{row["wall"]:.2f} s</text>')
            y += 19
        y += 22
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y}" width="760" '
            f'height="{y}" role="img"><style>{STYLE}</style>'
            f'<text class="d" x="10" y="16">longer is faster; {escape(about)}</text>'
            + "\n".join(bars) + "</svg>\n")
