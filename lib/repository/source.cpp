#include "lib/repository/source.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/base/json_text.h"
#include "lib/store/chain_layout.h"
#include "lib/store/find_images.h"
#include "lib/store/image_files.h"
#include "lib/store/job.h"

namespace ckpt::repository {

namespace fs = std::filesystem;

namespace {

int64_t ns_of(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

Result<struct stat> look(const fs::path& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return sys_error(path.string(), "cannot be looked at");
  return st;
}

Entry entry_of(const struct stat& st, const std::string& path, Entry::Type type) {
  Entry out;
  out.type = type, out.path = path;
  out.mode = static_cast<uint16_t>(st.st_mode & 0777), out.mtime_ns = ns_of(st.st_mtim);
  return out;
}

/// Where the pages files of an image are to be cut, by their names.
using Cuts = std::map<std::string, std::vector<Fixed>>;

Result<Cuts> cuts_of(const fs::path& dir) {
  CKPT_TRY_ASSIGN(const store::LoadedImage image, store::load_image(dir));
  Cuts out;
  for (size_t i = 0; i < image.pages_files(); ++i) out[store::pages_file_name(i)];
  for (const store::PagemapRecord& record : image.records) {
    if (record.data_mask == 0 || record.ancestor != 0 || record.codec != store::Codec::kZstd) continue;
    out[store::pages_file_name(record.file)].push_back({record.offset, record.stored_length()});
  }
  for (auto& [name, fixed] : out) {
    std::sort(fixed.begin(), fixed.end(), [](const Fixed& a, const Fixed& b) { return a.offset < b.offset; });
    uint64_t end = 0;  // several records may refer to one chunk; what overlaps otherwise is left to the pages' cuts
    std::erase_if(fixed, [&](const Fixed& one) {
      if (one.offset < end) return true;
      end = one.offset + one.length;
      return false;
    });
  }
  return out;
}

class Walk {
 public:
  Walk(Source& source, const Cancel& cancel) : source_(source), cancel_(cancel) {}

  /// `path`: where it is to lie; `cuts`: of an image.
  Result<void> add(const fs::path& at, const std::string& path, const Cuts* cuts) {
    CKPT_TRY(cancel_.check());
    CKPT_TRY_ASSIGN(const struct stat st, look(at));
    if (S_ISDIR(st.st_mode)) return add_folder(at, st, path, cuts);
    if (S_ISREG(st.st_mode)) return add_file(at, st, path, cuts);
    if (S_ISLNK(st.st_mode)) return add_link(at, st, path);
    return fail(Code::kUnsupported, at.string(), "is neither a file nor a folder: a store does not keep it");
  }

  Result<void> add_folder_alone(const fs::path& at, const std::string& path) {
    CKPT_TRY_ASSIGN(const struct stat st, look(at));
    source_.entries.push_back(entry_of(st, path, Entry::Type::kFolder));
    return {};
  }

 private:
  static SourceFile known_as(const fs::path& at, const struct stat& st) {
    SourceFile out;
    out.path = at, out.inode = st.st_ino, out.device = st.st_dev;
    out.mtime_ns = ns_of(st.st_mtim), out.ctime_ns = ns_of(st.st_ctim);
    return out;
  }

  Result<void> add_folder(const fs::path& at, const struct stat& st, const std::string& path, const Cuts* cuts) {
    source_.entries.push_back(entry_of(st, path, Entry::Type::kFolder));
    Cuts own;
    if (cuts == nullptr && store::ImageReader::looks_like_image(at)) {
      if (auto found = cuts_of(at)) own = std::move(*found), cuts = &own;
    }
    // An image gets no more files, but a child may note itself there.
    if (cuts == nullptr) source_.folders.push_back(known_as(at, st));
    std::error_code ec;
    std::vector<std::string> names;
    for (fs::directory_iterator it(at, ec), end; !ec && it != end; it.increment(ec))
      names.push_back(it->path().filename().string());
    if (ec) return sys_error(ec.value(), at.string(), "cannot be listed");
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      if (name.starts_with(".ckpt-staging-")) continue;               // not finished
      if (cuts != nullptr && name == store::kChildrenName) continue;  // says where others lie on this host
      const std::string inner = path.empty() ? name : path + "/" + name;
      CKPT_TRY(add(at / name, inner, cuts));
    }
    return {};
  }

  Result<void> add_file(const fs::path& at, const struct stat& st, const std::string& path, const Cuts* cuts) {
    SourceFile file = known_as(at, st);
    file.entry = source_.entries.size();
    if (cuts != nullptr) {
      const auto found = cuts->find(at.filename().string());
      if (found != cuts->end()) file.pages = true, file.fixed = found->second;
    }
    Entry entry = entry_of(st, path, Entry::Type::kFile);
    entry.size = static_cast<uint64_t>(st.st_size);
    source_.bytes += entry.size;
    source_.entries.push_back(std::move(entry));
    source_.files.push_back(std::move(file));
    return {};
  }

  Result<void> add_link(const fs::path& at, const struct stat& st, const std::string& path) {
    std::error_code ec;
    Entry entry = entry_of(st, path, Entry::Type::kLink);
    entry.target = fs::read_symlink(at, ec).string();
    if (ec) return sys_error(ec.value(), at.string(), "cannot be read");
    entry.size = entry.target.size();
    if (!link_stays_inside(path, entry.target))
      return Error(Code::kUnsupported, at.string(), "is a link that leads out of what is pushed, to " + entry.target)
          .with_hint("copy what it leads to in its place, or push the folder that holds both");
    source_.entries.push_back(std::move(entry));
    return {};
  }

  Source& source_;
  const Cancel& cancel_;
};

/// Images that lie below `top`.
Result<void> add_images(const std::vector<store::ChainImage>& chain, const fs::path& top, Walk& walk) {
  std::map<std::string, const store::ChainImage*> images;  // by path: those that lie in another come after it
  for (const store::ChainImage& image : chain) images.emplace(image.dir.lexically_relative(top).string(), &image);
  std::map<std::string, bool> made;
  for (const auto& [path, image] : images) {
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      if (images.count(path.substr(0, slash)) != 0)
        return fail(Code::kUnsupported, image->dir.string(), "lies in the folder of another image of its chain");
    }
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      const std::string folder = path.substr(0, slash);
      if (!made.emplace(folder, true).second) continue;
      CKPT_TRY(walk.add_folder_alone(top / folder, folder));
    }
    CKPT_TRY_ASSIGN(const Cuts cuts, cuts_of(image->dir));
    CKPT_TRY(walk.add(image->dir, path, &cuts));
  }
  return {};
}

