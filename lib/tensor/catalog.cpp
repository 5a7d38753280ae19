#include "lib/tensor/catalog.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "lib/base/checked.h"
#include "lib/base/io.h"

namespace ckpt::tensor {

std::optional<uint64_t> element_count(const Shape& shape) {
  // A zero anywhere makes an empty tensor, whatever the other axes say.
  for (uint64_t n : shape) {
    if (n == 0) return 0;
  }
  return checked_product(shape);
}

uint64_t Tensor::bytes() const { return element_count(shape).value_or(0) * item_size(dtype); }

std::string join_path(const KeyPath& path, bool escaped) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (i > 0) out += '.';
    const std::string step = path[i].text();
    const bool number = !step.empty() && step.find_first_not_of("-0123456789") == std::string::npos;
    if (escaped && number && path[i].kind == PathStep::Kind::kName) out += '\\';
    for (char c : step) {
      if (escaped && (c == '.' || c == '\\')) out += '\\';
      out += c;
    }
  }
  return out;
}

bool leads_to(const KeyPath& path, std::string_view key) {
  if (path.empty()) return false;
  if (key.find('\\') != std::string_view::npos && key == join_path(path, true)) return true;
  for (size_t i = 0; i < path.size(); ++i) {
    const std::string step = path[i].text();
    if (key.substr(0, step.size()) != step) return false;
    key.remove_prefix(step.size());
    if (i + 1 == path.size()) return key.empty();
    if (key.empty() || key[0] != '.') return false;
    key.remove_prefix(1);
  }
  return false;
}

std::string Finding::text() const {
  std::string out = file;
  if (offset) out += " at byte " + std::to_string(*offset);
  if (!key.empty()) out += (out.empty() ? "" : ": ") + key;
  return out + (out.empty() ? "" : ": ") + message;
}

Error damage_error(const Catalog& catalog, const std::vector<Finding>& findings) {
  constexpr size_t kShown = 8;
  std::optional<Error> error;
  size_t damage = 0;
  for (const Finding& finding : findings) {
    if (finding.warning) continue;
    if (damage++ == 0)
      error.emplace(Code::kCorrupt, catalog.root.string(), "damaged: " + finding.text());
    else if (damage <= kShown) error->causes.push_back(finding.text());
  }
  if (!error) return Error(Code::kBug, catalog.root.string(), "nothing is damaged");
  if (damage > kShown) error->causes.push_back("and " + std::to_string(damage - kShown) + " more");
  error->hint = "ckpt verify lists all that is wrong";
  return std::move(*error);
}

namespace {

/// A link in the user's own folder is the user's (the cache of the Hugging Face hub holds nothing else): it is followed
/// to a regular file. Looked at before it is opened: opening a device may do something.
Result<UniqueFd> open_linked(int dir, const std::string& name, const std::string& path) {
  struct stat st{};
  if (::fstatat(dir, name.c_str(), &st, 0) != 0) return sys_error(path, "cannot open");
  if (!S_ISREG(st.st_mode)) return fail(Code::kCorrupt, path, "is not a regular file");
  UniqueFd fd(::openat(dir, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return sys_error(path, "cannot open");
  CKPT_TRY_ASSIGN(st, io::stat_fd(fd.get(), path));
  if (!S_ISREG(st.st_mode)) return fail(Code::kCorrupt, path, "is not a regular file");
  return fd;
}

/// `path` is a name that a file of the checkpoint may have given: no folder on the way is reached through a link.
Result<UniqueFd> open_below(const std::filesystem::path& root, const std::string& path) {
  CKPT_TRY_ASSIGN(UniqueFd dir, io::open_file(root, O_RDONLY | O_DIRECTORY));
  size_t begin = 0;
  for (;;) {
    size_t end = path.find('/', begin);
    std::string part = path.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") {
      return fail(Code::kCorrupt, path, "is not a path below the checkpoint");
    }
    if (end == std::string::npos) return open_linked(dir.get(), part, path);
    UniqueFd next(::openat(dir.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next && (errno == ELOOP || errno == ENOTDIR)) {
      return fail(Code::kCorrupt, path, "leads through something that is not a folder");
    }
    if (!next) return sys_error(path, "cannot open");
    dir = std::move(next);
    begin = end + 1;
  }
}

}  // namespace

Result<UniqueFd> Catalog::open_file(uint32_t index) const {
  if (index >= files.size()) return fail(Code::kBug, root.string(), "no such file in the catalog");
  std::error_code ec;
  if (std::filesystem::is_directory(root, ec)) return open_below(root, files[index].path);
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(root, O_RDONLY | O_NONBLOCK));
  CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), root.string()));
  if (!S_ISREG(st.st_mode)) return fail(Code::kCorrupt, root.string(), "is not a regular file");
  return fd;
}

}  // namespace ckpt::tensor
