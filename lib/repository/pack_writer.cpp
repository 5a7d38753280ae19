#include "lib/repository/pack_writer.h"

#include <zstd.h>

#include <algorithm>

#include "lib/base/hex.h"

namespace ckpt::repository {

namespace {

constexpr size_t kGroup = 128 << 10;      ///< of small chunks
constexpr size_t kLargeChunk = 64 << 10;  ///< becomes a group by itself
constexpr size_t kSample = 16 << 10;
constexpr uint64_t kIndexObject = 32 << 20;  ///< large enough
constexpr int kLevel = 1;

/// Less is not worth the time of every reader.
bool pays(size_t compressed, size_t size) { return compressed <= size - size / 8; }

}  // namespace

struct PackWriter::Stream::Compressor {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  std::vector<std::byte> out;
  ~Compressor() { ZSTD_freeCCtx(context); }

  size_t compress(ByteSpan data) {
    out.resize(std::max(out.size(), ZSTD_compressBound(data.size())));
    const size_t n = ZSTD_compressCCtx(context, out.data(), out.size(), data.data(), data.size(), kLevel);
    return ZSTD_isError(n) ? data.size() : n;
  }

  /// Empty: it does not pay. A piece from the middle tells of what is long.
  ByteSpan try_compress(ByteSpan data) {
    if (context == nullptr) return {};
    if (data.size() > 4 * kSample) {
      const ByteSpan sample = data.subspan(data.size() / 2, kSample);
      if (const size_t n = compress(sample); n > kSample - kSample / 16) return {};
    }
    const size_t n = compress(data);
    return pays(n, data.size()) ? ByteSpan(out).first(n) : ByteSpan();
  }
};

PackWriter::Stream::Stream(PackWriter& writer) : writer_(writer), compressor_(std::make_unique<Compressor>()) {}
PackWriter::Stream::~Stream() = default;

Result<void> PackWriter::Stream::add(const Id& id, ByteSpan content) {
  CKPT_ASSERT(!content.empty() && content.size() <= kMaxChunk);
  if (!content_.empty() && (content.size() >= kLargeChunk || content_.size() + content.size() > kGroup))
    CKPT_TRY(flush());
  content_.insert(content_.end(), content.begin(), content.end());
  chunks_.emplace_back(id, static_cast<uint32_t>(content.size()));
  return content_.size() >= kGroup || content.size() >= kLargeChunk ? flush() : Result<void>();
}

Result<void> PackWriter::Stream::flush() {
  if (content_.empty()) return {};
  Group group;
  const ByteSpan frame = compressor_->try_compress(content_);
  group.codec = frame.empty() ? Codec::kRaw : Codec::kZstd;
  group.length = static_cast<uint32_t>(content_.size()), group.count = static_cast<uint32_t>(chunks_.size());
  CKPT_TRY(writer_.append(frame.empty() ? ByteSpan(content_) : frame, group, chunks_));
  content_.clear(), chunks_.clear();
  return {};
}

PackWriter::PackWriter(Backend& backend, std::string push)
    : backend_(backend), push_(std::move(push)), pool_(std::make_unique<WorkerPool>(kStoring, 1)) {}

PackWriter::~PackWriter() {
  pool_.reset();
  if (kept_) return;
  for (const std::string& name : names_) (void)backend_.remove(in_folder(kPacks, name));
}

Result<void> PackWriter::append(ByteSpan stored, const Group& group,
                                const std::vector<std::pair<Id, uint32_t>>& chunks) {
  std::lock_guard lock(mutex_);
  if (pack_.bytes.empty()) {
    std::lock_guard spare_lock(spare_mutex_);
    if (!spare_.empty()) pack_.bytes = std::move(spare_.back()), spare_.pop_back();
    pack_.bytes.reserve(kPackSize + 2 * kMaxChunk);
    pack_.bytes += pack_header();
  }
  Group placed = group;
  placed.offset = pack_.bytes.size(), placed.stored = static_cast<uint32_t>(stored.size());
  placed.first = static_cast<uint32_t>(pack_.table.ids.size());
  pack_.bytes += as_text(stored);
  pack_.table.groups.push_back(placed);
  for (const auto& [id, length] : chunks) {
    pack_.table.ids.push_back(id);
    pack_.table.lengths.push_back(length);
  }
  chunks_ += chunks.size(), bytes_ += group.length;
  return pack_.bytes.size() >= kPackSize ? seal() : Result<void>();
}

/// With the lock held: whoever has more chunks waits until a pack can be handed over.
Result<void> PackWriter::seal() {
  const std::string name = pack_name(push_, number_++), table = encode_table(pack_.table);
  std::string bytes = std::move(pack_.bytes);
  bytes += table, bytes += pack_trailer(table);
  stored_ += bytes.size();
  packs_.push_back({name, bytes.size(), std::exchange(pack_.table, {})});
  names_.push_back(name);
  pack_ = {};
  auto job = [this, name, bytes = std::make_shared<std::string>(std::move(bytes))] {
    Result<void> done = backend_.put(in_folder(kPacks, name), as_bytes(*bytes), true);
    bytes->clear();
    std::lock_guard lock(spare_mutex_);
    spare_.push_back(std::move(*bytes));
    return done;
  };
  if (!pool_->submit(std::move(job))) return pool_->finish();
  return {};
}

Result<void> PackWriter::finish() {
  std::lock_guard lock(mutex_);
  if (!pack_.bytes.empty()) CKPT_TRY(seal());
  CKPT_TRY(pool_->finish());
  std::vector<const IndexedPack*> all;
  for (const IndexedPack& pack : packs_) all.push_back(&pack);
  // From here on the index may be seen, whether or not this succeeds.
  if (!all.empty()) kept_ = true;
  CKPT_TRY_ASSIGN(const uint64_t indexed, put_index(backend_, all));
  stored_ += indexed;
  return {};
}

Result<uint64_t> put_index(Backend& backend, const std::vector<const IndexedPack*>& packs) {
  IndexWriter writer;
  uint64_t stored = 0;
  auto put = [&]() -> Result<void> {
    CKPT_TRY_ASSIGN(const std::string name, random_id());
    const std::string bytes = writer.finish();
    stored += bytes.size();
    return backend.put(in_folder(kIndex, name), as_bytes(bytes), true);
  };
  for (const IndexedPack* pack : packs) {
    writer.add(pack->name, pack->size, encode_table(pack->table));
    if (writer.size() >= kIndexObject) CKPT_TRY(put());
  }
  if (!writer.empty()) CKPT_TRY(put());
  return stored;
}

}  // namespace ckpt::repository
