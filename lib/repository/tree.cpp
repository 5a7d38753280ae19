#include "lib/repository/tree.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/checked.h"
#include "lib/repository/pack.h"
#include "lib/repository/wire.h"

namespace ckpt::repository {

namespace {

constexpr std::string_view kTreeMagic = "CKPTTREE";
constexpr uint32_t kTreeVersion = 1;
constexpr uint8_t kZeros = 0, kChunks = 1;
constexpr size_t kRunHeader = 9, kSegmentRecord = 44, kEntryHeader = 24;
constexpr size_t kMaxPath = 4095, kMaxPart = 255;

template <class T>
T at(const std::string& text, size_t position) {
  T out;
  std::memcpy(&out, text.data() + position, sizeof out);
  return out;
}

template <class T>
void set_at(std::string& text, size_t position, T value) {
  std::memcpy(text.data() + position, &value, sizeof value);
}

}  // namespace

void ListWriter::add_zeros(uint64_t length) {
  if (length == 0) return;
  covered_ += length;
  if (run_ < out_.size() && out_[run_] == kZeros) return set_at(out_, run_ + 1, at<uint64_t>(out_, run_ + 1) + length);
  run_ = out_.size();
  append(out_, kZeros);
  append(out_, length);
}

void ListWriter::add(const Id& id, uint32_t length) {
  covered_ += length;
  if (run_ < out_.size() && out_[run_] == kChunks && at<uint32_t>(out_, run_ + 1) == length) {
    set_at(out_, run_ + 5, at<uint32_t>(out_, run_ + 5) + 1);
  } else {
    run_ = out_.size();
    append(out_, kChunks);
    append(out_, length);
    append(out_, uint32_t{1});
  }
  append_id(out_, id);
}

std::string ListWriter::take() {
  run_ = 0, covered_ = 0;
  return std::exchange(out_, {});
}

Result<void> read_list(ByteSpan list, uint64_t covered, const std::string& subject,
                       const std::function<Result<void>(const Extent&)>& each) {
  auto damaged = [&] { return fail(Code::kCorrupt, subject, "has a list of chunks that cannot be"); };
  ByteReader in(list);
  uint64_t left = covered;
  while (in.remaining() != 0) {
    const uint8_t kind = *in.read<uint8_t>();
    if (kind == kZeros) {
      const auto length = in.read<uint64_t>();
      if (!length || *length == 0 || *length > left) return damaged();
      left -= *length;
      CKPT_TRY(each({*length, {}}));
      continue;
    }
    const auto length = in.read<uint32_t>(), count = in.read<uint32_t>();
    if (kind != kChunks || !count || *count == 0 || *length == 0 || *length > kMaxChunk) return damaged();
    if (uint64_t{*count} * sizeof(Id) > in.remaining() || uint64_t{*length} * *count > left) return damaged();
    left -= uint64_t{*length} * *count;
    for (uint32_t i = 0; i < *count; ++i) {
      const Id id = *in.read<Id>();
      if (id.empty()) return damaged();
      CKPT_TRY(each({*length, id}));
    }
  }
  return left == 0 ? Result<void>() : damaged();
}

std::string encode_tree(const std::vector<Entry>& entries) {
  std::string out(kTreeMagic);
  append(out, kTreeVersion);
  append(out, uint32_t{0});
  append(out, uint64_t{entries.size()});
  for (const Entry& entry : entries) {
    append(out, static_cast<uint8_t>(entry.type));
    append(out, uint8_t{0});
    append(out, entry.mode);
    append(out, static_cast<uint32_t>(entry.path.size()));
    append(out, entry.mtime_ns);
    append(out, entry.size);
    out += entry.path;
    if (entry.type == Entry::Type::kLink) out += entry.target;
    if (entry.type != Entry::Type::kFile) continue;
    append(out, static_cast<uint32_t>(entry.segments.size()));
    if (entry.segments.empty()) {
      append(out, static_cast<uint32_t>(entry.list.size()));
      out += entry.list;
    }
    for (const Segment& segment : entry.segments) {
      append(out, segment.covered);
      append(out, segment.length);
      append_id(out, segment.id);
    }
  }
  return out;
}

bool is_inner_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPath || path.find('\0') != std::string_view::npos) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPart) return false;
    begin = end + 1;
  }
  return true;
}

bool link_stays_inside(std::string_view path, std::string_view target) {
  if (target.empty() || target.size() > kMaxPath || target[0] == '/' || target.find('\0') != std::string_view::npos)
    return false;
  auto depth = static_cast<ptrdiff_t>(std::count(path.begin(), path.end(), '/'));
  bool down = false;  // ".." behind a name may lead elsewhere: that name can be a link
  for (size_t begin = 0; begin <= target.size();) {
    const size_t end = std::min(target.find('/', begin), target.size());
    const std::string_view part = target.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == ".." && (down || --depth < 0)) return false;
    down = down || part != "..";
  }
  return true;
}

