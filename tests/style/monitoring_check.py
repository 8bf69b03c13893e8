#!/usr/bin/env python3
"""Each metric that the Grafana dashboard and the alert rules (packaging/monitoring) name is one that the daemon has. promtool, if it
is installed, checks the rules' expressions, and that each alert is raised where tests/style/alerts_test.yaml has it;
KVCACHEFS_REQUIRE=all makes its absence a failure.

usage: tests/style/monitoring_check.py ROOT
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
folder = root / "packaging/monitoring"


def stat_metric(name, is_counter):
    for unit in ("_ns", "_s"):
        if name.endswith(unit):
            name = name.removesuffix(unit) + "_seconds"
            break
    return f"kvcachefs_{name}" + ("_total" if is_counter else "")


def known_metrics():
    table = (root / "fs/control/pool_stats.h").read_text()
    metrics = set()
    for member, name in re.findall(r"\{&(\w+)::\w+,\s*\"(\w+)\",\s*\"", table):
        if name in ("open_ns", "create_ns", "promote_ns", "spill_ns"):
            metrics |= {stat_metric(name, False) + part for part in ("_bucket", "_sum", "_count")}
        else:
            metrics.add(stat_metric(name, member == "PoolCounters"))
    metrics |= {stat_metric(name, False) for name in re.findall(r"\{\"(\w+)\", [^{}]+, \"[A-Z]", (root / "fs/control/stats.cc").read_text())}
    metrics |= set(re.findall(r"\b(?:head|nodes)\(\"(kvcachefs_\w+)\"", (root / "fs/control/metrics.cc").read_text()))
    return metrics


def expressions():
    board = json.loads((folder / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        yield f"variable {variable['name']}", variable["query"]
    for line in (folder / "alerts.yaml").read_text().splitlines():
        if line.strip().startswith("expr:"):
            yield "an alert", line.split(":", 1)[1]


metrics = known_metrics()
failures = []
named = 0
if len(metrics) < 60:
    failures.append(f"only {len(metrics)} metrics are found in the sources")
for where, expression in expressions():
    for metric in re.findall(r"\bkvcachefs_\w+", expression):
        named += 1
        if metric not in metrics:
            failures.append(f"{where}: there is no {metric}")
if named < 40:
    failures.append(f"only {named} metrics are named")
raised = root / "tests/style/alerts_test.yaml"
for alert in re.findall(r"- alert: (\w+)", (folder / "alerts.yaml").read_text()):
    if f"alertname: {alert}\n" not in raised.read_text():
        failures.append(f"{raised.name} does not raise {alert}")
if shutil.which("promtool"):
    for order in (["check", "rules", str(folder / "alerts.yaml")], ["test", "rules", str(raised)]):
        checked = subprocess.run(["promtool", *order], capture_output=True, text=True)
        if checked.returncode != 0:
            failures.append(checked.stdout + checked.stderr)
elif os.environ.get("KVCACHEFS_REQUIRE") == "all":
    failures.append("promtool is not installed")
else:
    print("promtool is not installed: the rules' expressions are not checked")
for failure in failures:
    print(failure)
print(f"{len(failures)} failures, {named} metrics named")
sys.exit(1 if failures else 0)
