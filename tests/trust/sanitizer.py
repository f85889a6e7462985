"""Every Triton kernel, and whole steps, under compute-sanitizer: ``python tests/trust/sanitizer.py --out FOLDER``.

Five jobs run side by side: memcheck, racecheck, initcheck and synccheck over all cases of `sanitizer_work`, and
memcheck over the cases with a CUDA graph. Without its allocator that keeps memory, torch cannot make a graph; with it,
memcheck and initcheck see too little. Before that, deliberate errors are looked for, and kernels are compiled without a
sanitizer. FOLDER/sanitizer.json has what was found; ``--table FOLDER/sanitizer.json`` makes a table of it.

racecheck looks at shared memory alone. The race of `ring.admit` was one of global memory: `admit_race.py` is about it.
Without a GPU, ``--device cpu`` runs the cases by Triton's interpreter, without a sanitizer.
"""

import argparse
import ast
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
KERNELS = SOURCE / "torch_ggt" / "backends" / "triton"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
UNCACHED = ("memcheck", "initcheck")
FLAGS = ["--target-processes", "application-only", "--print-limit", "2000", "--show-backtrace", "no"]
HEADS = re.compile(
    r"Invalid |Misaligned |Uninitialized |Error: Race|Warning: Race|Race reported|RAW|WAR|WAW|Barrier error|"
    r"Divergent|Program hit|Potential |Hardware|Out-of-range|Unspecified|Internal|Fatal|Error: |Device not supported"
)

PLANTED = """
#include <cstdio>
__global__ void planted_race(float* out) {
    __shared__ float shared[128];
    shared[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = shared[127 - threadIdx.x];  // no barrier
}
__global__ void planted_divergence(float* out) {
    if (threadIdx.x < 16) __syncthreads();  // half of a warp
    out[threadIdx.x] = 1;
}
int main(int count, char** which) {
    float* out;
    cudaMalloc(&out, 128 * sizeof(float));
    if (which[1][0] == 'r') planted_race<<<1, 128>>>(out); else planted_divergence<<<1, 32>>>(out);
    printf("%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
"""


# ---- which kernels there are -----------------------------------------------------------------------------------------


