// Archives of tar, front to back: ustar, with a pax record where a name or a size needs one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::store {

constexpr size_t kTarBlock = 512;

/// The same bytes for the same names and contents: no owner, no time, mode 0600.
class TarWriter {
 public:
  using Sink = std::function<Result<void>(ByteSpan)>;
  explicit TarWriter(Sink sink) : sink_(std::move(sink)) {}

  /// A file of `size` bytes, which `write` is then given, and `end` makes complete.
  Result<void> begin(const std::string& path, uint64_t size);
  Result<void> write(ByteSpan content);
  Result<void> end();
  /// What says that the archive is whole.
  Result<void> finish();

 private:
  Result<void> put(ByteSpan bytes);
  Result<void> put_pax(const std::string& path, uint64_t size);

  Sink sink_;
  uint64_t left_ = 0;
  size_t padding_ = 0;
};

struct TarEntry {
  std::string path;  ///< as it stands there: not checked
  uint64_t size = 0;
  bool folder = false;
};

/// Hostile input: everything but files and folders is refused by name (kCorrupt), also what an extension says that is
/// not known here (kUnsupported). Memory: 64 KiB.
class TarReader {
 public:
  /// At least one byte into `out`, and how many; 0: there are no more.
  using Source = std::function<Result<size_t>(MutableByteSpan out)>;
  TarReader(Source source, std::string subject) : source_(std::move(source)), subject_(std::move(subject)) {}

  /// The next file or folder, once the content of the one before was read; nothing: the archive is complete, and
  /// nothing but padding is behind it. kCorrupt: it is cut short.
  Result<std::optional<TarEntry>> next();
  /// Exactly so much of the content.
  Result<void> read(MutableByteSpan out);

 private:
  Result<void> fill(MutableByteSpan out);
  Result<void> skip_padding();
  Result<void> check_header(ByteSpan header) const;
  Result<TarEntry> parse_header(ByteSpan header) const;
  Result<void> read_pax(uint64_t size);
  Result<void> take_pax(std::string_view key, std::string_view value);
  Result<void> check_end();

  Source source_;
  const std::string subject_;
  uint64_t left_ = 0;
  size_t padding_ = 0;
  bool first_ = true;
  std::optional<std::string> pax_path_;
  std::optional<uint64_t> pax_size_;
};

}  // namespace ckpt::store
