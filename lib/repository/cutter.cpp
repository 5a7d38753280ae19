#include "lib/repository/cutter.h"

#include <algorithm>
#include <cstring>

namespace ckpt::repository {

namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

ContentCuts::ContentCuts(const IdBuilder& ids) {
  std::string text = "ckpt store: where to cut ";
  for (unsigned i = 0; i < gear_.size(); ++i) gear_[i] = ids.of(as_bytes(text + static_cast<char>(i))).bits();
}

size_t ContentCuts::next(ByteSpan data, bool last) const {
  const size_t end = std::min(data.size(), kMost);
  constexpr uint64_t kMask = ((uint64_t{1} << kBits) - 1) << (64 - kBits);  // the upper bits have seen the most bytes
  uint64_t hash = 0;
  for (size_t at = std::min(kLeast - 64, end); at < end; ++at) {
    hash = (hash << 1) + gear_[static_cast<uint8_t>(data[at])];
    if (at + 1 >= kLeast && (hash & kMask) == 0) return at + 1;
  }
  return end == kMost || last ? end : 0;
}

size_t Cutter::next(ByteSpan data, bool last) {
  if (cuts_ != nullptr) return data.size() < ContentCuts::kMost && !last ? 0 : cuts_->next(data, last);
  while (!fixed_.empty() && fixed_.front().offset + fixed_.front().length <= offset_) fixed_ = fixed_.subspan(1);
  uint64_t length = kPage - offset_ % kPage;
  if (!fixed_.empty())
    length =
        fixed_.front().offset == offset_ ? fixed_.front().length : std::min(length, fixed_.front().offset - offset_);
  if (length > data.size()) return last ? data.size() : 0;
  return length;
}

Result<void> Cutter::cut(bool last, const Each& each) {
  while (begin_ < rest_.size()) {
    const ByteSpan data = ByteSpan(rest_).subspan(begin_);
    const size_t length = next(data, last);
    if (length == 0) break;
    CKPT_TRY(each(data.first(length)));
    begin_ += length;
    offset_ += length;
  }
  return {};
}

Result<void> Cutter::feed(ByteSpan data, const Each& each) {
  // What was handed out goes when there is more of it than of the rest: each byte moves once.
  if (begin_ >= rest_.size() - begin_) {
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
  }
  // All that it can come to: growing step by step would take twice the memory.
  constexpr size_t kMostRest = 2 * ContentCuts::kMost + (1 << 20);
  if (cuts_ != nullptr && rest_.size() + data.size() > rest_.capacity() && !rest_.empty()) rest_.reserve(kMostRest);
  rest_.insert(rest_.end(), data.begin(), data.end());
  return cut(false, each);
}

Result<void> Cutter::finish(const Each& each) { return cut(true, each); }

bool is_zero(ByteSpan data) {
  return data.empty() || (data[0] == std::byte{0} && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0);
}

}  // namespace ckpt::repository
