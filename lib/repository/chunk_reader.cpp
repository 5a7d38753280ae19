#include "lib/repository/chunk_reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>

#include "lib/base/checked.h"
#include "lib/base/worker_pool.h"

namespace ckpt::repository {

namespace {

struct Decompressor {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  ~Decompressor() { ZSTD_freeDCtx(context); }
};

/// What memory a buffer takes: large ones come in whole huge pages.
size_t cost(const std::vector<std::byte>& buffer) {
  constexpr size_t kHugePage = 2 << 20;
  const size_t size = buffer.capacity();
  return size < kHugePage / 2 ? size : (size + kHugePage - 1) / kHugePage * kHugePage;
}

/// Makes room for one more in `kept`, of which the last are given up. The memory of one of them, for reuse: what is
/// returned and taken anew for every chunk stays with the allocator, many times over.
template <class Kept>
std::vector<std::byte> make_room(std::list<Kept>& kept, size_t& used, size_t most, size_t wanted) {
  std::vector<std::byte> out;
  while (!kept.empty() && used + wanted > most) {
    used -= cost(kept.back().bytes);
    if (kept.back().bytes.capacity() > out.capacity()) out = std::move(kept.back().bytes);
    kept.pop_back();
  }
  return out;
}

}  // namespace

Result<void> unpack_group(const Group& group, ByteSpan stored, const std::string& subject,
                          std::vector<std::byte>& out) {
  out.resize(group.length);
  if (group.codec == Codec::kRaw) {
    std::memcpy(out.data(), stored.data(), stored.size());
    return {};
  }
  thread_local Decompressor decompressor;
  if (decompressor.context == nullptr) return fail(Code::kNoRoom, subject, "no memory to decompress");
  const size_t n = ZSTD_decompressDCtx(decompressor.context, out.data(), out.size(), stored.data(), stored.size());
  if (n != out.size()) return fail(Code::kCorrupt, subject, "has compressed bytes that are damaged");
  return {};
}

ChunkReader::ChunkReader(Repository& repository)
    : repository_(repository),
      most_spans_bytes_(std::max(kFewest * repository.backend().good_read(), kReads / WorkerPool::threads_for(0))) {}

Result<ByteSpan> ChunkReader::fetch(uint32_t pack, const Group& group) {
  for (auto it = spans_.begin(); it != spans_.end(); ++it) {
    if (it->pack != pack || group.offset < it->offset || group.offset + group.stored > it->offset + it->bytes.size())
      continue;
    spans_.splice(spans_.begin(), spans_, it);
    return ByteSpan(it->bytes).subspan(group.offset - it->offset, group.stored);
  }
  const KnownPack& known = repository_.index().packs()[pack];
  const Group& last = known.table.groups.back();
  const uint64_t wanted = std::max<uint64_t>(group.stored, repository_.backend().good_read());
  const uint64_t length = std::min(wanted, last.offset + last.stored - group.offset);
  std::vector<std::byte> bytes = make_room(spans_, spans_bytes_, most_spans_bytes_, length);
  bytes.resize(length);
  CKPT_TRY(repository_.backend().read(in_folder(kPacks, known.name), known.size, group.offset, bytes));
  spans_.emplace_front();
  Span& span = spans_.front();
  fetched_ += length, spans_bytes_ += cost(bytes);
  span.pack = pack, span.offset = group.offset, span.bytes = std::move(bytes);
  return ByteSpan(span.bytes).first(group.stored);
}

Result<ByteSpan> ChunkReader::read_at(const ChunkPlace& place) {
  const KnownPack& known = repository_.index().packs()[place.pack];
  const Group& group = known.table.group_of(place.chunk);
  auto found = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Unpacked& one) { return one.pack == place.pack && one.first == group.first; });
  if (found == groups_.end()) {
    CKPT_TRY_ASSIGN(const ByteSpan stored, fetch(place.pack, group));
    std::vector<std::byte> bytes = make_room(groups_, unpacked_, kUnpacked, group.length);
    CKPT_TRY(unpack_group(group, stored, repository_.backend().subject(in_folder(kPacks, known.name)), bytes));
    unpacked_ += cost(bytes);
    groups_.push_front({place.pack, group.first, std::move(bytes)});
  } else {
    groups_.splice(groups_.begin(), groups_, found);
  }
  return ByteSpan(groups_.front().bytes)
      .subspan(known.table.offset_in_group(group, place.chunk), known.table.lengths[place.chunk]);
}

