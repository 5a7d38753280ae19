#include "lib/model/convert/workspace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <unordered_set>

#include "lib/base/digest.h"
#include "lib/base/io.h"

namespace ckpt::model {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".ckpt-convert-";

Result<void> make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return {};
  return sys_error(path.string(), "cannot create the folder");
}

Result<UniqueFd> lock_file(const fs::path& path, bool& taken) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDWR | O_CREAT, 0666));
  taken = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  if (!taken && errno != EWOULDBLOCK) return sys_error(path.string(), "cannot lock");
  return fd;
}

Result<void> check_others(const fs::path& parent, const std::string& prefix, const std::string& own) {
  std::error_code ec;
  for (fs::directory_iterator it(parent, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(prefix, 0) != 0 || name == own) continue;
    return Error(Code::kBusy, it->path().string(),
                 "is another conversion to the same destination, with other options or of another source")
        .with_hint("go on with the options that it was begun with, or remove that folder");
  }
  return {};
}

}  // namespace

Result<Workspace> Workspace::open(const fs::path& destination, const std::string& plan, PartOf part) {
  std::error_code ec;
  fs::path place = fs::absolute(destination, ec).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  const std::string prefix = kMarker + place.filename().string() + "-", own = prefix + plan.substr(0, 12);
  CKPT_TRY(check_others(place.parent_path(), prefix, own));
  Workspace out;
  out.root_ = place.parent_path() / own;
  out.files_ = out.root_ / "files";
  std::vector<fs::path> made;
  CKPT_TRY(io::make_folders(place.parent_path(), made));
  for (const fs::path& folder : made) CKPT_TRY(io::sync_dir(folder.parent_path()));
  CKPT_TRY(make_folder(out.root_));
  CKPT_TRY(make_folder(out.files_));
  bool taken = false;
  CKPT_TRY_ASSIGN(out.part_lock_, lock_file(out.root_ / fmt::format("part-{}-of-{}", part.index, part.count), taken));
  if (!taken)
    return fail(Code::kBusy, destination.string(),
                fmt::format("part {} of {} is being written by another process", part.index, part.count));
  return out;
}

bool Workspace::has(const tensor::OutputFile& file) const {
  struct stat st{};
  return ::lstat((files_ / file.name).c_str(), &st) == 0 && S_ISREG(st.st_mode) &&
         static_cast<uint64_t>(st.st_size) == file.size;
}

Result<bool> Workspace::may_finish() {
  bool taken = false;
  auto lock = lock_file(root_ / "finish", taken);
  if (!lock && lock.error().code == Code::kNotFound) return false;  // finished by another, and gone
  if (!lock) return std::move(lock).error();
  finish_lock_ = std::move(*lock);
  std::error_code ec;
  if (taken && !fs::exists(files_, ec)) discard();  // finished by another: what was left of it is this lock
  return taken && fs::exists(files_, ec);
}

void Workspace::discard() {
  std::error_code ec;
  fs::remove_all(root_, ec);
}

Result<void> Workspace::finish(const tensor::Layout& layout, const fs::path& destination, bool force,
                               StagedDir::Kind kind) {
  std::unordered_set<std::string> wanted;
  for (const tensor::OutputFile& file : layout.files) wanted.insert(file.name);
  std::error_code ec;
  std::vector<fs::path> strangers;  // begun by a process that was killed
  for (fs::recursive_directory_iterator it(files_, ec), end; !ec && it != end; it.increment(ec)) {
    if (!it->is_directory() && wanted.count(it->path().lexically_relative(files_).generic_string()) == 0)
      strangers.push_back(it->path());
  }
  for (const fs::path& path : strangers) fs::remove(path, ec);
  CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::adopt(files_, destination, force, kind));
  CKPT_TRY(staged.commit(layout.last_file, true));
  discard();
  return {};
}

std::string fingerprint(const tensor::Layout& layout, const tensor::Selection& selection) {
  Xxh3 hash;
  auto add = [&](const std::string& text) { hash.update(as_bytes(fmt::format("{}:{}", text.size(), text))); };
  for (const tensor::OutputFile& file : layout.files)
    add(fmt::format("{} {} {}", file.name, file.size, file.last - file.first));
  for (const tensor::Target& target : selection.tensors) {
    add(fmt::format("{} {} {} {}", target.source, target.key, dtype_name(target.dtype), fmt::join(target.shape, "x")));
  }
  for (const tensor::ObjectTarget& object : selection.objects) add(fmt::format("{} {}", object.source, object.key));
  std::error_code ec;
  const fs::path& root = selection.source->root;
  const bool folder = fs::is_directory(root, ec);
  for (const tensor::SourceFile& file : selection.source->files) {
    const auto time = fs::last_write_time(folder ? root / file.path : root, ec).time_since_epoch().count();
    add(fmt::format("{} {} {}", file.path, file.size, time));
  }
  return to_hex(hash.digest());
}

std::vector<size_t> files_of_part(const tensor::Layout& layout, PartOf part) {
  uint64_t total = 0, done = 0;
  for (const tensor::OutputFile& file : layout.files) total += file.generate ? 0 : file.size + 1;
  std::vector<size_t> out;
  for (size_t i = 0; i < layout.files.size(); ++i) {
    if (layout.files[i].generate) continue;
    const uint64_t size = layout.files[i].size + 1;
    const auto owner =
        static_cast<unsigned>(static_cast<double>(done + size / 2) / static_cast<double>(total) * part.count);
    if (std::min(owner, part.count - 1) == part.index) out.push_back(i);
    done += size;
  }
  return out;
}

bool is_finished(const tensor::Layout& layout, const fs::path& destination, StagedDir::Kind kind) {
  std::error_code ec;
  for (const tensor::OutputFile& file : layout.files) {
    const fs::path path = kind == StagedDir::Kind::kFile ? destination : destination / file.name;
    if (!fs::is_regular_file(path, ec) || (!file.generate && fs::file_size(path, ec) != file.size)) return false;
  }
  return true;
}

}  // namespace ckpt::model
