#include "lib/migrate/later_pages.h"

#include <fcntl.h>

#include <algorithm>

#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/store/pagemap.h"

namespace ckpt::migrate {

bool is_pages_file(const std::string& name) {
  const std::string first = store::pages_file_name(0);
  return name == first || name.starts_with(first + ".");
}

Result<void> LaterPages::announce(const std::filesystem::path& path, Link& link) {
  File file;
  file.name = path.filename().string();
  CKPT_TRY_ASSIGN(file.fd, io::open_file(path, O_RDONLY));
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(file.fd.get(), path.string()));
  file.size = static_cast<uint64_t>(st.st_size);
  file.sent.resize((file.size + kUnitSize - 1) / kUnitSize);
  CKPT_TRY(link.send(Kind::kLater, {}, file.name, file.size));
  files_.push_back(std::move(file));
  return {};
}

Result<void> LaterPages::send_wanted(const Frame& frame, Link& link) {
  const auto file = std::find_if(files_.begin(), files_.end(), [&](const File& one) { return one.name == frame.name; });
  if (file == files_.end() || frame.offset % kUnitSize != 0 || frame.offset >= file->size || !frame.payload.empty())
    return fail(Code::kCorrupt, "the receiver", "wants what was not announced");
  return send({static_cast<size_t>(file - files_.begin()), frame.offset / kUnitSize}, link);
}

Result<void> LaterPages::send(const Unit& unit, Link& link) {
  File& file = files_[unit.file];
  if (file.sent[unit.number]) return {};
  file.sent[unit.number] = true;
  const uint64_t offset = unit.number * kUnitSize;
  std::vector<std::byte> bytes(std::min(kUnitSize, file.size - offset));
  CKPT_TRY(io::pread_exact(file.fd.get(), bytes, offset, file.name));
  const std::string digest = to_hex(xxh3_128(bytes));
  const ByteSpan end = as_bytes(digest);
  bytes.insert(bytes.end(), end.begin(), end.end());
  return link.send(Kind::kData, bytes, file.name, offset);
}

Result<bool> LaterPages::send_next(Link& link) {
  for (; next_.file < files_.size(); ++next_.file, next_.number = 0) {
    const File& file = files_[next_.file];
    while (next_.number < file.sent.size() && file.sent[next_.number]) ++next_.number;
    if (next_.number == file.sent.size()) continue;
    CKPT_TRY(send(next_, link));
    return true;
  }
  return false;
}

}  // namespace ckpt::migrate