Result<void> add_chain(const std::vector<store::ChainImage>& chain, Walk& walk, Source& out) {
  const fs::path top = store::common_folder(chain);
  out.path = chain[0].dir.lexically_relative(top).string();
  CKPT_TRY(walk.add_folder_alone(chain[0].dir, ""));
  return add_images(chain, top, walk);
}

/// The parts of a job's image with their parents, each image once.
Result<std::vector<store::ChainImage>> images_of(const fs::path& folder, const store::Job& job) {
  std::vector<store::ChainImage> out;
  std::set<fs::path> known;
  for (uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const fs::path part = folder / store::part_name(rank);
    if (auto there = store::read_part(folder, job, rank); !there)
      return Error(std::move(there).error()).with_hint("a job's image is pushed from where all of its parts are");
    std::error_code ec;
    if (fs::canonical(part, ec) != part) return fail(Code::kUnsupported, part.string(), "is a symbolic link");
    CKPT_TRY_ASSIGN(const std::vector<store::ChainImage> chain, store::find_chain(part));
    for (const store::ChainImage& image : chain) {
      if (known.insert(image.dir).second) out.push_back(image);
    }
  }
  return out;
}

/// `job.json` comes last: what names the parts is not there before them.
Result<void> add_job(const fs::path& folder, Walk& walk, Source& out) {
  CKPT_TRY_ASSIGN(const store::Job job, store::read_job(folder));
  CKPT_TRY_ASSIGN(const std::vector<store::ChainImage> images, images_of(folder, job));
  out.kind = "process", out.format = "job", out.created = job.created, out.images = images.size();
  const fs::path top = store::common_folder(images);
  std::set<fs::path> jobs;  // the images that the parts lean on are parts of earlier ones
  for (const store::ChainImage& image : images) {
    if (image.dir.parent_path() != folder && store::looks_like_job(image.dir.parent_path()))
      jobs.insert(image.dir.parent_path());
  }
  CKPT_TRY(walk.add_folder_alone(folder, ""));
  CKPT_TRY(add_images(images, top, walk));
  auto add = [&](const fs::path& of) {
    return walk.add(of / store::kJobName, (of / store::kJobName).lexically_relative(top).string(), nullptr);
  };
  for (const fs::path& other : jobs) CKPT_TRY(add(other));
  if (folder != top) out.path = folder.lexically_relative(top).string();
  return add(folder);
}

}  // namespace

Result<Source> find_source(const fs::path& path, const Cancel& cancel) {
  std::error_code ec;
  const fs::path there = fs::canonical(path, ec);
  if (ec) return sys_error(ec.value(), path.string(), "cannot be opened");
  Source out;
  Walk walk(out, cancel);
  if (store::looks_like_job(there)) {
    CKPT_TRY(add_job(there, walk, out));
  } else if (!store::ImageReader::looks_like_image(there)) {
    out.kind = "model";
    const bool folder = fs::is_directory(there, ec);
    if (!folder) out.path = there.filename().string();
    CKPT_TRY(walk.add(there, out.path, nullptr));
  } else {
    CKPT_TRY_ASSIGN(const std::vector<store::ChainImage> chain, store::find_chain(there));
    out.kind = "process", out.format = chain[0].manifest.kind;
    out.created = chain[0].manifest.created, out.images = chain.size();
    if (chain.size() > 1) {
      CKPT_TRY(add_chain(chain, walk, out));
    } else {
      CKPT_TRY_ASSIGN(const Cuts cuts, cuts_of(there));
      CKPT_TRY(walk.add(there, "", &cuts));
    }
  }
  if (!is_valid_utf8(out.path)) return fail(Code::kUnsupported, path.string(), "has a name that is not UTF-8");
  return out;
}

Result<UniqueFd> open_source(const SourceFile& file) {
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
  how.resolve = RESOLVE_NO_SYMLINKS;
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, file.path.c_str(), &how, sizeof how)));
  if (!fd && errno == ENOSYS) fd.reset(::open(file.path.c_str(), static_cast<int>(how.flags)));
  if (!fd && (errno == ELOOP || errno == ENOENT))
    return fail(Code::kMismatch, file.path.string(), "was replaced while it was pushed");
  if (!fd) return sys_error(file.path.string(), "cannot be opened");
  CKPT_TRY(check_unchanged(file, fd.get()));
  return fd;
}

Result<void> check_unchanged(const SourceFile& file, int fd) {
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd, file.path.string()));
  if (st.st_ino == file.inode && st.st_dev == file.device && ns_of(st.st_mtim) == file.mtime_ns &&
      ns_of(st.st_ctim) == file.ctime_ns)
    return {};
  return Error(Code::kMismatch, file.path.string(), "changed while it was pushed")
      .with_hint("push it again once nobody writes to it");
}

}  // namespace ckpt::repository
