#include "lib/flash/persist.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "formats/format.h"
#include "formats/writers.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/base/worker_pool.h"
#include "lib/flash/catalog.h"
#include "lib/flash/latest.h"
#include "lib/tensor/write_files.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBlock = 512 << 10;

/// Slows down whoever reports progress to so many bytes a second.
class Throttle : public ProgressSink {
 public:
  Throttle(uint64_t rate, const Cancel* hurry) : rate_(rate), hurry_(hurry) {}
  void begin(std::string_view, uint64_t) override {}
  void note(std::string_view) override {}
  void advance(uint64_t bytes) override {
    if (rate_ == 0) return;
    const uint64_t done = done_ += bytes;
    const auto due = static_cast<uint64_t>(static_cast<double>(done) / static_cast<double>(rate_) * 1e6);
    const uint64_t now = watch_.elapsed_us();
    const uint64_t end = monotonic_us() + (due > now ? due - now : 0);
    for (uint64_t at = monotonic_us(); at < end && !(hurry_ && hurry_->requested()); at = monotonic_us())
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<uint64_t>(end - at, 100'000)));
  }

 private:
  uint64_t rate_;
  const Cancel* hurry_;
  std::atomic<uint64_t> done_{0};
  Stopwatch watch_;
};

/// One persist, step by step.
class Persist {
 public:
  Persist(const PersistRequest& request, const Cancel& cancel)
      : request_(request), cancel_(cancel), throttle_(request.rate, request.hurry), control_{request.workers,
                                                                              true,
                                                                              uint64_t{256} << 20,
                                                                              throttle_,
                                                                              cancel,
                                                                              false} {}

  Result<PersistReport> run() {
    Stopwatch watch;
    report_.step = request_.step;
    CKPT_TRY_ASSIGN(catalog_, request_.part ? part_of(request_.ranks, request_.format, request_.part->owners)
                                            : catalog_of(request_.ranks, request_.format, report_.notes));
    selection_ = tensor::Selection::all(catalog_);
    const formats::Writer* writer = formats::find_writer(request_.format);
    if (writer == nullptr) return fail(Code::kUsage, request_.format, "is no format that ckpt writes");
    CKPT_TRY_ASSIGN(layout_, writer->plan(selection_, {}));
    if (!request_.part) report_.notes.insert(report_.notes.end(), layout_->notes.begin(), layout_->notes.end());
    report_.path = request_.part ? request_.part->path : request_.directory / folder_name(request_.step);
    // Not among the parts of other nodes: on NFS nobody sees their locks.
    if (!request_.part) {
      for (const fs::path& dir : find_abandoned_staging(request_.directory)) (void)remove_abandoned_staging(dir);
    }
    // The folder of a part is the attempt's: where that is over it is not made again.
    const auto above = request_.part ? StagedDir::Above::kThere : StagedDir::Above::kMade;
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(report_.path, true, StagedDir::Kind::kFolder, above));
    CKPT_TRY(staged.share());
    report_.plan_us = watch.lap_us();
    CKPT_TRY(write(staged.path()));
    report_.write_us = watch.lap_us();
    CKPT_TRY(hash_memory());
    if (request_.verify) CKPT_TRY(verify(staged.path()));
    CKPT_TRY(write_ranks(staged.path()));
    report_.verify_us = watch.lap_us();
    CKPT_TRY(cancel_.check());
    CKPT_TRY(staged.commit(layout_->last_file, true));
    if (request_.advances && !request_.part)
      CKPT_TRY(advance(request_.directory, request_.step, request_.keep, report_.notes));
    report_.sync_us = watch.lap_us();
    return std::move(report_);
  }

 private:
  Result<void> write(const fs::path& folder) {
    io::LocalOutput out(folder, control_.durable);
    std::vector<size_t> data;
    for (size_t i = 0; i < layout_->files.size(); ++i) {
      report_.bytes += layout_->files[i].size;
      if (!layout_->files[i].generate) data.push_back(i);
    }
    CKPT_TRY_ASSIGN(auto odd, write_data_files(*layout_, selection_, out, data, control_));
    for (const tensor::Finding& finding : odd) report_.notes.push_back(finding.text());
    for (const tensor::OutputFile& file : layout_->files) {
      if (file.generate) CKPT_TRY(write_generated_file(file, out, control_));
    }
    return {};
  }

