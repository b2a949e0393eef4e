"""The offline model of `ask_table`: writes one program, which adds up a column by another one.

Nothing here knows the sample: the product and the name of the file are those of the question.
"""

from __future__ import annotations

import re

from minions import Prompt, ScriptedModel

_PROGRAM = """
import tools

lines = tools.files__read(path={file!r})["text"].splitlines()
columns = lines[0].split(",")
sums, used = {{}}, 0
for line in lines[1:]:
    row = dict(zip(columns, line.split(",")))
    if not all(row.values()):
        continue
    used += 1
    if row["product"].lower() == {product!r}:
        sums[row["region"]] = sums.get(row["region"], 0) + int(row["units"])
best = max(sorted(sums), key=lambda name: sums[name]) if sums else "No region"
{{
    "answer": f"{{best}} bought {{sums.get(best, 0)}} of them.",
    "rows": used,
    "left_out": len(lines) - 1 - used,
}}
"""


def write(prompt: Prompt) -> str:
    """The program, in a block of its own."""
    goal = prompt.messages[-1].content or ""
    file = re.search(r"CSV file (\S+)", goal)
    product = re.search(r"most (\w+?)s?\?", goal)
    program = _PROGRAM.format(
        file=file[1] if file else "", product=product[1].lower() if product else ""
    )
    return f"```python{program}```"


table = ScriptedModel(write, name="scripted/ask_table")
