"""A writer that is killed by test_killed.py: appends what is missing, one by one, and says so after each."""

import sys

from caption_records import failed, record

from framefleet.store import lance
from framefleet.store.sink import SINKS

lance._TIDY_EVERY, lance._FEW_FRAGMENTS, lance.FRAGMENT_ROWS = 2, 3, 40  # so that compaction and cleaning are hit too


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(kind: str, path: str, total: int) -> None:
    options = {} if kind == "jsonl" else {"fold_rows": 4}
    with SINKS.load(kind)(path, "w", **options) as store:
        done = store.statuses()
        say("open")
        for n in range(total):
            one = record(n)
            if done.get(one.digest, "failed") != "failed":
                continue
            if n % 5 == 0 and one.digest not in done:
                store.append(failed(n))
                say("failed", n)
            store.append(one)
            say("ok", n)
    say("closed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
