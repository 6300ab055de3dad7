"""How fast the Lance store keeps, opens, searches and exports captions. One JSON line last.

    python benchmarks/store/run.py                 a million rows (an hour or so on two cores)
    python benchmarks/store/run.py --rows 20000    quick: minutes

Question: does one ordinary machine keep up with a fleet, and answer at a million captions while somebody waits?
Wanted: at least 1,000 rows/s appended in groups, and a 95th percentile under 200 ms for every way of searching.

Vectors: embedding a million captions on two cores would take hours and say nothing about the store. The first
`--embedded` captions are truly embedded; the others take one of their vectors turned by a random 10 degrees or so.
Search then does all the real work: the query is embedded by the model, the index is built over all rows.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import captions
import lance
import numpy as np

from framefleet.engine.captioner import CaptionRecord
from framefleet.search.minilm import MiniLM
from framefleet.search.query import parse_query
from framefleet.search.searcher import Searcher
from framefleet.store import lance as store_module
from framefleet.store.export import export
from framefleet.store.lance import HOME, open_lance
from framefleet.store.where import Where

HERE = Path(__file__).parent
SEED = 20260930
GROUP_ROWS = 64
NUM_SINGLE = 1_000
TURN = 0.18
"""Length of the noise added to a vector of length 1."""


class StandInEmbedder:
    """Queries by the model; captions by the model for the first `num_embedded`, then turned copies of those."""

    name, dim = MiniLM.name, MiniLM.dim

    def __init__(self, num_embedded: int) -> None:
        self.model = MiniLM()
        self.num_embedded = num_embedded
        self.pool = np.empty((0, self.dim), np.float32)
        self.rng = np.random.default_rng(SEED)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if len(texts) == 1:
            return self.model.embed(texts)
        if len(self.pool) < self.num_embedded:
            vectors = self.model.embed(texts)
            self.pool = np.concatenate([self.pool, vectors])
            return vectors
        vectors = self.pool[self.rng.integers(0, len(self.pool), len(texts))]
        vectors = vectors + self.rng.normal(0, TURN / self.dim**0.5, vectors.shape).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Results(dict[str, Any]):
    """Everything measured, written after each step: a broken run keeps what it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def keep(self, **measured: Any) -> None:
        self.update(measured)
        self.path.write_text(json.dumps(self, indent=1) + "\n")
        print({name: shown(value) for name, value in measured.items()}, flush=True)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self.keep(
            **{name: round(time.perf_counter() - started_s, 3), f"{name}_cpu": round(time.process_time() - cpu_s, 3)}
        )


def shown(value: Any) -> Any:
    return f"{len(value)} samples" if isinstance(value, list) and len(value) > 8 else value


def append(path: Path, rows: Iterator[CaptionRecord], results: Results) -> None:
    store = open_lance(str(path), "w")
    single_ms = []
    for one in islice(rows, NUM_SINGLE):
        started_s = time.perf_counter()
        store.append(one)
        single_ms.append(round(1000 * (time.perf_counter() - started_s), 3))
    results.keep(append_one_ms=single_ms)
    made_s, num_rows, started_s = 0.0, 0, time.perf_counter()
    group_ms = []
    while True:
        making_s = time.perf_counter()
        group = list(islice(rows, GROUP_ROWS))
        made_s += time.perf_counter() - making_s
        if not group:
            break
        appending_s = time.perf_counter()
        store.append(*group)
        group_ms.append(round(1000 * (time.perf_counter() - appending_s), 3))
        num_rows += len(group)
    seconds = time.perf_counter() - started_s - made_s
    results.keep(append_rows=num_rows, append_s=round(seconds, 3), append_group_ms=group_ms)
    with results.timed("close_s"):
        store.close()


def opening(path: Path, results: Results) -> None:
    for mode in ("r", "w"):
        with results.timed(f"open_{mode}_s"):
            store = open_lance(str(path), mode)
        with results.timed(f"statuses_{mode}_s"):
            statuses = store.statuses()
        with results.timed(f"close_{mode}_s"):
            store.close()
    results.keep(statuses=statuses.counts())