  /// Of every shard that was written. Replicas get that of the one that was.
  Result<void> hash_memory() {
    std::vector<std::pair<const tensor::Tensor*, const tensor::Shard*>> work;
    for (const tensor::Tensor& tensor : catalog_.tensors) {
      for (const tensor::Shard& shard : tensor.shards) {
        places_[{tensor.key, shard.offset, shard.shape}] = work.size();
        work.emplace_back(&tensor, &shard);
      }
    }
    hashes_.resize(work.size());
    for (const auto& [tensor, shard] : work) written_by_.push_back(request_.ranks[shard->where.file].rank);
    std::optional<WorkerPool> pool;
    make_helpers(request_.workers, pool);
    return side_by_side(pool ? &*pool : nullptr, work.size(), [&](size_t i) -> Result<void> {
      const tensor::FileRange& where = work[i].second->where;
      CKPT_TRY_ASSIGN(hashes_[i], hash_of(request_.ranks[where.file], where.offset, where.length, cancel_));
      return {};
    });
  }

  Result<void> verify(const fs::path& folder);
  Result<void> describe_tensors(const Held& held, RankRecord& out);
  Result<void> write_ranks(const fs::path& folder);

  /// Where a rank's tensor is among what is written; nullopt: another node writes it.
  std::optional<size_t> place_of(const LayoutTensor& tensor) const {
    auto found = request_.part ? places_.find({part_key(tensor), tensor::Shape(tensor.shape.size()), tensor.shape})
                               : places_.find({tensor.key, tensor.global_offset, tensor.shape});
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

  using Place = std::tuple<std::string, tensor::Shape, tensor::Shape>;
  const PersistRequest& request_;
  const Cancel& cancel_;
  Throttle throttle_;
  tensor::WriteControl control_;
  tensor::Catalog catalog_;
  tensor::Selection selection_;
  std::unique_ptr<tensor::Layout> layout_;
  std::map<Place, size_t> places_;
  std::vector<Hash128> hashes_;
  std::vector<uint32_t> written_by_;  ///< the rank whose bytes they are
  PersistReport report_;
};

/// A box of a tensor of a checkpoint, hashed in row-major order.
Result<Hash128> hash_region(const tensor::Catalog& catalog, tensor::FileCache& files, const tensor::Tensor& tensor,
                            const tensor::Region& region, const Cancel& cancel, MutableByteSpan copy) {
  tensor::RegionReader reader(catalog, files);
  tensor::RowMajorBlocks blocks(region.shape, tensor::item_size(tensor.dtype), kBlock);
  Xxh3 hash;
  std::vector<std::byte> own;
  uint64_t at = 0;
  while (auto block = blocks.next()) {
    CKPT_TRY(cancel.check());
    const uint64_t size = tensor::element_count(block->shape).value_or(0) * tensor::item_size(tensor.dtype);
    for (size_t axis = 0; axis < block->offset.size(); ++axis) block->offset[axis] += region.offset[axis];
    if (copy.empty()) own.resize(size);
    MutableByteSpan out = copy.empty() ? MutableByteSpan(own) : copy.subspan(at, size);
    CKPT_TRY(reader.read(tensor, *block, out));
    hash.update(out);
    at += size;
  }
  return hash.digest();
}

const tensor::Tensor* find_tensor(const tensor::Catalog& catalog, const std::string& key, const tensor::KeyPath& path) {
  auto by_key = [&](const std::string& wanted) -> const tensor::Tensor* {
    auto at = std::lower_bound(catalog.tensors.begin(), catalog.tensors.end(), wanted,
                               [](const tensor::Tensor& tensor, const std::string& k) { return tensor.key < k; });
    return at != catalog.tensors.end() && at->key == wanted ? &*at : nullptr;
  };
  if (const tensor::Tensor* found = by_key(key)) return found;
  return path.empty() ? nullptr : by_key(tensor::join_path(path, true));
}

Result<void> Persist::verify(const fs::path& folder) {
  CKPT_TRY_ASSIGN(const tensor::Catalog written, formats::open_checkpoint(folder, {}));
  tensor::FileCache files(written);
  std::vector<std::pair<const tensor::Tensor*, const tensor::Shard*>> work;
  for (const tensor::Tensor& tensor : catalog_.tensors) {
    for (const tensor::Shard& shard : tensor.shards) work.emplace_back(&tensor, &shard);
  }
  std::optional<WorkerPool> pool;
  make_helpers(request_.workers, pool);
  return side_by_side(pool ? &*pool : nullptr, work.size(), [&](size_t i) -> Result<void> {
    const auto& [tensor, shard] = work[i];
    const tensor::Tensor* found = find_tensor(written, tensor->key, tensor->path);
    if (found == nullptr || found->dtype != tensor->dtype || found->shape != tensor->shape)
      return fail(Code::kCorrupt, tensor->key, "is not in what was written, or with another dtype or shape");
    CKPT_TRY(tensor::check_readable(written, *found));
    CKPT_TRY_ASSIGN(const Hash128 hash,
                    hash_region(written, files, *found, {shard->offset, shard->shape}, cancel_, {}));
    if (hash == hashes_[i]) return {};
    return fail(Code::kCorrupt, tensor->key, "reads back otherwise than it was in memory");
  });
}

Result<void> Persist::describe_tensors(const Held& held, RankRecord& out) {
  uint64_t kept = 0;
  for (const LayoutTensor& tensor : held.segment->layout().tensors) {
    const std::optional<size_t> place = place_of(tensor);
    if (place && written_by_[*place] == held.rank) {
      out.hashes.push_back(hashes_[*place]);
      continue;
    }
    const uint64_t at = held.segment->buffer_offset(held.buffer) + tensor.offset;
    CKPT_TRY_ASSIGN(const Hash128 own, hash_of(held, at, tensor.bytes, cancel_));
    const bool differs = place && !(own == hashes_[*place]);
    // What another node writes may differ; where its agent has not said so, the leader knows.
    const bool may_differ = !place && !(request_.part && request_.part->owners.hash_of(tensor) == own);
    const bool keep =
        (differs || may_differ) && tensor.bytes <= std::min(kMostOwnTensor, most_own(request_.world) - kept);
    if (keep) {
      std::string bytes(tensor.bytes, 0);
      CKPT_TRY(io::pread_exact(held.segment->fd(), {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, at,
                               "segment"));
      kept += tensor.bytes;
      out.own[static_cast<uint32_t>(out.hashes.size())] = std::move(bytes);
    }
    out.hashes.push_back(differs && !keep ? hashes_[*place] : own);
    // Of what is kept in a part the leader tells.
    if (differs && !(keep && request_.part))
      report_.notes.push_back(note_of_other_bytes(tensor, written_by_[*place], held.rank, keep));
  }
  return {};
}

Result<void> Persist::write_ranks(const fs::path& folder) {
  RanksRecord record{request_.step, request_.world, {}};
  for (const Held& held : request_.ranks) {
    RankRecord rank;
    rank.rank = held.rank;
    rank.layout = held.segment->layout_text();
    CKPT_TRY_ASSIGN(rank.objects, read_objects(held));
    CKPT_TRY(describe_tensors(held, rank));
    record.ranks.push_back(std::move(rank));
  }
  const std::string text = encode_ranks(record);
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(folder / kRanksFile, O_WRONLY | O_CREAT | O_EXCL, 0666));
  CKPT_TRY(io::write_all(fd.get(), as_bytes(text), kRanksFile));
  report_.bytes += text.size();
  if (request_.part) report_.ranks = std::move(record);
  return {};
}

}  // namespace

