#include "lib/parity/file_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <set>

#include "lib/base/checked.h"
#include "lib/base/clock.h"
#include "lib/base/copy.h"
#include "lib/base/io.h"

namespace ckpt::parity {

namespace fs = std::filesystem;

namespace {

// The table, little-endian: bytes of the table (8), entries (8); then of each entry type (1), mode (4), uid (4), gid
// (4), mtime (8, nanoseconds), size (8), lengths of name and target (4 each), the two. Padded with zeros to kAlignment.
constexpr uint64_t kHead = 16, kEntry = 37, kAlignment = 64;
constexpr size_t kLongestName = 64 << 10, kMostOpen = 4;

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t table_bytes(const std::vector<FileEntry>& entries) {
  uint64_t size = kHead;
  for (const FileEntry& entry : entries) size += kEntry + entry.name.size() + entry.target.size();
  return align_up(size, kAlignment);
}

/// What is after the mode's type and permissions: as a time of the entry.
int64_t mtime_of(const struct stat& st) {
  return static_cast<int64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec;
}

Result<FileEntry> describe(const fs::path& path, const std::string& name) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return sys_error(path.string(), "cannot be looked at");
  FileEntry out;
  out.mode = st.st_mode & 07777, out.uid = st.st_uid, out.gid = st.st_gid, out.mtime_ns = mtime_of(st);
  out.name = name;
  if (name.size() > kLongestName) return fail(Code::kUnsupported, path.string(), "has too long a name");
  if (S_ISDIR(st.st_mode)) {
    out.type = FileEntry::Type::kFolder;
  } else if (S_ISREG(st.st_mode)) {
    out.size = static_cast<uint64_t>(st.st_size);
  } else if (S_ISLNK(st.st_mode)) {
    std::error_code ec;
    out.type = FileEntry::Type::kLink;
    out.target = fs::read_symlink(path, ec).string();
    if (ec) return sys_error(ec.value(), path.string(), "cannot be read as a link");
  } else {
    return fail(Code::kUnsupported, path.string(), "is neither a file, a folder nor a link: it cannot be protected");
  }
  return out;
}

/// A path of our own folder, without a step out of it.
bool stays_inside(std::string_view name) {
  if (name.empty() || name.size() > kLongestName || name.find('\0') != name.npos) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > NAME_MAX) return false;
    at = end + 1;
  }
  return true;
}

std::optional<FileEntry> read_entry(ByteReader& in) {
  FileEntry out;
  const auto type = in.read<uint8_t>();
  const auto mode = in.read<uint32_t>(), uid = in.read<uint32_t>(), gid = in.read<uint32_t>();
  const auto mtime = in.read<int64_t>();
  const auto size = in.read<uint64_t>();
  const auto name_length = in.read<uint32_t>(), target_length = in.read<uint32_t>();
  if (!type || !mode || !uid || !gid || !mtime || !size || !name_length || !target_length) return std::nullopt;
  const auto name = in.take(*name_length);
  const auto target = in.take(*target_length);
  if (!name || !target || *type < 1 || *type > 3 || *mode > 07777) return std::nullopt;
  out.type = static_cast<FileEntry::Type>(*type);
  out.mode = *mode, out.uid = *uid, out.gid = *gid, out.mtime_ns = *mtime, out.size = *size;
  out.name = as_text(*name), out.target = as_text(*target);
  const bool is_link = out.type == FileEntry::Type::kLink;
  if (is_link == out.target.empty() || out.target.find('\0') != std::string::npos) return std::nullopt;
  if (out.type != FileEntry::Type::kFile && out.size != 0) return std::nullopt;
  return out;
}

}  // namespace

std::string FileTable::encode() const {
  std::string out;
  const uint64_t size = table_bytes(entries);
  out.reserve(size);
  append(out, size);
  append(out, uint64_t{entries.size()});
  for (const FileEntry& entry : entries) {
    append(out, static_cast<uint8_t>(entry.type));
    append(out, entry.mode), append(out, entry.uid), append(out, entry.gid), append(out, entry.mtime_ns);
    append(out, entry.size);
    append(out, static_cast<uint32_t>(entry.name.size())), append(out, static_cast<uint32_t>(entry.target.size()));
    out += entry.name;
    out += entry.target;
  }
  out.resize(size);
  return out;
}

uint64_t FileTable::run_bytes() const {
  uint64_t out = table_bytes(entries);
  for (const FileEntry& entry : entries) out += entry.size;
  return out;
}

