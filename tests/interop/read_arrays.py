"""Prints what zarr-python 3 or numpy reads: {key: [dtype, shape, hex of the row-major little-endian bytes]} as JSON.

usage: read_arrays.py zarr3|npy FOLDER. Arrays of a type that zarr-python does not know are left out.
"""
import json
import pathlib
import sys
import warnings

import ml_dtypes
import numpy as np
import zarr

warnings.filterwarnings("ignore")
KIND, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])


def row(array):
    return [array.dtype.name, list(array.shape), np.ascontiguousarray(array).tobytes().hex()]


def zarr_arrays(group):
    for document in sorted(FOLDER.rglob("zarr.json")):
        meta = json.loads(document.read_text())
        key = document.parent.relative_to(FOLDER).as_posix()
        if meta["node_type"] == "array" and not meta["data_type"].startswith(("bfloat16", "float8")):
            array = group[key]
            assert isinstance(array, zarr.Array), key
            yield key, row(array[...])


def npy_arrays():
    types = FOLDER / "dtypes.json"
    types = json.loads(types.read_text()) if types.exists() else {}
    for path in sorted(FOLDER.rglob("*.npy")):
        key = path.relative_to(FOLDER).as_posix()[: -len(".npy")]
        array = np.load(path)
        yield key, row(array.view(getattr(ml_dtypes, types[key])) if key in types else array)


if KIND == "zarr3":
    group = zarr.open_group(FOLDER, mode="r")
    if group.metadata.consolidated_metadata is not None:
        listed = {name for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)}
        assert listed == {key for key, _ in zarr_arrays(group)}, "the consolidated metadata lists other arrays"
    print(json.dumps(dict(zarr_arrays(group))))
else:
    print(json.dumps(dict(npy_arrays())))
