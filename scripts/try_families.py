"""Compares the generic engine with every causal language model of the installed transformers.

A tiny random model of each family is trained for one step on three conversations that pass every window,
chunk and floor of its class: loss and norm of the gradients are those of transformers to 1e-5. A family that
packs gets the same in one row as with each conversation alone. The table goes to --table, and the status is 1
if a family is further off.

    python scripts/try_families.py --table families.md [--families llama4_text qwen3_next]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "python")]
MOST = 1e-5
_COLUMNS = "| family | rows | loss | norm | packed: loss | packed: norm |\n|---|---|---|---|---|---|"


def main() -> int:
    options = _options()
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    title = f"# transformers {transformers.__version__}, torch {torch.__version__}\n\n{_COLUMNS}\n"
    options.table.write_text(title)
    failed = 0
    for kind in options.families or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        line, is_right = _line(kind)
        with options.table.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
        failed += not is_right
    return min(failed, 1)


def _line(kind: str) -> tuple[str, bool]:
    """Of the table, and whether the family is right or refused."""
    from families import compare

    try:
        found = compare(kind)
    except Exception as error:  # of any class: the code is the library's
        words = next(iter(str(error).splitlines()), "")[:140].replace("|", "/")
        return f"| {kind} | refused: {type(error).__name__}: {words} | | | | |", True
    rows = "packed" if found.why is None else f"padded: {found.why}"
    alone = ("", "") if found.why else (f"{found.packed_loss:.1e}", f"{found.packed_norm:.1e}")
    mark = "" if found.worst <= MOST else " **off**"
    numbers = " | ".join((f"{found.loss:.1e}", f"{found.norm:.1e}", *alone))
    return f"| {kind}{mark} | {rows} | {numbers} |", not mark


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", default=[], help="model types; default: all")
    parser.add_argument("--table", type=Path, default=Path("families.md"), help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