Result<FileTable> FileTable::parse(ByteSpan bytes, const std::string& subject) {
  const Error damaged(Code::kCorrupt, subject, "the table of files is damaged");
  ByteReader in(bytes);
  const auto size = in.read<uint64_t>(), count = in.read<uint64_t>();
  if (!size || !count || *size > bytes.size() || *size < kHead || *count > *size / kEntry) return damaged;
  FileTable out;
  std::set<std::string> folders, names;
  uint64_t total = *size;
  for (uint64_t i = 0; i < *count; ++i) {
    auto entry = read_entry(in);
    if (!entry || in.position() > *size || !names.insert(entry->name).second) return damaged;
    const bool first = i == 0;
    if (first != entry->name.empty() || (first && entry->type != FileEntry::Type::kFolder)) return damaged;
    if (!first && !stays_inside(entry->name)) return damaged;
    const size_t slash = entry->name.rfind('/');
    if (!first && folders.count(slash == std::string::npos ? "" : entry->name.substr(0, slash)) == 0) return damaged;
    if (entry->type == FileEntry::Type::kFolder) folders.insert(entry->name);
    const auto sum = checked_add(total, entry->size);
    if (!sum || *sum > uint64_t{1} << 60) return damaged;
    total = *sum;
    out.entries.push_back(std::move(*entry));
  }
  if (out.entries.empty() || table_bytes(out.entries) != *size) return damaged;
  return out;
}

Result<FileTable> scan_folder(const fs::path& folder) {
  FileTable out;
  CKPT_TRY_ASSIGN(FileEntry root, describe(folder, ""));
  if (root.type == FileEntry::Type::kLink) {  // the folder that it leads to is meant
    std::error_code ec;
    const fs::path real = fs::canonical(folder, ec);
    if (ec) return sys_error(ec.value(), folder.string(), "cannot be followed");
    return scan_folder(real);
  }
  if (root.type != FileEntry::Type::kFolder) return fail(Code::kUsage, folder.string(), "is no folder");
  out.entries.push_back(std::move(root));
  // Grows while it is gone over: folders put what is in them behind themselves.
  for (size_t i = 0; i < out.entries.size(); ++i) {
    if (out.entries[i].type != FileEntry::Type::kFolder) continue;
    const std::string above = out.entries[i].name;
    std::error_code ec;
    std::vector<std::string> names;
    for (fs::directory_iterator it(folder / above, ec), end; !ec && it != end; it.increment(ec))
      names.push_back(it->path().filename().string());
    if (ec) return sys_error(ec.value(), (folder / above).string(), "cannot be listed");
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const std::string inner = above.empty() ? name : above + "/" + name;
      CKPT_TRY_ASSIGN(FileEntry entry, describe(folder / inner, inner));
      out.entries.push_back(std::move(entry));
    }
  }
  return out;
}

bool tells_loss(const Error& error) {
  switch (error.sys_errno) {
    case 0:
      return error.code == Code::kCorrupt;
    case ENOENT:
    case ENOTDIR:
    case ELOOP:  // O_NOFOLLOW: a link has taken its place
    case ENXIO:  // a socket
    case EIO:
    case ESTALE:    // a network's file system has lost the server, or what was there
    case ENOTCONN:  // and one in user space its process
    case EUCLEAN:  // the file system, its checksums and the disk under it say this of bytes that are gone
    case EBADMSG:
    case ENODATA:
      return true;
    default:
      return false;
  }
}

