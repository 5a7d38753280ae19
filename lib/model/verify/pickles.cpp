#include "lib/model/verify/pickles.h"

#include <fcntl.h>
#include <zlib.h>

#include <algorithm>

#include "lib/base/io.h"

namespace ckpt::model {

namespace {

constexpr uint64_t kMaxPickle = 256 << 20;
constexpr uint64_t kMaxForeign = 64 << 20;  ///< read of a file that is no checkpoint
constexpr size_t kMaxNames = 100'000;       ///< different ones, of all pickles
constexpr int kMaxRow = 64;                 ///< pickles in a row

bool ends_in_pkl(std::string_view name) {
  std::string tail(name.substr(name.size() - std::min<size_t>(name.size(), 4)));
  std::transform(tail.begin(), tail.end(), tail.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return tail == ".pkl";
}

}  // namespace

std::string import_text(const std::string& name, const pickle::Classification& classification, bool nested) {
  const std::string_view start = classification.why.substr(0, 3);
  return std::string("loading it imports ") + (nested ? "(from a pickle within the pickle) " : "") + name + ", which " +
         (start == "the" || start == "its" ? "is dangerous: " : "") + std::string(classification.why);
}

void PickleScanner::add(const pickle::Import& import, const std::string& key, const std::string& file,
                        uint64_t offset) {
  {
    std::lock_guard lock(mutex_);
    if (imports_.size() >= kMaxNames && imports_.count(import.name) == 0) return;
    auto [it, added] = imports_.try_emplace(import.name, ImportedName{import.classification, file, key, offset, 0});
    ImportedName& name = it->second;
    ++name.places;
    if (std::tie(file, offset) < std::tie(name.file, name.offset))
      name.file = file, name.key = key, name.offset = offset;
    name.classification =
        std::max(name.classification, import.classification,
                 [](const auto& a, const auto& b) { return a.verdict < b.verdict; });
  }
  if (import.classification.verdict == pickle::Verdict::kSafe) return;
  const bool dangerous = import.classification.verdict == pickle::Verdict::kDangerous;
  note_({key, file, offset, import_text(import.name, import.classification, import.nested),
         dangerous ? trusted_ : !strict_});
}

uint64_t PickleScanner::scan(ByteSpan bytes, const std::string& key, const std::string& file, uint64_t offset,
                             bool expect_end) {
  const pickle::Scan scan = pickle::scan(bytes);
  for (const pickle::Import& import : scan.imports) add(import, key, file, offset + import.offset);
  if (expect_end && !scan.stopped.empty()) {
    note_({key, file, offset + scan.stopped_at, "the pickle cannot be scanned to its end: " + scan.stopped, false});
  }
  return scan.consumed;
}

bool PickleScanner::scan_row(ByteSpan bytes, const std::string& key, const std::string& file, uint64_t base) {
  const pickle::Scan first = pickle::scan(bytes);
  // Bytes that happen to begin with opcodes are no pickle, unless what they name is dangerous. A number of an extension
  // is no name: any byte may look like one, the first of a length too.
  const bool dangerous = std::any_of(first.imports.begin(), first.imports.end(), [](const auto& import) {
    return import.classification.verdict == pickle::Verdict::kDangerous && import.name != "copyreg.<extension>";
  });
  if (!first.stopped.empty() && !dangerous && !pickle::looks_like_pickle(bytes)) return false;
  uint64_t at = scan(bytes, key, file, base, true);
  // What follows is another pickle only where it begins like one.
  for (int i = 0; first.stopped.empty() && i < kMaxRow && pickle::looks_like_pickle(bytes.subspan(at)); ++i) {
    const uint64_t length = scan(bytes.subspan(at), key, file, base + at, false);
    if (length == 0) break;
    at += length;
  }
  return true;
}

Result<void> PickleScanner::scan_file(const zip::ByteSource& source, const std::string& key, const std::string& file,
                                       uint64_t base) {
  auto archive = zip::read_archive(source);
  if (!archive) {
    std::vector<std::byte> head(std::min(source.size(), kMaxForeign));
    CKPT_TRY(source.read(0, head));
    if (pickle::looks_like_pickle(head)) scan_row(head, key, file, base);
    return {};
  }
  for (const zip::Record& record : archive->records) {
    std::byte first[3];
    const bool named = ends_in_pkl(record.name);
    if (!named) {
      // Storages are data, whatever they begin with.
      if (record.size < sizeof first || record.name.rfind(archive->top + "/data/", 0) == 0) continue;
      CKPT_TRY(source.read(record.offset, first));
      if (!pickle::looks_like_pickle(first)) continue;
    }
    CKPT_TRY_ASSIGN(auto bytes, zip::read_record(source, record, kMaxPickle));
    scan(bytes, key, file, base + record.offset, true);
  }
  return {};
}

std::map<std::string, ImportedName> PickleScanner::take() { return std::move(imports_); }

namespace {

/// A member of a zip as its local header has it: what a reader that does not care for the directory would find.
std::vector<std::byte> local_member(ByteSpan file, size_t header, uint64_t& data) {
  auto u16 = [&](size_t at) {
    return static_cast<size_t>(file[header + at]) | static_cast<size_t>(file[header + at + 1]) << 8;
  };
  data = header + 30 + u16(26) + u16(28);
  if (data >= file.size()) return {};
  const ByteSpan rest = file.subspan(data);
  if (u16(8) == 0) return {rest.begin(), rest.end()};
  if (u16(8) != 8) return {};
  std::vector<std::byte> out(std::min<uint64_t>(kMaxForeign, 1 << 20));
  z_stream stream{};
  if (inflateInit2(&stream, -15) != Z_OK) return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest.data()));
  stream.avail_in = static_cast<uInt>(rest.size());
  for (int state = Z_OK; state == Z_OK && stream.total_out < kMaxForeign;) {
    if (stream.total_out == out.size()) out.resize(std::min<uint64_t>(kMaxForeign, out.size() * 2));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + stream.total_out);
    stream.avail_out = static_cast<uInt>(out.size() - stream.total_out);
    state = inflate(&stream, Z_NO_FLUSH);
    if (stream.avail_in == 0 && state == Z_OK && stream.avail_out != 0) break;
  }
  out.resize(stream.total_out);
  inflateEnd(&stream);
  return out;
}

}  // namespace

