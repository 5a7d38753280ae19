"""--mcore: optimizer tensors in rows, as the release itself wrote them."""
import pytest
from torch.distributed.checkpoint import FileSystemReader

from conftest import FIXTURES


@pytest.mark.parametrize("release,folder", [("0.13", "mcore-0.13.1_dcp-2.7.1"), ("0.9.0", "mcore-0.9.0_dcp-2.2.2"), ("0.15", "mcore-0.15.0_dcp-2.9.1"),
                                            ("0.16", "mcore-0.16.0_dcp-2.9.1"), ("0.7", "mcore-0.7.0_dcp-2.2.2")])
def test_shapes_are_those_of_the_release(ckpt, tmp_path, release, folder):
    """What Megatron wrote, turned into plain tensors and back, has the shapes and the original shapes that it had."""
    source = FIXTURES / "generated-megatron" / folder
    theirs = FileSystemReader(source).read_metadata()
    plain = ckpt.convert(source, tmp_path / "plain", "--mcore", "0.16")
    ours = FileSystemReader(ckpt.convert(plain, tmp_path / "rows", "--mcore", release)).read_metadata()
    sizes = lambda metadata: {k: tuple(m.size) for k, m in metadata.state_dict_metadata.items() if hasattr(m, "size")}
    assert sizes(ours) == sizes(theirs)
    originals = lambda metadata: {k: tuple(v["nd_reformulated_orig_global_shape"]) for k, v in getattr(metadata, "mcore_data", {}).items() if v}
    assert originals(ours) == originals(theirs)
    ckpt("inspect", "--diff", source, tmp_path / "rows")


@pytest.mark.parametrize("folder", ["mcore-0.13.1_dcp-2.7.1", "mcore-0.9.0_dcp-2.2.2", "mcore-0.15.0_dcp-2.9.1", "mcore-0.16.0_dcp-2.9.1"])
def test_without_a_release_rows_are_where_the_source_has_them(ckpt, tmp_path, folder):
    source = FIXTURES / "generated-megatron" / folder
    theirs = FileSystemReader(source).read_metadata()
    done = ckpt("convert", source, tmp_path / "out", "--to", "torch_dist", "--verify")
    ours = FileSystemReader(tmp_path / "out").read_metadata()
    sizes = lambda metadata: {k: tuple(m.size) for k, m in metadata.state_dict_metadata.items() if hasattr(m, "size")}
    assert sizes(ours) == sizes(theirs)
    assert ("--mcore 0.16" in done.stderr) == ("0.16" not in folder)
    ckpt("inspect", "--diff", source, tmp_path / "out")