Result<ByteSpan> ChunkReader::read(const Id& id, uint32_t length, const std::string& subject) {
  Error why(Code::kCorrupt, subject, "needs a chunk that no pack of the store has: " + to_hex(id).substr(0, 16));
  std::optional<ByteSpan> out;
  bool stop = false;
  repository_.index().find_all(id, [&](const ChunkPlace& place) {
    auto content = read_at(place);
    const std::string pack = repository_.index().packs()[place.pack].name;
    if (!content) {
      stop = content.error().code != Code::kCorrupt && content.error().code != Code::kNotFound;
      why = std::move(content).error();
      return !stop;
    }
    if (content->size() == length && repository_.ids().of(*content) == id)
      out = *content;
    else
      why = Error(Code::kCorrupt, repository_.backend().subject(in_folder(kPacks, pack)),
                  "has a chunk that is damaged: " + to_hex(id).substr(0, 16));
    return !out;
  });
  if (out) return *out;
  if (why.code == Code::kCorrupt && why.subject != subject) why.causes.push_back("needed by " + subject);
  return why;
}

std::unique_ptr<ChunkReader> ChunkReaders::take() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<ChunkReader>(repository_);
  std::unique_ptr<ChunkReader> out = std::move(idle_.back());
  idle_.pop_back();
  return out;
}

uint64_t ChunkReaders::fetched() const {
  uint64_t sum = 0;
  for (const auto& reader : idle_) sum += reader->fetched();
  return sum;
}

bool is_moved(const Error& error) {
  return error.code == Code::kNotFound && error.subject.find(in_folder(kPacks, "")) != std::string::npos;
}

namespace {

/// What a name says of itself is shown, added up and relied on before any of it is made.
Result<void> check_sums(const Ref& ref, const std::vector<Entry>& entries, const std::string& subject) {
  uint64_t bytes = 0, files = 0;
  for (const Entry& entry : entries) {
    if (entry.type != Entry::Type::kFile) continue;
    const auto sum = checked_add(bytes, entry.size);
    if (!sum) return fail(Code::kCorrupt, subject, "has files that are too large together");
    bytes = *sum, ++files;
  }
  if (bytes == ref.bytes && files == ref.files) return {};
  return fail(
      Code::kCorrupt, subject,
      fmt::format("says that it has {} bytes in {} files, and has {} in {}", ref.bytes, ref.files, bytes, files));
}

}  // namespace

Result<std::vector<Entry>> read_tree(const Ref& ref, ChunkReader& reader, const std::string& subject) {
  std::vector<std::byte> tree;
  CKPT_TRY(read_list(as_bytes(ref.tree), ref.tree_bytes, subject, [&](const Extent& extent) -> Result<void> {
    if (extent.id.empty()) return fail(Code::kCorrupt, subject, "has a tree that cannot be");
    CKPT_TRY_ASSIGN(const ByteSpan piece, reader.read(extent.id, static_cast<uint32_t>(extent.length), subject));
    tree.insert(tree.end(), piece.begin(), piece.end());
    return {};
  }));
  CKPT_TRY_ASSIGN(std::vector<Entry> out, parse_tree(tree, subject));
  CKPT_TRY(check_sums(ref, out, subject));
  return out;
}

Result<void> for_each_chunk(const Entry& entry, ChunkReader& reader, const std::string& subject,
                            const std::function<Result<void>(const Extent&, bool)>& each) {
  auto chunk = [&](const Extent& extent) { return each(extent, false); };
  if (entry.segments.empty()) return read_list(as_bytes(entry.list), entry.size, subject, chunk);
  for (const Segment& segment : entry.segments) {
    CKPT_TRY(each({segment.length, segment.id}, true));
    CKPT_TRY_ASSIGN(const ByteSpan list, reader.read(segment.id, segment.length, subject));
    const std::vector<std::byte> copy(list.begin(), list.end());  // `each` may read on
    CKPT_TRY(read_list(copy, segment.covered, subject, chunk));
  }
  return {};
}

}  // namespace ckpt::repository