Result<std::string> difference(const fs::path& folder, const FileEntry& entry, bool content_only) {
  const fs::path path = entry.name.empty() ? folder : folder / entry.name;
  struct stat st {};
  // The folder itself may be a link to where it is.
  if ((entry.name.empty() ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::string("is missing");
    const Error error = sys_error(path.string(), "cannot be looked at");
    if (!tells_loss(error)) return error;
    return error.message + ": " + std::string(std::strerror(error.sys_errno));
  }
  const bool same_type = entry.type == FileEntry::Type::kFolder ? S_ISDIR(st.st_mode)
                         : entry.type == FileEntry::Type::kFile ? S_ISREG(st.st_mode)
                                                                : S_ISLNK(st.st_mode);
  if (!same_type) return std::string("is something else now");
  if (entry.type == FileEntry::Type::kFile && static_cast<uint64_t>(st.st_size) != entry.size)
    return std::string("has another size");
  if (entry.type == FileEntry::Type::kLink) {
    std::error_code ec;
    const std::string target = fs::read_symlink(path, ec).string();
    if (const Error error = sys_error(ec.value(), path.string(), "cannot be read as a link"); ec && !tells_loss(error))
      return error;
    if (target != entry.target) return std::string("leads elsewhere now");
  }
  if (content_only) return std::string();
  if (entry.type != FileEntry::Type::kLink && (st.st_mode & 07777) != entry.mode)
    return std::string("has another mode");
  if (entry.type == FileEntry::Type::kFile && mtime_of(st) != entry.mtime_ns) return std::string("was written since");
  return std::string();
}

RunReader::RunReader(fs::path folder, const FileTable& table) : folder_(std::move(folder)), head_(table.encode()) {
  size_ = head_.size();
  for (const FileEntry& entry : table.entries) {
    if (entry.size == 0) continue;
    parts_.push_back({size_, entry.size, entry.name});
    size_ += entry.size;
  }
}

Result<int> RunReader::open(const Part& part) {
  const auto known = open_.find(part.name);
  if (known != open_.end()) return known->second.get();
  if (open_.size() >= kMostOpen) open_.erase(open_.begin());
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(folder_ / part.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  const int out = fd.get();
  open_.emplace(part.name, std::move(fd));
  return out;
}

std::vector<RunReader::Part>::const_iterator RunReader::part_at(uint64_t offset) const {
  return std::upper_bound(parts_.begin(), parts_.end(), offset,
                          [](uint64_t at, const Part& part) { return at < part.offset + part.size; });
}

std::string RunReader::name_at(uint64_t offset) const {
  const auto part = part_at(offset);
  return (part != parts_.end() ? folder_ / part->name : folder_).string();
}

Result<void> RunReader::read(uint64_t offset, MutableByteSpan out) {
  auto take = [&](size_t n) {
    MutableByteSpan taken = out.first(n);
    out = out.subspan(n), offset += n;
    return taken;
  };
  if (offset < head_.size() && !out.empty()) {
    const size_t n = std::min<size_t>(out.size(), head_.size() - offset);
    std::memcpy(out.data(), head_.data() + offset, n);
    (void)take(n);
  }
  for (auto part = part_at(offset); part != parts_.end() && !out.empty(); ++part) {
    const uint64_t at = offset - part->offset;
    const size_t n = std::min<uint64_t>(out.size(), part->size - at);
    CKPT_TRY_ASSIGN(const int fd, open(*part));
    CKPT_TRY(io::pread_exact(fd, take(n), at, (folder_ / part->name).string()));
  }
  if (!out.empty()) std::memset(out.data(), 0, out.size());
  return {};
}

namespace {

Result<void> set_attributes(const fs::path& path, const FileEntry& entry) {
  const bool is_link = entry.type == FileEntry::Type::kLink;
  if (::geteuid() == 0 && ::lchown(path.c_str(), entry.uid, entry.gid) != 0)
    return sys_error(path.string(), "its owner cannot be set");
  if (!is_link && ::chmod(path.c_str(), entry.mode) != 0) return sys_error(path.string(), "its mode cannot be set");
  int64_t seconds = entry.mtime_ns / 1'000'000'000, ns = entry.mtime_ns % 1'000'000'000;
  if (ns < 0) --seconds, ns += 1'000'000'000;
  const timespec times[2] = {{0, UTIME_OMIT}, {static_cast<time_t>(seconds), static_cast<long>(ns)}};
  if (::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
    return sys_error(path.string(), "its time cannot be set");
  return {};
}

Result<void> make_file(int run, uint64_t offset, const std::string& subject, const FileEntry& entry,
                       const fs::path& path) {
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
  CKPT_TRY(io::copy_range(run, offset, file.get(), 0, entry.size, subject));
  if (::ftruncate(run, static_cast<off_t>(offset)) != 0) return sys_error(subject, "cannot be cut");
  return {};
}

}  // namespace

Result<void> unpack(int run, const std::string& subject, const FileTable& table, const fs::path& folder) {
  for (const FileEntry& entry : table.entries) {
    const fs::path path = folder / entry.name;
    if (entry.name.empty()) continue;
    if (entry.type == FileEntry::Type::kFolder && ::mkdir(path.c_str(), 0700) != 0)
      return sys_error(path.string(), "cannot be made");
    if (entry.type == FileEntry::Type::kLink && ::symlink(entry.target.c_str(), path.c_str()) != 0)
      return sys_error(path.string(), "cannot be made");
  }
  uint64_t offset = table.run_bytes();
  for (auto entry = table.entries.rbegin(); entry != table.entries.rend(); ++entry) {
    offset -= entry->size;
    if (entry->type == FileEntry::Type::kFile) CKPT_TRY(make_file(run, offset, subject, *entry, folder / entry->name));
  }
  // What is in a folder first: making it changes the folder's time.
  for (auto entry = table.entries.rbegin(); entry != table.entries.rend(); ++entry) {
    CKPT_TRY(set_attributes(entry->name.empty() ? folder : folder / entry->name, *entry));
  }
  return {};
}

}  // namespace ckpt::parity
