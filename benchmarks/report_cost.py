"""What a report of 50,000 images costs: bytes, seconds to write, seconds until a browser shows it.

    python benchmarks/report_cost.py --out results/report-cpu.json

The images are noise, which no format can make smaller. The browser is Chromium, driven by playwright; without them only
the writing is measured. Seconds of the page's main thread are its own work, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from narl.audit import from_run
from narl.audit.report import write_report
from narl.train import Settings, plan
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder

EPOCHS, CLASSES, SIDE = 100, 10, 32

# Inside the page: from outside it could not be seen while plotly's script is read.
_WATCH = """
new MutationObserver(() => {
  if (document.body?.dataset.ready) window.readable ??= performance.now();
}).observe(document, { attributes: true, childList: true, subtree: true });
"""


def made_up_run(place: Path, count: int) -> Path:
    """The folder of a run that was never trained, with a record as if it had been."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, CLASSES, count)
    given = np.where(rng.random(count) < 0.2, rng.integers(0, CLASSES, count), true)
    pixels = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    np.savez(place / "images.npz", x=pixels, y=given, y_true=true)
    data = str(place / "images.npz")
    planned = plan(Settings(data=data, test="none", method="GCE", model="convnet", epochs=EPOCHS, device="cpu"))
    folder = RunFolder.create(place / "run", config=planned.describe(), environment={"device": "none"})
    train = planned.sets.train
    record = SampleRecord.create(folder.path, ("margin", "rival"), train.ids, EPOCHS, train.labels)
    wrong = given != true
    for epoch in range(EPOCHS):
        record.write(epoch, {"margin": rng.normal(np.where(wrong, -2, 2), 1.5), "rival": (given + 1) % CLASSES})
        folder.append_metrics(
            {"epoch": epoch + 1, "learning_rate": 0.1, "loss": 1 / (epoch + 1), "train_agreement": 0.8}
        )
    return folder.path


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return {"seconds": round(time.perf_counter() - clock, 2), "cpu_seconds": round(time.process_time() - processor, 2)}


def opening(path: Path, repeats: int) -> dict[str, Any] | None:
    """Seconds until a page has all but its charts, and until the first are drawn; None without a browser."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    readable, drawn, busy = [], [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.add_init_script(_WATCH)
            session = context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            start = time.perf_counter()
            page.goto(path.as_uri(), wait_until="commit")
            page.wait_for_selector("#confusion .main-svg")
            drawn.append(time.perf_counter() - start)
            readable.append(page.evaluate("window.readable / 1000"))
            metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
            busy.append(metrics["TaskDuration"])
            context.close()
        version = browser.version
        browser.close()
    return {
        "browser": f"Chromium {version}",
        "repeats": repeats,
        "readable_seconds": _spread(readable),
        "charts_seconds": _spread(drawn),
        "main_thread_cpu_seconds": _spread(busy),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


def main() -> None:
    """Measure and print; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = made_up_run(Path(folder), options.samples)
        verdicts = from_run(run)
        report = Path(folder) / "report.html"
        found: dict[str, Any] = {
            "samples": options.samples,
            "write": timed(lambda: write_report(verdicts, report, run=run)),
            "bytes": report.stat().st_size,
            "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "open": opening(report, options.repeats),
        }
    found["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