def kernels():
    """(what a launch starts, what kernels call): names "module.function" of all functions with @triton.jit."""
    defined, called = {}, set()
    for path in sorted(KERNELS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and "triton.jit" in map(ast.unparse, node.decorator_list):
                defined[f"{path.stem}.{node.name}"] = node
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
                        called.add((path.stem, inner.func.id))
    names_called = {name for _, name in called}
    helpers = {
        key for key in defined
        if (key.split(".")[0], key.split(".")[1]) in called
        or (not key.split(".")[1].startswith("_") and key.split(".")[1] in names_called)
    }  # fmt: skip
    return sorted(defined.keys() - helpers), sorted(helpers)


# ---- what the sanitizer says -----------------------------------------------------------------------------------------


def records(text):
    """(case, words) for each finding in the output of a sanitizer, in which cases say when they begin."""
    case, found = None, []
    for line in text.splitlines():
        if line.startswith("CASE "):
            case = line.removeprefix("CASE ")
        if not line.startswith("========="):
            continue
        words = line.removeprefix("=========")
        if words.startswith("     ") and found and found[-1][0] == case and found[-1][1]:
            found[-1][1].append(words.strip())
        elif HEADS.search(words) and "SUMMARY" not in words:
            found.append((case, [words.strip()]))
        elif not words.strip():
            found.append((case, []))  # the end of a record
    return [(case, " | ".join(words)) for case, words in found if words]


def is_ours(words, names):
    """Whether a finding names one of our kernels: they begin with an underscore, and stand in no namespace."""
    return any(re.search(rf"(?<![\w:]){name}(?!\w)", words) for name in names)


def grouped(found):
    """Findings that differ in addresses and threads alone are counted together: (words of the first, cases, number)."""
    groups = {}
    for case, words in found:
        key = re.sub(r"0x[0-9a-f]+|\(\d+,\d+,\d+\)|\d+ bytes|-?\d+", "#", words)
        entry = groups.setdefault(key, {"first": words[:600], "cases": Counter(), "number": 0})
        entry["number"] += 1
        entry["cases"][str(case)] += 1
    for entry in groups.values():
        entry["cases"] = dict(entry["cases"].most_common(8))
    return sorted(groups.values(), key=lambda entry: -entry["number"])


def summary_of(text, entry_names):
    """What one process did and found."""
    found = records(text)
    launched = Counter()
    for line in text.splitlines():
        if line.startswith("LAUNCHED "):
            launched.update(json.loads(line.removeprefix("LAUNCHED ")))
    summaries = re.findall(r"=========\s+(.*SUMMARY.*)", text)
    return {
        "begun": len(re.findall(r"^CASE ", text, re.M)),
        "done": len(re.findall(r"^DONE ", text, re.M)),
        "failed": re.findall(r"^FAILED (.*)", text, re.M),
        "launched": launched,
        "ours": [one for one in found if is_ours(one[1], entry_names)],
        "elsewhere": [one for one in found if not is_ours(one[1], entry_names)],
        "summaries": summaries,
    }


# ---- processes -------------------------------------------------------------------------------------------------------


class Job:
    """A process whose output goes to a file, and which is killed with its children when its time is over."""

    def __init__(self, command, folder, name, *, uncached=False, interpreted=False):
        self.path = Path(folder) / f"{name}.txt"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
        environment["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        if interpreted:
            environment["TRITON_INTERPRET"] = "1"
        if uncached:
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        self.began, self.seconds, self.killed = time.monotonic(), None, False
        with self.path.open("wb") as file:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def over(self):
        if self.seconds is None and self.process.poll() is not None:
            self.seconds = time.monotonic() - self.began
        return self.seconds is not None

    def kill(self):
        if not self.over():
            self.killed = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.seconds = time.monotonic() - self.began

    @property
    def text(self):
        return self.path.read_text(errors="replace")


def finish(jobs, limit):
    """Wait for all jobs; kill what still runs after ``limit`` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end and not all([job.over() for job in jobs]):  # noqa: C419 - look at each
        time.sleep(0.2)
    for job in jobs:
        job.kill()


def find_sanitizer():
    places = [shutil.which("compute-sanitizer"), *map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))]
    return next((place for place in places if place and Path(place).exists()), None)


def work(device, part, parts, what):
    return [sys.executable, HERE / "sanitizer_work.py", device, part, parts, what]


def sanitized(sanitizer, tool, command):
    return [sanitizer, "--tool", tool, *FLAGS, *command]


def planted_jobs(sanitizer, folder):
    """(tool, what was planted, job): errors that each tool must find."""
    jobs = [
        ("memcheck", "_planted_beyond", sanitized(sanitizer, "memcheck", work("cuda", 0, 1, "planted:beyond"))),
        ("initcheck", "_planted_copy", sanitized(sanitizer, "initcheck", work("cuda", 0, 1, "planted:unwritten"))),
    ]
    source, program = Path(folder) / "planted.cu", Path(folder) / "planted"
    source.write_text(PLANTED)
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        built = subprocess.run(
            [compiler, "-arch=native", "-o", program, source], capture_output=True, timeout=90, check=False
        )
        if built.returncode:
            print(built.stderr.decode()[-500:])
        else:
            jobs.append(("racecheck", "planted_race", sanitized(sanitizer, "racecheck", [program, "r"])))
            jobs.append(("synccheck", "planted_divergence", sanitized(sanitizer, "synccheck", [program, "d"])))
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the errors in CUDA were not planted: {error}")
    return [
        (tool, name, Job(command, folder, f"planted-{tool}", uncached=tool in UNCACHED)) for tool, name, command in jobs
    ]


# ---- the whole -------------------------------------------------------------------------------------------------------


def campaign(device, tools, parts, limit, out):
    began = time.monotonic()
    entries, helpers = kernels()
    names = {entry.split(".")[1] for entry in entries}
    result = {"device": device, "python": platform.python_version(), "kernels": entries, "functions they call": helpers}

    def save():
        result["seconds"] = round(time.monotonic() - began, 1)
        (out / "sanitizer.json").write_text(json.dumps(result, indent=1) + "\n")

    sanitizer = find_sanitizer() if device == "cuda" else None
    with tempfile.TemporaryDirectory() as folder:
        processes = max(parts, min(14, (os.cpu_count() or 2) - 2) if device == "cuda" else parts)
        warm = [
            Job(work(device, i, processes, "cases"), folder, f"plain-{i}", interpreted=device == "cpu")
            for i in range(processes)
        ]
        planted = planted_jobs(sanitizer, folder) if sanitizer else []
        finish([job for _, _, job in planted], 120)
        result["planted"] = [
            {"tool": tool, "what": name, "found": any(name in words for _, words in records(job.text)),
             "seconds": round(job.seconds, 1), "output": job.text[-800:]}
            for tool, name, job in planted
        ]  # fmt: skip
        save()
        finish(warm, limit)
        result["without a sanitizer"] = combined(warm, names)
        launched = result["without a sanitizer"]["variants of each kernel"]
        result["kernels that no case started"] = sorted(set(entries) - launched.keys())
        save()
        if sanitizer and not any(one["found"] for one in result["planted"]):
            print("compute-sanitizer found none of the planted errors: it does not work here")
            result["tools"] = {}
            save()
            return result
        result["tools"] = {}
        if sanitizer:
            version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout
            result["compute-sanitizer"] = version.split("Version ")[-1].split("\n")[0].strip()
            jobs = {
                tool: [
                    Job(sanitized(sanitizer, tool, work(device, i, parts, "cases")), folder, f"{tool}-{i}",
                        uncached=tool in UNCACHED)
                    for i in range(parts)
                ]
                for tool in tools
            }  # fmt: skip
            if "memcheck" in tools:
                graphs = sanitized(sanitizer, "memcheck", work(device, 0, 1, "graphs"))
                jobs["memcheck, CUDA graphs"] = [Job(graphs, folder, "graphs")]
            finish([job for own in jobs.values() for job in own], limit)
            for tool, own in jobs.items():
                result["tools"][tool] = combined(own, names)
                save()
                for job in own:
                    if job.killed or not job.text.count("DONE"):
                        result["tools"][tool].setdefault("ends of output", []).append(job.text[-600:])
        save()
    return result


def combined(jobs, names):
    """The summaries of the processes of one tool."""
    parts = [summary_of(job.text, names) for job in jobs]
    launched = sum((part["launched"] for part in parts), Counter())
    variants = Counter(variant.split(" ")[0] for variant in launched)
    return {
        "seconds": round(max(job.seconds for job in jobs), 1),
        "killed at the limit": sum(job.killed for job in jobs),
        "exit codes": [job.process.returncode for job in jobs],
        "cases begun": sum(part["begun"] for part in parts),
        "cases done": sum(part["done"] for part in parts),
        "failed": [words for part in parts for words in part["failed"]][:40],
        "launches": sum(launched.values()),
        "variants of each kernel": dict(sorted(variants.items())),
        "errors of ours": grouped([one for part in parts for one in part["ours"]])[:30],
        "errors elsewhere": grouped([one for part in parts for one in part["elsewhere"]])[:30],
        "number of errors": {side: sum(len(part[side]) for part in parts) for side in ("ours", "elsewhere")},
        "summaries": dict(Counter(words for part in parts for words in part["summaries"])),
    }


def table(result):
    """What was found, in Markdown."""
    heads = ("tool", "planted error", "kernels, variants, launches", "cases", "errors of ours", "elsewhere", "seconds")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    found = {one["tool"]: "found" if one["found"] else "**not found**" for one in result.get("planted", [])}
    plain = {"none": result["without a sanitizer"]} if "without a sanitizer" in result else {}
    for tool, own in {**plain, **result.get("tools", {})}.items():
        variants = own["variants of each kernel"]
        number = own["number of errors"]
        done = f"{own['cases done']} of {own['cases begun']}"
        done += f", {own['killed at the limit']} processes killed" if own["killed at the limit"] else ""
        started = f"{len(variants)} of {len(result['kernels'])}, {sum(variants.values())}, {own['launches']:,}"
        cells = tool, found.get(tool, ""), started, done, number["ours"], number["elsewhere"], round(own["seconds"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if result.get("kernels that no case started"):
        lines.append(f"No case started {', '.join(result['kernels that no case started'])}.")
    for tool, own in {**plain, **result.get("tools", {})}.items():
        for side in ("errors of ours", "errors elsewhere"):
            lines += [f"- {tool}, {side}, {one['number']} times: `{one['first'][:200]}`" for one in own[side][:4]]
        lines += [f"- {tool}, failed: {words[:200]}" for words in own["failed"][:4]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for sanitizer.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--parts", type=int, default=3, help="processes of each tool")
    parser.add_argument("--limit", type=float, default=150, help="seconds for the processes of the tools")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the table of a file")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(json.loads(chosen.table.read_text())))
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(table(campaign(chosen.device, chosen.tools, chosen.parts, chosen.limit, chosen.out)))


if __name__ == "__main__":
    main()