std::string note_of_other_bytes(const LayoutTensor& tensor, uint32_t writer, uint32_t rank, bool kept) {
  return fmt::format("{} is written as rank {} has it: rank {} has other bytes, which {}", tensor.key, writer, rank,
                     kept ? "are kept for it" : "it does not get back from storage");
}

Result<PersistReport> persist(const PersistRequest& request, const Cancel& cancel) {
  return Persist(request, cancel).run();
}

namespace {

bool is_whole(const BufferLayout& layout) {
  return std::all_of(layout.tensors.begin(), layout.tensors.end(),
                     [](const LayoutTensor& tensor) { return tensor.shape == tensor.global_shape; });
}

Result<void> fill(const Segment& segment, const RankRecord& rank, const fs::path& folder, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(const tensor::Catalog catalog, formats::open_checkpoint(folder, {}));
  tensor::FileCache files(catalog);
  const auto& tensors = segment.layout().tensors;
  if (rank.hashes.size() != tensors.size()) return fail(Code::kCorrupt, kRanksFile, "lacks hashes");
  const uint64_t size = segment.shape().data_bytes;
  void* data = size == 0 ? nullptr
                         : ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(),
                                  static_cast<off_t>(segment.buffer_offset(0)));
  if (data == MAP_FAILED) return sys_error("segment", "cannot map");
  const Mapping mapping(data, size);
  std::optional<WorkerPool> pool;
  make_helpers(0, pool);
  return side_by_side(pool ? &*pool : nullptr, tensors.size(), [&](size_t i) -> Result<void> {
    const LayoutTensor& entry = tensors[i];
    const tensor::Tensor* found = find_tensor(catalog, entry.key, key_path(entry.path));
    if (found == nullptr || tensor::dtype_name(found->dtype) != entry.dtype || found->shape != entry.global_shape)
      return fail(Code::kCorrupt, entry.key, "is not in the checkpoint, or with another dtype or shape");
    CKPT_TRY(tensor::check_readable(catalog, *found));
    if (entry.bytes == 0) return {};
    MutableByteSpan out(mapping.data() + entry.offset, entry.bytes);
    const auto own = rank.own.find(static_cast<uint32_t>(i));
    Hash128 hash;
    if (own != rank.own.end() && own->second.size() == entry.bytes) {
      std::memcpy(out.data(), own->second.data(), entry.bytes);
      hash = xxh3_128(out);
    } else {
      CKPT_TRY_ASSIGN(hash, hash_region(catalog, files, *found, {entry.global_offset, entry.shape}, cancel, out));
    }
    if (hash == rank.hashes[i]) return {};
    return fail(Code::kCorrupt, entry.key, "is damaged: its hash differs from that which was written with it");
  });
}

}  // namespace

