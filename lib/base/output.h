// Where files are written that one engine makes of many pieces: a folder of this host, or objects elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::io {

/// A file under way. Without `finish` it never counts as written.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  /// Thread-safe. Each byte is written once, in any order; of a file whose size was not said, front to back.
  virtual Result<void> write(ByteSpan data, uint64_t offset) = 0;
  /// After the last `write`: all of it is there.
  virtual Result<void> finish() = 0;
  /// The descriptor of a file of this host, of its full size and zero wherever nothing was written, whose bytes the
  /// kernel may copy and whose written ones may be written again; -1: there is none, and zeros are written like others.
  virtual int descriptor() const { return -1; }
};

class OutputFolder {
 public:
  virtual ~OutputFolder() = default;
  /// Thread-safe. `name`: below the folder, with folders of its own. `size`: the exact size, where it is known. The
  /// folder outlives its files.
  virtual Result<std::unique_ptr<OutputFile>> create(const std::string& name, std::optional<uint64_t> size) = 0;
};

/// A folder of this host, which exists. Files are named after themselves with ".part" behind until they are complete.
class LocalOutput final : public OutputFolder {
 public:
  /// `durable`: a file is on disk before it gets its name.
  LocalOutput(std::filesystem::path folder, bool durable) : folder_(std::move(folder)), durable_(durable) {}
  Result<std::unique_ptr<OutputFile>> create(const std::string& name, std::optional<uint64_t> size) override;

 private:
  std::filesystem::path folder_;
  bool durable_;
};

/// Files that appear together by `commit`, complete and durable; the destructor without one leaves none of them.
class StagedOutput : public OutputFolder {
 public:
  /// An earlier attempt at the same has finished a file of this name and size: it counts as created and finished here.
  /// False: none has.
  virtual Result<bool> take_up(const std::string&, uint64_t) { return false; }
  /// All files are finished. `last`: the one that makes the whole complete, which appears after all others. After a
  /// failure none of them is there.
  virtual Result<void> commit(const std::string& last) = 0;
  /// Bytes of all files that were finished.
  virtual uint64_t bytes() const = 0;
  /// After `commit`: where readers on this host find what was written, while this object lives.
  virtual Result<std::filesystem::path> read_back() = 0;
  /// Takes back what was committed. `because` comes back, with a line about what could not be.
  virtual Error withdraw(Error because) = 0;
};

}  // namespace ckpt::io