std::optional<VerifyReport> scan_file(const std::filesystem::path& path, bool strict) {
  constexpr size_t kMaxMembers = 1000;
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  if (!fd) return std::nullopt;
  auto st = io::stat_fd(fd->get(), path.string());
  if (!st || !S_ISREG(st->st_mode)) return std::nullopt;
  std::vector<std::byte> bytes(std::min(static_cast<uint64_t>(st->st_size), kMaxForeign));
  if (!io::pread_exact(fd->get(), bytes, 0, path.string())) return std::nullopt;
  const std::string name = path.filename().string();
  VerifyReport out;
  out.bytes_read = bytes.size();
  PickleScanner scanner(strict, false, [&](tensor::Finding finding) { out.findings.push_back(std::move(finding)); });
  bool any = scanner.scan_row(bytes, "", name, 0);
  const std::string_view text = as_text(bytes);
  size_t members = 0;
  for (size_t at = text.find("PK\x03\x04");
       at != std::string_view::npos && at + 30 < text.size() && members < kMaxMembers;
       at = text.find("PK\x03\x04", at + 4), ++members) {
    uint64_t data = 0;
    const std::vector<std::byte> member = local_member(bytes, at, data);
    if (!pickle::looks_like_pickle(member)) continue;
    any = true;
    scanner.scan(member, "", name, data, false);
  }
  if (!any) return std::nullopt;
  out.imports = scanner.take();
  return out;
}

}  // namespace ckpt::model