namespace {

class TreeParser {
 public:
  TreeParser(ByteSpan bytes, const std::string& subject) : in_(bytes), subject_(subject) {}

  Result<std::vector<Entry>> run() {
    const auto magic = in_.take(kTreeMagic.size());
    const auto version = in_.read<uint32_t>(), reserved = in_.read<uint32_t>();
    const auto count = in_.read<uint64_t>();
    if (!count || *reserved != 0 || as_text(*magic) != kTreeMagic) return damaged("is no tree");
    if (*version != kTreeVersion)
      return fail(Code::kUnsupported, subject_, "is of a version that this ckpt does not know");
    if (*count > kMaxEntries || *count > in_.remaining() / kEntryHeader)
      return damaged("has a number of entries that cannot be");
    std::vector<Entry> out;
    out.reserve(*count);
    for (uint64_t i = 0; i < *count; ++i) {
      Entry entry;
      CKPT_TRY(read(entry));
      CKPT_TRY(place(entry, i == 0));
      out.push_back(std::move(entry));
    }
    if (in_.remaining() != 0) return damaged("has more than its entries");
    return out;
  }

 private:
  Unexpected damaged(const std::string& what) const { return fail(Code::kCorrupt, subject_, what); }

  Result<void> read(Entry& out) {
    const auto type = in_.read<uint8_t>(), reserved = in_.read<uint8_t>();
    const auto mode = in_.read<uint16_t>();
    const auto path = in_.read<uint32_t>();
    const auto mtime = in_.read<int64_t>();
    const auto size = in_.read<uint64_t>();
    const auto name = size ? in_.take(*path) : std::nullopt;
    if (!name || *reserved != 0 || *type > 2 || *mode > 0777) return damaged("has an entry that cannot be");
    out.type = static_cast<Entry::Type>(*type), out.mode = *mode, out.mtime_ns = *mtime, out.size = *size;
    out.path = as_text(*name);
    if (out.type == Entry::Type::kLink) {
      const auto target = in_.take(*size);
      if (!target || !link_stays_inside(out.path, as_text(*target))) return damaged("has a link that leads elsewhere");
      out.target = as_text(*target);
    }
    return out.type == Entry::Type::kFile ? read_content(out) : Result<void>();
  }

  Result<void> read_content(Entry& out) {
    if (out.size > INT64_MAX) return damaged("has a file that is too large");
    const auto segments = in_.read<uint32_t>();
    if (!segments) return damaged("is cut short");
    if (*segments == 0) {
      const auto length = in_.read<uint32_t>();
      const auto list = length ? in_.take(*length) : std::nullopt;
      if (!list) return damaged("is cut short");
      out.list = as_text(*list);
      return {};
    }
    if (*segments > in_.remaining() / kSegmentRecord) return damaged("is cut short");
    uint64_t sum = 0;
    for (uint32_t i = 0; i < *segments; ++i) {
      Segment segment;
      segment.covered = *in_.read<uint64_t>(), segment.length = *in_.read<uint32_t>(), segment.id = *in_.read<Id>();
      const auto next = checked_add(sum, segment.covered);
      if (!next || segment.covered == 0 || segment.length == 0 || segment.length > kMaxChunk || segment.id.empty())
        return damaged("has a segment that cannot be");
      sum = *next;
      out.segments.push_back(segment);
    }
    return sum == out.size ? Result<void>() : damaged("has segments that are not as long as their file");
  }

  /// Where it lies among those before.
  Result<void> place(const Entry& entry, bool first) {
    if (entry.path.empty() && first && entry.type == Entry::Type::kFolder) return {};
    if (!is_inner_path(entry.path)) return damaged("has a path that leads elsewhere");
    const size_t slash = entry.path.rfind('/');
    if (slash != std::string::npos) {
      const auto folder = types_.find(entry.path.substr(0, slash));
      if (folder == types_.end() || folder->second != Entry::Type::kFolder)
        return damaged("has a path in what is no folder before it");
    }
    if (!types_.emplace(entry.path, entry.type).second) return damaged("has a path twice");
    return {};
  }

  ByteReader in_;
  const std::string& subject_;
  std::map<std::string, Entry::Type> types_;  // no hash: the paths are a stranger's
};

}  // namespace

Result<std::vector<Entry>> parse_tree(ByteSpan bytes, const std::string& subject) {
  return TreeParser(bytes, subject).run();
}

}  // namespace ckpt::repository