def size_bytes(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def ask(search: Callable[[str], list[Any]], queries: Sequence[str]) -> tuple[list[float], list[list[Any]]]:
    samples_ms, answers = [], []
    for query in queries:
        started_s = time.perf_counter()
        answers.append(search(query))
        samples_ms.append(round(1000 * (time.perf_counter() - started_s), 3))
    return samples_ms, answers


def searching(path: Path, results: Results, embedder: StandInEmbedder, num_queries: int) -> None:
    queries = captions.queries(num_queries, SEED + 1)
    with open_lance(str(path), "r") as store:
        searcher = Searcher(store, embedder=embedder)
        with results.timed("search_text_first_s"):
            searcher.search(queries[0])
        with results.timed("embed_and_index_s"):
            searcher.search(queries[0], mode="semantic")
        for mode in ("text", "semantic", "hybrid"):
            samples_ms, answers = ask(lambda query, mode=mode: searcher.search(query, mode=mode), queries)
            results.keep(**{f"search_{mode}_ms": samples_ms, f"search_{mode}_hits": sum(map(len, answers))})
        where = Where(clip="*/car 07/*")
        for mode in ("text", "semantic"):
            samples_ms, _ = ask(lambda query, mode=mode: searcher.search(query, mode=mode, where=where), queries[:100])
            results.keep(**{f"search_{mode}_filtered_ms": samples_ms})
        results.keep(recall_at_10=recall(searcher, queries[:50]))


def recall(searcher: Searcher, queries: Sequence[str]) -> float:
    """Of the ten truly nearest, the share that the index finds."""
    dataset, shares = searcher.vectors, []
    for query in queries:
        vector = searcher.embedder.embed([parse_query(query).text])[0]
        exact = {"column": "vector", "q": vector, "k": 10, "metric": "cosine", "use_index": False}
        nearest = dataset.scanner(columns=["digest", "_distance"], nearest=exact, disable_scoring_autoprojection=True)
        truth = set(nearest.to_table().column("digest").to_pylist())
        found = {hit.digest for hit in searcher.search(query, mode="semantic")}
        shares.append(len(truth & found) / len(truth))
    return round(statistics.mean(shares), 4)


def exporting(path: Path, folder: Path, results: Results) -> None:
    with open_lance(str(path), "r") as store:
        for to in ("parquet", "jsonl"):
            with results.timed(f"export_{to}_s"):
                report = export(store, to, folder / f"captions.{to}")
            results.keep(**{f"export_{to}_bytes": report.num_bytes, f"export_{to}_rows": report.num_records})


def surroundings() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False
    )
    with Path("/proc/cpuinfo").open() as lines:
        cpu = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
        )
    return {
        "machine": {"cpu": cpu, "cores": os.cpu_count(), "load_before": os.getloadavg()},
        "versions": {name: version(name) for name in ("pylance", "pyarrow", "numpy", "framefleet")}
        | {"python": platform.python_version()},
        "commit": commit.stdout.strip(),
    }


def summary(results: Results) -> dict[str, Any]:
    def percentile(name: str, share: int) -> float:
        return round(float(np.percentile(results[name], share)), 2)

    p95_ms = {mode: percentile(f"search_{mode}_ms", 95) for mode in ("text", "semantic", "hybrid")}
    headline = {
        "rows": results["append_rows"] + NUM_SINGLE,
        "search_p95_ms": max(p95_ms.values()),
        **{f"search_{mode}_p50_ms": percentile(f"search_{mode}_ms", 50) for mode in p95_ms},
        **{f"search_{mode}_p95_ms": value for mode, value in p95_ms.items()},
        "append_rows_per_s": round(results["append_rows"] / results["append_s"], 1),
        "append_one_p50_ms": percentile("append_one_ms", 50),
        "open_r_s": results["open_r_s"],
        "recall_at_10": results["recall_at_10"],
    }
    return {"benchmark": "store", "headline": headline, **{k: results[k] for k in ("machine", "versions", "commit")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--embedded", type=int, default=4_096, help="captions that the model embeds")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: a temporary folder)")
    parser.add_argument("--output", type=Path, default=HERE, help="where raw.json and result.json go")
    parser.add_argument(
        "--store", type=Path, help="go on with this store, left by a run that broke off, and its raw.json"
    )
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path, results = asked.store or Path(folder) / "captions.lance", Results(asked.output / "raw.json")
        if asked.store:
            results.update(json.loads(results.path.read_text()), went_on=surroundings())
        else:
            results.keep(
                **surroundings(), fold_rows=store_module.FOLD_ROWS, group_rows=GROUP_ROWS, asked_rows=asked.rows
            )
            append(path, captions.records(asked.rows, SEED), results)
        dataset = lance.dataset(str(path))
        results.keep(
            fragments=len(dataset.get_fragments()), num_versions=len(dataset.versions()), store_bytes=size_bytes(path)
        )
        opening(path, results)
        searching(path, results, StandInEmbedder(min(asked.embedded, asked.rows // 2)), asked.queries)
        results.keep(with_vectors_bytes=size_bytes(path), vectors_bytes=size_bytes(path / HOME))
        exporting(path, Path(folder), results)
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results.keep(peak_rss_bytes=peak_bytes, load_after=os.getloadavg())
    result = summary(results)
    (asked.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
