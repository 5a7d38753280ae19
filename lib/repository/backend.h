// Where a store's objects lie: a folder of this host, or objects elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::repository {

struct StoredObject {
  std::string name;
  uint64_t size = 0;
};

/// Names are "config" and "FOLDER/NAME", of letters, digits and -._+=,: and without a dot in front. Thread-safe. What
/// one writer has put, every list and every read that begins afterwards shows; so says POSIX of one host, and S3.
/// Errors: kNotFound, kPermission, kMismatch (it is there already), kNoRoom, kIo, kUnsupported (read only).
class Backend {
 public:
  virtual ~Backend() = default;
  /// Appears whole and durable under its name, or not at all; replaces what was there unless `only_if_absent`.
  virtual Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) = 0;
  /// What is in a folder ("packs"), by name without the folder; of "" the store itself ("config"). Nothing where there
  /// is no such folder. What has another kind of name is not listed.
  virtual Result<std::vector<StoredObject>> list(const std::string& folder) = 0;
  /// One object alone, by its whole name; as it was listed there, its name is that without the folder. kNotFound.
  virtual Result<StoredObject> look_up(const std::string& name) = 0;
  /// Exactly `out.size()` bytes at `offset` of an object that was listed with `size`. kCorrupt: it is shorter.
  virtual Result<void> read(const std::string& name, uint64_t size, uint64_t offset, MutableByteSpan out) = 0;
  /// Content where there is nothing of the name. Works also after a stop was requested.
  virtual Result<void> remove(const std::string& name) = 0;
  /// Takes away what killed writers have left that no list shows.
  virtual Result<void> tidy() { return {}; }

  /// The store itself, for messages, and one of its objects.
  virtual std::string subject(const std::string& name = {}) const = 0;
  /// Who else may write there may have it say anything: whom, in words. Nothing: only this user and root do, as far as
  /// was looked by now.
  virtual std::optional<std::string> strangers() const = 0;
  /// How long, in seconds, what a killed writer had sent may take until every list shows it.
  virtual unsigned settles_s() const { return 0; }
  /// Large enough that asking for it costs less than sending it.
  virtual size_t good_read() const = 0;
};

bool is_object_name(std::string_view name);

/// A folder, or a URL (s3, gs; http and https are read only). `create`: a folder that is not there is made. `cancel`
/// must outlive it; nullptr: nobody interrupts.
Result<std::unique_ptr<Backend>> open_backend(const std::string& place, bool create, const Cancel* cancel);
Result<std::unique_ptr<Backend>> open_local(const std::string& place, bool create);
Result<std::unique_ptr<Backend>> open_remote(const std::string& place, const Cancel* cancel);

/// The folders of a store.
inline constexpr const char* kPacks = "packs";
inline constexpr const char* kIndex = "index";
inline constexpr const char* kImages = "images";
inline constexpr const char* kPushes = "pushes";
inline constexpr const char* kCondemned = "condemned";
inline constexpr const char* kDamaged = "damaged";
inline constexpr const char* kConfig = "config";
inline std::string in_folder(const char* folder, const std::string& name) { return std::string(folder) + "/" + name; }

/// All of an object of at most `limit` bytes (more is kCorrupt).
Result<std::string> read_object(Backend& backend, const std::string& folder, const StoredObject& object,
                                uint64_t limit);
/// Like it; its size is found out first. kNotFound.
Result<std::string> read_object(Backend& backend, const std::string& folder, const std::string& name, uint64_t limit);

}  // namespace ckpt::repository
