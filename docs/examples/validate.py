"""Validates documents that egmctl wrote, without internet: ``python3 validate.py SCHEMAS FILE...``.

SCHEMAS is the folder docs/schemas. Needs jsonschema 4.18 or newer.
"""

import json
import sys
from pathlib import Path

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

folder, *files = sys.argv[1:]
schemas = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json")]
registry = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in schemas)
of_documents = {schema["title"]: schema for schema in schemas if "title" in schema}
exit_code = 0
for file in files:
    document = json.loads(Path(file).read_text(encoding="utf-8"))
    validator = Draft202012Validator(of_documents[document["schema"]], registry=registry)
    error = best_match(validator.iter_errors(document))
    if error is not None:
        sys.stdout.write(f"{file}: {error.json_path}: {error.message}\n")
        exit_code = 1
sys.exit(exit_code)
