#include "formats/torch_dist/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "formats/torch_dist/item_writer.h"
#include "formats/torch_dist/metadata_writer.h"
#include "lib/base/copy.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"

namespace ckpt::torch_dist {

namespace {

constexpr unsigned kFileMode = 0666;  // less the umask: a checkpoint is shared like any other file
/// Of formats.md 1.2, the form that every release accepts.
constexpr const char* kMetadataJson =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

Result<UniqueFd> create(const std::filesystem::path& path) {
  return io::open_file(path, O_RDWR | O_CREAT | O_EXCL, kFileMode);
}

Result<void> finish(const UniqueFd& fd, const std::string& name, bool durable) {
  if (!durable) return {};
  return io::sync_fd(fd.get(), name);
}

Result<void> write_data_file(WriteState& state, const FilePlan& file, const std::filesystem::path& folder) {
  CKPT_TRY_ASSIGN(UniqueFd fd, create(folder / file.name));
  ItemWriter writer(state, fd.get(), file.name);
  for (size_t i = file.first; i < file.last; ++i) CKPT_TRY(writer.write(state.plan.items[i]));
  CKPT_TRY(finish(fd, file.name, state.control.durable));
  if (state.drop_cache) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<void> write_data(const Plan& plan, const std::filesystem::path& folder, const WriteControl& control) {
  unsigned workers = WorkerPool::threads_for(control.workers);
  workers = static_cast<unsigned>(std::clamp<size_t>(plan.files.size(), 1, workers));
  WriteState state{plan, control, workers, tensor::FileCache(*plan.source), MemoryBudget(decode_budget(plan.options.max_memory))};
  const auto memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  state.drop_cache = control.durable && plan.total_bytes > memory / 2;
  WorkerPool pool(workers);
  for (const FilePlan& file : plan.files) {
    if (!pool.submit([&state, &file, &folder] { return write_data_file(state, file, folder); })) break;
  }
  return pool.finish();
}

/// Calls `each(item, file)` for every item, file by file.
template <class Each>
Result<void> for_each_item(const Plan& plan, Each each) {
  for (const FilePlan& file : plan.files) {
    for (size_t i = file.first; i < file.last; ++i) CKPT_TRY(each(plan.items[i], file));
  }
  return {};
}

Result<void> write_metadata(const Plan& plan, const std::filesystem::path& folder, const WriteControl& control) {
  const tensor::Catalog& source = *plan.source;
  CKPT_TRY_ASSIGN(UniqueFd fd, create(folder / ".metadata"));
  MetadataWriter out([&](std::string_view block) { return io::write_all(fd.get(), as_bytes(block), ".metadata"); });
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    CKPT_TRY(control.cancel.check());
    const tensor::Tensor& tensor = source.tensors[plan.tensors[i]];
    const tensor::Grid& grid = plan.grids[i];
    CKPT_TRY(out.tensor(tensor.key, tensor.dtype, tensor.shape, grid.size(), [&](size_t k) { return grid.piece(tensor, k); }));
  }
  for (uint32_t i : plan.objects) CKPT_TRY(out.object(source.objects[i].key));
  CKPT_TRY(out.begin_places());
  CKPT_TRY(for_each_item(plan, [&](const Item& item, const FilePlan& file) -> Result<void> {
    const Place place{file.name, item.offset, item.length};
    if (item.is_object) return out.object_place(plan.object(item).key, place);
    return out.tensor_place(plan.tensor(item).key, plan.region(item).offset, item.piece, place);
  }));
  CKPT_TRY(out.finish());
  return finish(fd, ".metadata", control.durable);
}

Result<void> write_common(const Plan& plan, const std::filesystem::path& folder, const WriteControl& control) {
  if (plan.common == CommonAction::kNone) return {};
  CKPT_TRY_ASSIGN(UniqueFd fd, create(folder / "common.pt"));
  if (plan.common == CommonAction::kCopy) {
    const tensor::FileRange& from = *plan.source->common;
    CKPT_TRY_ASSIGN(UniqueFd source, plan.source->open_file(from.file));
    CKPT_TRY(io::copy_range(source.get(), from.offset, fd.get(), 0, from.length, plan.source->files[from.file].path));
  } else {
    CKPT_TRY(io::write_all(fd.get(), as_bytes(plan.common_file), "common.pt"));
  }
  return finish(fd, "common.pt", control.durable);
}

}  // namespace

Result<void> write(const Plan& plan, const std::filesystem::path& folder, const WriteControl& control) {
  uint64_t bytes = 0;
  for (const Item& item : plan.items) bytes += item.length;
  control.progress.begin("convert", bytes);
  CKPT_TRY(write_data(plan, folder, control));
  CKPT_TRY(write_metadata(plan, folder, control));
  CKPT_TRY(write_common(plan, folder, control));
  CKPT_TRY(control.cancel.check());
  if (!plan.megatron) return {};
  CKPT_TRY_ASSIGN(UniqueFd fd, create(folder / "metadata.json"));
  CKPT_TRY(io::write_all(fd.get(), as_bytes(kMetadataJson), "metadata.json"));
  return finish(fd, "metadata.json", control.durable);
}

}  // namespace ckpt::torch_dist
