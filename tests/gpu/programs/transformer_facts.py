"""transformer_facts.py SHOWN <STDOUT: converts the lines that transformer.py printed to facts for the report."""

import json
import sys

for line in sys.stdin:
    try:
        found = json.loads(line)
    except ValueError:
        continue
    for key, value in found.items():
        if key.endswith("_per_s"):
            mode = key.removesuffix("_per_s")
            print(json.dumps({"cost": f"a transformer's decode step, {mode}", "with": sys.argv[1], "unit": "steps/s",
                              "values": [round(value, 2)]}))
    rest = {key: value for key, value in found.items() if not key.endswith("_per_s")}
    if rest:
        print(json.dumps({"fact": f"transformer with {sys.argv[1]}", "value": rest}))
