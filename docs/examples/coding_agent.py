"""A coding agent whose conversation, files and payments are one history.

It has no language model: a script decides. It pays for the name of a website, writes a small program into
`project/`, and runs its test. The first try is wrong, so it goes back to the start, with the conversation and
the files, and keeps only what it has learned. Going back does not take the payment back: the run that paid
has its record on a branch of its own. Kill it at any moment, and start it again: it goes on.

    python coding_agent.py --crash      killed in the call that pays, right after the payment
    python coding_agent.py              finds the payment, and goes on
    vstate log                          what it did, as commits
    vstate runs show pay                the payment, which was made once
    vstate diff start HEAD              what changed since the start; the files as a patch
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from vstate import ABSENT, Disk, Versioned, Workspace

PROJECT = Path("project")
LEDGER = Path("payments.jsonl")
"""The service that is paid: a line for each payment. vstate does not know of it."""

TEST = "from cart import total\n\nassert total([2, 3]) == 5, total([2, 3])\nprint('ok')\n"
FIRST_TRY = "def total(prices):\n    return sum(prices) / len(prices)\n"
SECOND_TRY = "def total(prices):\n    return sum(prices)\n"


# The tools.


def pay(amount: int, crash: bool, *, idempotency_key: str) -> dict[str, Any]:
    """Pay. A real service would take the key, too, and do a repeated call once."""
    with LEDGER.open("a") as ledger:
        print(json.dumps({"key": idempotency_key, "amount": amount}), file=ledger)
    if crash:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"amount": amount, "key": idempotency_key}


def find_payment(intent: Any) -> Any:
    """Ask the service for the payment of an intent. ABSENT: it was not made."""
    payments = [json.loads(line) for line in LEDGER.open()] if LEDGER.exists() else []
    return next((payment for payment in payments if payment["key"] == intent.key), ABSENT)


def run_test() -> str:
    """The last line that the test of the project prints."""
    command = [sys.executable, "-B", "test_cart.py"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


# The agent.


def act(state: Versioned, crash: bool) -> bool:
    """Do what comes next by the state, and commit it; False if nothing is left to do."""

    def say(what: str) -> None:
        state.setdefault("messages", []).append({"role": "assistant", "content": what})
        print(what)

    if "messages" not in state:
        (PROJECT / "test_cart.py").write_text(TEST)
        say("wrote the test")
        state.commit("start")
        state.tag("start")
    elif "receipt" not in state:
        # After a crash, or after going back, it pays no second time. A dead holder of the run counts for 2 s.
        with state.run("pay", ttl=2) as run:
            receipt = run.step(partial(pay, crash=crash), 12, name="pay", once=True, check=find_payment)
            state["receipt"] = receipt
            say(f"has a receipt of {receipt['amount']}")
    elif "result" not in state:
        (PROJECT / "cart.py").write_text(SECOND_TRY if "lesson" in state else FIRST_TRY)
        state["result"] = run_test()
        say(f"wrote cart.py; its test says: {state['result']}")
        state.commit("a try")
    elif state["result"] != "ok":
        lesson = state["result"]
        state.rollback("start")  # the conversation and the files
        state["lesson"] = lesson
        say(f"went back to the start, where the files are {[path.name for path in PROJECT.glob('*.py')]}")
        state.commit("a lesson")
    else:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--crash", action="store_true", help="be killed right after the payment")
    crash = parser.parse_args().crash
    PROJECT.mkdir(exist_ok=True)
    with Versioned(Disk(".vstate")) as state, Workspace(state, PROJECT):
        while act(state, crash):
            pass
        print(f"done; payments made: {len(LEDGER.read_text().splitlines())}")


if __name__ == "__main__":
    main()
