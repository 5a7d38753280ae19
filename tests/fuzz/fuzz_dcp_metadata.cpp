// `.metadata` of distributed checkpoints, and the undoing of reformulated shapes.
#include "formats/torch_dist/metadata.h"
#include "formats/torch_dist/reformulated.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto metadata =
      ckpt::formats::parse_dcp_metadata({reinterpret_cast<const std::byte*>(data), size}, uint64_t{1} << 20);
  if (!metadata) return 0;
  for (ckpt::formats::DcpTensor& t : metadata->tensors) {
    if (!t.original.empty()) (void)ckpt::formats::undo_reformulation(t.tensor, t.original);
    (void)ckpt::tensor::check_shards(t.tensor);
  }
  return 0;
}
