// Objects below a place on another host, whatever speaks for it.
#pragma once

#include <cstdint>
#include <memory>
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

/// What speaks for a URL. `cancel` must outlive it; nullptr: nobody interrupts. kUnsupported: libcurl cannot be loaded.
Result<std::unique_ptr<Backend>> open_backend(const Url& url, const Cancel* cancel);

}  // namespace ckpt::remote
