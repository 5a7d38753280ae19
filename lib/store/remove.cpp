#include "lib/store/remove.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/store/find_images.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

struct Target {
  fs::path dir;  ///< canonical
  UniqueFd fd;   ///< locked against a child that is being written
  std::string id;
  fs::path parent;  ///< canonical; empty: none, or not there
};

Result<Target> open_target(const fs::path& named) {
  const std::string subject = named.string();
  fs::path plain = named.has_filename() ? named : named.parent_path();  // "link/" would lead through the link
  std::error_code ec;
  const fs::file_type type = fs::symlink_status(plain, ec).type();
  if (type == fs::file_type::not_found) return fail(Code::kNotFound, subject, "there is no such folder");
  if (type == fs::file_type::symlink) return fail(Code::kUsage, subject, "is a symbolic link: name the image itself");
  Target out;
  out.dir = fs::canonical(plain, ec);
  if (ec) return sys_error(ec.value(), subject, "cannot be opened");
  if (!ImageReader::looks_like_image(out.dir)) return fail(Code::kNotFound, subject, "holds no image");
  CKPT_TRY_ASSIGN(out.fd, io::open_file(out.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::flock(out.fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(Code::kBusy, subject, "is in use: a dump that refers to it is being written");
  }
  auto manifest = read_manifest(out.dir);
  if (!manifest) return out;  // damaged: gone all the more
  out.id = manifest->id;
  if (manifest->parent_id.empty()) return out;
  fs::path parent = fs::canonical(out.dir / manifest->parent_path, ec);
  auto of_parent = ec ? Result<Manifest>(Manifest{}) : read_manifest(parent);
  if (of_parent && of_parent->id == manifest->parent_id) out.parent = std::move(parent);
  return out;
}

bool contains(const std::vector<Target>& targets, const fs::path& dir) {
  return std::any_of(targets.begin(), targets.end(), [&](const Target& t) { return t.dir == dir; });
}

Result<std::vector<Target>> open_targets(const std::vector<fs::path>& dirs, bool chain) {
  std::vector<Target> out;
  for (const fs::path& dir : dirs) {
    std::error_code ec;
    if (contains(out, fs::canonical(dir, ec)) && !ec) continue;
    CKPT_TRY_ASSIGN(Target target, open_target(dir));
    out.push_back(std::move(target));
    while (chain && !out.back().parent.empty() && !contains(out, out.back().parent)) {
      CKPT_TRY_ASSIGN(Target parent, open_target(out.back().parent));
      out.push_back(std::move(parent));
    }
  }
  return out;
}

Result<void> check_not_needed(const std::vector<Target>& targets, ProgressSink& notes, const Cancel& cancel) {
  std::map<fs::path, std::vector<fs::path>> below;
  for (const Target& target : targets) {
    auto [found, fresh] = below.try_emplace(target.dir.parent_path());
    if (fresh) {
      CKPT_TRY_ASSIGN(found->second, find_images(found->first, notes, cancel));
    }
    for (const fs::path& child : children_of(target.dir, found->second)) {
      if (contains(targets, child)) continue;
      return Error(Code::kUsage, target.dir.string(),
                   "is needed by " + child.string() + ", which could not be read any more")
          .with_hint("remove that one first, make it stand alone with ckpt squash, or give --force");
    }
  }
  return {};
}

/// Children before their parents; a circle, as damage can make one, is cut anywhere.
void sort_children_first(std::vector<Target>& targets) {
  for (size_t done = 0; done < targets.size(); ++done) {
    auto rest = targets.begin() + static_cast<ptrdiff_t>(done);
    auto next = std::find_if(rest, targets.end(), [&](const Target& t) {
      return std::none_of(rest, targets.end(), [&](const Target& other) { return other.parent == t.dir; });
    });
    if (next != targets.end()) std::rotate(rest, next, next + 1);
  }
}

/// The names that an image's folder holds, the commit point first.
std::vector<std::string> file_names() {
  std::vector<std::string> out = {kManifestName, kManifestDigestName, kPagemapName, kXstateName, kPipesName};
  for (size_t i = 0; i < kMaxPagesFiles; ++i) out.push_back(pages_file_name(i));
  return out;
}

Result<void> unlink_file(const Target& target, const std::string& name) {
  if (::unlinkat(target.fd.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return sys_error((target.dir / name).string(), "cannot be removed");
}

Result<void> unlink_children(const Target& target) {
  UniqueFd fd(::openat(target.fd.get(), kChildrenName, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return {};
  std::error_code ec;
  for (fs::directory_iterator it(target.dir / kChildrenName, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_symlink(ec)) ::unlinkat(fd.get(), it->path().filename().c_str(), 0);
  }
  ::unlinkat(target.fd.get(), kChildrenName, AT_REMOVEDIR);  // stays with what else somebody put there
  return {};
}

uint64_t stored_bytes(const Target& target) {
  uint64_t sum = 0;
  struct stat st{};
  for (const std::string& name : file_names()) {
    if (::fstatat(target.fd.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
      sum += static_cast<uint64_t>(st.st_size);
  }
  return sum;
}

Result<RemovedImage> remove_one(const Target& target, bool dry_run) {
  RemovedImage out{target.dir, target.id, stored_bytes(target), false};
  if (dry_run) return out;
  CKPT_TRY(unlink_file(target, kManifestName));
  CKPT_TRY(io::sync_fd(target.fd.get(), target.dir.string()));
  for (const std::string& name : file_names()) CKPT_TRY(unlink_file(target, name));
  CKPT_TRY(unlink_children(target));
  if (!target.parent.empty() && !target.id.empty()) ::unlink((target.parent / kChildrenName / target.id).c_str());
  out.folder_left = ::rmdir(target.dir.c_str()) != 0;
  if (out.folder_left && errno != ENOTEMPTY && errno != EEXIST && errno != EBUSY)
    return sys_error(target.dir.string(), "cannot be removed");
  if (!out.folder_left) CKPT_TRY(io::sync_dir(target.dir.parent_path()));
  return out;
}

}  // namespace

Result<std::vector<RemovedImage>> remove_images(const std::vector<fs::path>& dirs, const RemoveOptions& options,
                                                ProgressSink& notes, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(std::vector<Target> targets, open_targets(dirs, options.chain));
  if (!options.force) CKPT_TRY(check_not_needed(targets, notes, cancel));
  sort_children_first(targets);
  std::vector<RemovedImage> out;
  for (const Target& target : targets) {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(RemovedImage removed, remove_one(target, options.dry_run));
    out.push_back(std::move(removed));
  }
  return out;
}

Result<std::vector<RemovedStaging>> remove_staging(const std::vector<fs::path>& folders, bool dry_run) {
  std::vector<RemovedStaging> out;
  for (const fs::path& folder : folders) {
    std::error_code ec;
    if (!fs::is_directory(folder, ec)) return fail(Code::kNotFound, folder.string(), "there is no such folder");
    for (const fs::path& dir : find_abandoned_staging(folder)) {
      RemovedStaging removed{dir, 0};
      for (fs::recursive_directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
        if (it->is_regular_file(ec) && !it->is_symlink(ec)) removed.bytes += it->file_size(ec);
      }
      if (!dry_run && !remove_abandoned_staging(dir)) return fail(Code::kIo, dir.string(), "cannot be removed");
      out.push_back(std::move(removed));
    }
  }
  return out;
}

}  // namespace ckpt::store
