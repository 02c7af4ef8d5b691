"""Tables and pictures of what the jobs measured."""

import json
import statistics
from html import escape

COLOURS = {"uext4": "#1668b8", "off": "#7fb2e5", "ext4": "#c0392b", "xfs": "#d98c21", "raw": "#6b6b6b"}


def sample(result):
    """The figures of one run of fio, whose jobs are reported as one group."""
    job = result["jobs"][0]
    # Reads and writes are counted together: percentiles cannot be added up.
    part = job["mixed"]
    total = part["total_ios"]
    if not total or job["error"]:
        raise SystemExit(f"a job did nothing: error {job['error']}")
    # Processor time of the jobs' threads, which fio gives as a part of the time that all of them ran.
    ran_ms = result["jobs"][0]["job_runtime"]
    busy_ns = (job["usr_cpu"] + job["sys_cpu"]) / 100 * ran_ms * 1e6

    def latency(rank):
        return part["clat_ns"]["percentile"][rank] / 1000

    return {
        "iops": part["iops"],
        "mbps": part["bw_bytes"] / 1e6,
        "cpu_ns": busy_ns / total,
        "p50": latency("50.000000"),
        "p99": latency("99.000000"),
        "p999": latency("99.900000"),
    }


def median(rows, key):
    """The median of a figure."""
    return statistics.median(row[key] for row in rows)


def compared(ours, theirs):
    """The ratio of the medians, and the least and the greatest of the rounds' own ratios, between which it lies.

    The table shows the medians, so that its last column follows from its row. The median of the rounds' ratios, here 2,
    would contradict it:

    >>> rounds = lambda *rates: [{"iops": rate} for rate in rates]
    >>> compared(rounds(1, 4, 2), rounds(2, 2, 1))
    (1.0, 0.5, 2.0)
    """
    ratios = [a["iops"] / b["iops"] for a, b in zip(ours, theirs)]
    return median(ours, "iops") / median(theirs, "iops"), min(ratios), max(ratios)


def table(samples):
    """The figures as text in Markdown."""
    lines = ["| job | flavour | kIOPS | MB/s | p50 µs | p99 µs | p99.9 µs | CPU ns per I/O | uext4 / it |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, flavours in samples.items():
        for flavour, rows in flavours.items():
            ratio = "1"
            if flavour != "uext4" and "uext4" in flavours:
                middle, low, high = compared(flavours["uext4"], rows)
                ratio = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
            figures = [f"{median(rows, 'iops') / 1000:.1f}", f"{median(rows, 'mbps'):.0f}"]
            figures += [f"{median(rows, key):.1f}" for key in ("p50", "p99", "p999")]
            figures += [f"{median(rows, 'cpu_ns'):.0f}", ratio if "uext4" in flavours else ""]
            lines.append(f"| {name} | {flavour} | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def picture(samples):
    """Operations a second of every flavour, each job's against its best, as SVG."""
    width, bar, gap, left = 900, 16, 14, 190
    rows, y = [], 34
    for name, flavours in samples.items():
        most = max(median(found, "iops") for found in flavours.values())
        rows.append(f'<text x="8" y="{y + 12}" class="job">{escape(name)}</text>')
        for flavour, found in flavours.items():
            iops = median(found, "iops")
            length = max(1, (width - left - 150) * iops / most)
            colour = COLOURS.get(flavour, "#333")
            rows.append(f'<rect x="{left}" y="{y}" width="{length:.0f}" height="{bar - 3}" fill="{colour}"/>')
            rows.append(f'<text x="{left + length + 6:.0f}" y="{y + 11}">{escape(flavour)} {iops / 1000:.1f} k</text>')
            y += bar
        y += gap
    style = "text{font:12px sans-serif;fill:#222}.job{font-weight:bold}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">'
    title = '<text x="8" y="18">Operations a second, medians; each job has its own scale</text>'
    return "\n".join([head, f"<style>{style}</style>", '<rect width="100%" height="100%" fill="#fff"/>', title,
                      *rows, "</svg>", ""])


def write(samples, shapes, options):
    """Prints the table, and leaves table, picture and figures in the folder of results."""
    text = table(samples)
    print("\n" + text)
    about = {"size": options.size, "runtime": options.runtime, "ramp": options.ramp, "rounds": options.rounds}
    facts = {"settings": about, "shapes": {name: shapes[name] for name in samples}, "samples": samples}
    for file, contents in (("table.md", text), ("iops.svg", picture(samples)),
                           ("results.json", json.dumps(facts, indent=1) + "\n")):
        (options.out / file).write_text(contents, encoding="utf-8")
    print(f"{options.out}/table.md, iops.svg, results.json")
