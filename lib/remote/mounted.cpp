#include "lib/remote/mounted.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>

#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/remote/cached_object.h"

namespace ckpt::remote {

namespace fs = std::filesystem;

namespace {

/// Where placeholders lie, and the URL that it stands for.
struct Names {
  std::mutex mutex;
  std::map<std::string, std::string> urls;
};

Names& names() {
  static Names instance;
  return instance;
}

/// A relative path of plain parts: it comes from a server.
bool stays_below(const std::string& name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos || part.size() > 255)
      return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

namespace {

/// An empty file of the object's size, which reads as the object.
Result<struct stat> make_placeholder(const fs::path& path, const std::shared_ptr<ObjectSource>& source, size_t number,
                                     const Object& object) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd && (errno == EEXIST || errno == ENOTDIR))
    return fail(Code::kUnsupported, object.name, "is an object, and others lie below it as in a folder");
  if (!fd) return sys_error(path.string(), "cannot make a placeholder");
  if (::ftruncate(fd.get(), static_cast<off_t>(object.size)) != 0)
    return sys_error(object.name, "is too large for TMPDIR's file system");
  if (!object.etag.empty()) {  // the same time for the same content: who goes on later tells that by it
    const auto version = static_cast<time_t>(xxh3_128(as_bytes(object.etag)).lo >> 33);
    const timespec times[2] = {{version, 0}, {version, 0}};
    ::futimens(fd.get(), times);
  }
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get(), path.string()));
  io::set_virtual_file(st, std::make_shared<CachedObject>(source, number, object));
  return st;
}

}  // namespace

Result<std::unique_ptr<Mounted>> Mounted::open(const std::string& url, const Cancel* cancel) {
  CKPT_TRY_ASSIGN(const Url parsed, parse_url(url));
  std::unique_ptr<Mounted> out(new Mounted(cancel));
  out->url_ = without_slashes(url);
  std::string name = parsed.name();
  if (name.empty() || !stays_below(name)) name = "checkpoint";
  CKPT_TRY(out->mount(url, name));
  out->path_ = out->folder_.path() / name;
  return out;
}

Result<bool> Mounted::add_beside(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t last = last_part(url_);
  if (last == 0 || path.parent_path() != folder_.path() || path == path_ || !stays_below(name)) return false;
  const bool is_http = url_.starts_with("http");
  // The name is a stranger's, and a space in it would be one between words.
  if (url_.starts_with("cmd:") && name.find(' ') != std::string::npos) return false;
  const std::string url = url_.substr(0, last) + (is_http ? percent_encode(name, false) : name);
  auto done = mount(url, path);
  if (!done && done.error().code == Code::kNotFound) return false;
  if (!done) return std::move(done).error();
  return true;
}

/// `path`: below the folder, which is made once it is known that there is something.
Result<void> Mounted::mount(const std::string& url, const fs::path& path) {
  CKPT_TRY_ASSIGN(const Url parsed, parse_url(url));
  auto open = [parsed, cancel = cancel_] { return open_backend(parsed, cancel); };
  CKPT_TRY_ASSIGN(std::unique_ptr<Backend> backend, open());
  CKPT_TRY_ASSIGN(const std::vector<Object> objects, backend->list(kMostObjects));
  if (folder_.path().empty()) {
    CKPT_TRY_ASSIGN(folder_, ScratchFolder::make());
  }
  const fs::path top = folder_.path() / path;
  {
    std::lock_guard lock(names().mutex);
    names().urls[top.string()] = without_slashes(url);
  }
  const auto source = std::make_shared<ObjectSource>(std::move(backend), open);
  const bool single = objects.size() == 1 && objects[0].name.empty();
  if (!single && ::mkdir(top.c_str(), 0700) != 0) return sys_error(top.string(), "cannot make a folder");
  fs::path made;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (!single && !stays_below(objects[i].name))
      return fail(Code::kCorrupt, url, "holds an object whose name leads elsewhere: " + objects[i].name);
    const fs::path place = single ? top : top / objects[i].name;
    std::error_code ec;
    if (place.parent_path() != made) fs::create_directories(made = place.parent_path(), ec);
    if (ec) return fail(Code::kUnsupported, objects[i].name, "lies below another object, as in a folder");
    CKPT_TRY_ASSIGN(const struct stat st, make_placeholder(place, source, i, objects[i]));
    placeholders_.push_back(st);
  }
  return {};
}

Mounted::~Mounted() {
  for (const struct stat& st : placeholders_) io::set_virtual_file(st, nullptr);
}

std::optional<std::string> with_urls(std::string_view text) {
  std::lock_guard lock(names().mutex);
  std::optional<std::string> out;
  for (const auto& [path, url] : names().urls) {
    if (text.find(path) == std::string_view::npos && !out) continue;
    if (!out) out = std::string(text);
    for (size_t at = 0; (at = out->find(path, at)) != std::string::npos; at += url.size())
      out->replace(at, path.size(), url);
  }
  return out;
}

}  // namespace ckpt::remote