Result<std::shared_ptr<Segment>> load_rank(const fs::path& directory, const fs::path& path, uint32_t rank,
                                           uint32_t world, const Cancel& cancel) {
  fs::path folder = path;
  if (path.empty()) {
    CKPT_TRY_ASSIGN(folder, newest_checkpoint(directory));
  }
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(folder / kRanksFile, uint64_t{1} << 33));
  CKPT_TRY_ASSIGN(RanksRecord record, decode_ranks(as_bytes(text)));
  auto at = std::find_if(record.ranks.begin(), record.ranks.end(), [&](const RankRecord& r) { return r.rank == rank; });
  if (at == record.ranks.end() || record.world != world) {
    at = record.ranks.begin();
    CKPT_TRY_ASSIGN(const BufferLayout first, decode_layout(as_bytes(at == record.ranks.end() ? "" : at->layout)));
    const bool alike = std::all_of(at, record.ranks.end(), [&](const RankRecord& r) { return r.layout == at->layout; });
    if (!is_whole(first) || !alike)
      return Error(Code::kMismatch, folder.string(),
                   fmt::format("is of {} ranks, whose tensors are {}; these are {}", record.world,
                               alike ? "sharded" : "not the same", world))
          .with_hint("read it with FlashReader or torch.distributed.checkpoint.load, which cut it anew");
  }
  const uint64_t capacity = std::max<uint64_t>(at->objects.size() * 2, uint64_t{1} << 20);
  const uint64_t needed = at->layout.size() + capacity;
  CKPT_TRY_ASSIGN(BufferLayout layout, decode_layout(as_bytes(at->layout)));
  CKPT_TRY_ASSIGN(auto out,
                  Segment::create(rank, world, at->layout, capacity, buffers_for(layout.data_bytes + needed)));
  out->begin(0);
  CKPT_TRY(fill(*out, *at, folder, cancel));
  CKPT_TRY(io::pwrite_all(out->fd(), as_bytes(at->objects), out->objects_offset(0), "segment"));
  out->commit(0, record.step, at->objects.size());
  return out;
}

}  // namespace ckpt::flash
