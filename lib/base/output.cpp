#include "lib/base/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "lib/base/io.h"

namespace ckpt::io {

namespace fs = std::filesystem;

namespace {

constexpr unsigned kFileMode = 0666;  // less the umask: a checkpoint is shared like any other file

class LocalFile final : public OutputFile {
 public:
  LocalFile(UniqueFd fd, fs::path path, std::string name, bool durable)
      : fd_(std::move(fd)), path_(std::move(path)), name_(std::move(name)), durable_(durable) {}

  Result<void> write(ByteSpan data, uint64_t offset) override { return pwrite_all(fd_.get(), data, offset, name_); }

  Result<void> finish() override {
    if (durable_) CKPT_TRY(sync_fd(fd_.get(), name_));
    if (::rename((path_.string() + ".part").c_str(), path_.c_str()) != 0)
      return sys_error(path_.string(), "cannot rename into place");
    return {};
  }

  int descriptor() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
  fs::path path_;
  std::string name_;
  bool durable_;
};

}  // namespace

Result<std::unique_ptr<OutputFile>> LocalOutput::create(const std::string& name, std::optional<uint64_t> size) {
  const fs::path path = folder_ / name;
  if (name.find('/') != std::string::npos) {
    std::error_code ec;
    fs::create_directories(path.parent_path(), ec);
    if (ec) return sys_error(ec.value(), path.parent_path().string(), "cannot make the folder");
  }
  CKPT_TRY_ASSIGN(UniqueFd fd, open_file(path.string() + ".part", O_RDWR | O_CREAT | O_TRUNC, kFileMode));
  if (size && ::ftruncate(fd.get(), static_cast<off_t>(*size)) != 0) return sys_error(name, "cannot set its size");
  return std::unique_ptr<OutputFile>(new LocalFile(std::move(fd), path, name, durable_));
}

}  // namespace ckpt::io
