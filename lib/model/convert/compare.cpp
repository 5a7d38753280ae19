#include "lib/model/convert/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/format.h"
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"

namespace ckpt::model {

namespace {

using tensor::Target;
using tensor::Tensor;

constexpr uint64_t kBlock = 4 << 20;
constexpr uint64_t kEncodedBlock = 32 << 20;  ///< each block decodes all shards that it touches

const Tensor* find(const tensor::Catalog& catalog, const std::string& key) {
  auto at = std::lower_bound(catalog.tensors.begin(), catalog.tensors.end(), key,
                             [](const Tensor& t, const std::string& k) { return t.key < k; });
  return at != catalog.tensors.end() && at->key == key ? &*at : nullptr;
}

struct Both {
  const tensor::Selection& selection;
  const tensor::Catalog& written;
  tensor::FileCache source_files, written_files;
  ProgressSink& progress;
  const Cancel& cancel;
};

Result<void> compare_tensor(Both& both, const Target& target, const Tensor& tensor) {
  trace::Span span(trace::kept(target.key));
  tensor::TargetReader from(both.selection, both.source_files);
  tensor::RegionReader to(both.written, both.written_files);
  const bool encoded = tensor::decode_memory(both.selection.tensor(target)) > 0 || tensor::decode_memory(tensor) > 0;
  const uint64_t limit = encoded ? tensor::block_bytes(both.selection, target, target.shape, kEncodedBlock) : kBlock;
  tensor::RowMajorBlocks blocks(tensor, limit);
  std::vector<std::byte> wanted, found;
  while (auto block = blocks.next()) {
    CKPT_TRY(both.cancel.check());
    const uint64_t bytes = tensor::element_count(block->shape).value_or(0) * item_size(target.dtype);
    wanted.resize(bytes);
    found.resize(bytes);
    CKPT_TRY(from.read(target, *block, wanted));
    CKPT_TRY(to.read(tensor, *block, found));
    if (std::memcmp(wanted.data(), found.data(), bytes) != 0) {
      const auto at =
          static_cast<uint64_t>(std::mismatch(wanted.begin(), wanted.end(), found.begin()).first - wanted.begin());
      return fail(Code::kCorrupt, target.key,
                  fmt::format("was written wrongly: element {} of the box at {} differs", at / item_size(target.dtype),
                              fmt::join(block->offset, ",")));
    }
    both.progress.advance(bytes);
  }
  return {};
}

}  // namespace

Result<void> compare_with_source(const std::filesystem::path& path, const tensor::Selection& selection,
                                 unsigned workers, ProgressSink& progress, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(const tensor::Catalog written, formats::open_checkpoint(path, {}));
  uint64_t bytes = 0;
  for (const Target& target : selection.tensors) {
    const Tensor* tensor = find(written, target.key);
    if (tensor == nullptr) return fail(Code::kCorrupt, target.key, "was written, but a reader does not find it");
    if (tensor->dtype != target.dtype || tensor->shape != target.shape) {
      return fail(Code::kCorrupt, target.key, "was written, but a reader finds another type or shape");
    }
    bytes += target.bytes();
  }
  // In a torch.save file objects are values of the dict, and tensors in them are tensors like others.
  const bool merged = written.format == "torch_save";
  if (!merged && written.tensors.size() != selection.tensors.size())
    return fail(Code::kCorrupt, path.string(), "holds tensors that were not to be written");
  for (const auto& object : selection.objects) {
    auto same = [&](const tensor::Object& other) { return other.key == object.key; };
    if (!merged && std::none_of(written.objects.begin(), written.objects.end(), same))
      return fail(Code::kCorrupt, object.key, "was written, but a reader does not find it");
  }
  progress.begin("verify", bytes);
  Both both{selection, written, tensor::FileCache(*selection.source), tensor::FileCache(written), progress, cancel};
  WorkerPool pool(workers);
  for (const Target& target : selection.tensors) {
    const Tensor* tensor = find(written, target.key);
    if (!pool.submit([&both, &target, tensor] { return compare_tensor(both, target, *tensor); })) break;
  }
  return pool.finish();
}

}  // namespace ckpt::model
