#include "lib/tensor/catalog.h"

#include <fcntl.h>

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

bool leads_to(const KeyPath& path, std::string_view key) {
  if (path.empty()) return false;
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

namespace {

/// Every folder on the way is opened without following links, so that nothing outside the root can be reached.
Result<UniqueFd> open_below(const std::filesystem::path& root, const std::string& path) {
  CKPT_TRY_ASSIGN(UniqueFd dir, io::open_file(root, O_RDONLY | O_DIRECTORY));
  size_t begin = 0;
  for (;;) {
    size_t end = path.find('/', begin);
    std::string part = path.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") {
      return fail(Code::kAnswerNo, path, "is not a path below the checkpoint");
    }
    if (end == std::string::npos) {
      auto fd = io::open_regular(dir.get(), part);
      if (!fd) fd.error().subject = path;
      return fd;
    }
    UniqueFd next(::openat(dir.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next && (errno == ELOOP || errno == ENOTDIR)) {
      return fail(Code::kAnswerNo, path, "leads through something that is not a folder");
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
  if (!S_ISREG(st.st_mode)) return fail(Code::kAnswerNo, root.string(), "is not a regular file");
  return fd;
}

}  // namespace ckpt::tensor
