// Objects below a place on another host, whatever speaks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/remote/url.h"

namespace ckpt::remote {

struct Object {
  std::string name;  ///< relative to the place, "/" between parts; empty: the place itself is one object
  uint64_t size = 0;
  std::string etag;  ///< of the content that was listed; empty: the server does not tell
};

/// Thread-safe. Errors: kNotFound, kPermission, kMismatch (the object changed since it was listed), kIo (the network or
/// the server failed, after the retries), kCorrupt (the server contradicts itself).
class Backend {
 public:
  virtual ~Backend() = default;
  /// All objects below the place, sorted by name, at most `limit`; one without a name where the place is an object.
  virtual Result<std::vector<Object>> list(size_t limit) = 0;
  /// Exactly `out.size()` bytes of the object at `offset`, which must lie inside.
  virtual Result<void> read(const Object& object, uint64_t offset, MutableByteSpan out) = 0;
};

/// A backend whose objects can be written. One appears under its name whole, or not at all. Names are relative to the
/// place, as in Object. Errors as above; kCorrupt: the server has other bytes than were sent.
class WritableBackend : public Backend {
 public:
  static constexpr uint64_t kSmallestPart = 5 << 20;  ///< but for the last of an upload
  static constexpr unsigned kMostParts = 10'000;

  /// `only_if_absent`: kMismatch where the object is there already, as far as the server can tell.
  virtual Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) = 0;

  /// False: an object is only put whole, a large one by `put_file`; the five below it are kUnsupported.
  virtual bool takes_parts() const { return true; }
  /// All of a file, which is borrowed. kUnsupported: a backend that takes parts.
  virtual Result<void> put_file(const std::string& name, int fd, bool only_if_absent);

  /// An object in parts, of which nothing is seen until it is completed. The upload's identifier.
  virtual Result<std::string> begin_upload(const std::string& name) = 0;
  /// Parts count from 1 and may come in any order. What `complete_upload` wants to know of it.
  virtual Result<std::string> upload_part(const std::string& name, const std::string& upload, unsigned number,
                                          ByteSpan bytes) = 0;
  virtual Result<void> complete_upload(const std::string& name, const std::string& upload,
                                       std::span<const std::string> parts, bool only_if_absent) = 0;

  /// What the server has of an upload, by `kMostParts` at most: as `upload_part` has told of each, from the first on.
  /// kNotFound: there is no such upload.
  virtual Result<std::vector<std::string>> list_parts(const std::string& name, const std::string& upload) = 0;

  /// These two work also after a stop was requested, and are content where there is nothing of the name.
  virtual Result<void> abort_upload(const std::string& name, const std::string& upload) = 0;
  virtual Result<void> remove(const std::string& name) = 0;
};

/// What speaks for a URL. `cancel` must outlive it; nullptr: nobody interrupts. kUnsupported: libcurl cannot be loaded.
Result<std::unique_ptr<Backend>> open_backend(const Url& url, const Cancel* cancel);

/// The same for writing. kUnsupported also: a URL that is only read, http:// and https://.
Result<std::unique_ptr<WritableBackend>> open_writable(const Url& url, const Cancel* cancel);

}  // namespace ckpt::remote
