// torch.save files of either kind: the five pickles and storages of a legacy one, zips, and all tensors that are found
// in them.
#include "formats/torch_save/walker.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ckpt::formats;
  const ckpt::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  auto file = read_torch_file(ckpt::zip::ByteSource(bytes, "input"));
  if (!file) return 0;
  auto walk = walk_state(file->graph);
  if (!walk) return 0;
  for (const Found& found : walk->tensors) {
    auto t = ckpt::pickle::read_torch_tensor(file->graph, found.node);
    if (!t) continue;
    auto layout = stored_layout(*t, file->big_endian);
    auto storage = file->storages.find(std::string(t->storage_key));
    if (!layout || !*layout || storage == file->storages.end()) continue;
    const uint64_t made = *ckpt::tensor::element_count(t->shape) * ckpt::tensor::item_size(t->dtype);
    if (made == 0 || made > (1 << 20) || storage->second.first + storage->second.second > size) continue;
    std::vector<std::byte> out(made);
    (void)lay_out(**layout, t->dtype, t->shape, bytes.subspan(storage->second.first, storage->second.second), out);
  }
  return 0;
}
